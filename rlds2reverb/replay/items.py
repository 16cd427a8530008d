"""The items that a table gets from a stream of trajectories."""

import dataclasses
import math
from typing import Callable, Optional, Union

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib

_REFUSED = {
    windows_lib.EndOfEpisode.REPEAT_LAST: (
        'Items refer to frames that their table holds once. Take "zero_pad", or'
        ' write the sequences of convert_rlds_to_sequences.'
    )
}

Priority = Union[float, Callable[[trajectory.Trajectory], tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class TableItems:
  """The items of every episode that go into a table.

  An item is a window of consecutive frames that is sampled as one, or a whole
  episode. A row of padding is a boundary: a frame of zeros whose step type is
  LAST. The settings are those of the TF-Agents observers.

  Attributes:
    table_name: the name of the table.
    windows: which windows of frames are items, with any end but
      `"repeat_last"`, as a table holds every frame once; or None for items that
      are whole episodes.
    max_sequence_length: the largest number of frames of an item that is a whole
      episode, or None for no limit.
    bypass_longer_episodes: whether an episode that is longer is left out with a
      warning. By default it is an error.
    priority: the priority of every item; or a function that is called in graph
      mode with the `Trajectory` of each item, `[L, ...]`, and returns its
      priority.

  Raises:
    ValueError: if a setting is not valid, or two of them do not go together.
  """

  table_name: str
  windows: Optional[windows_lib.Windows] = windows_lib.Windows(2)
  max_sequence_length: Optional[int] = None
  bypass_longer_episodes: bool = False
  priority: Priority = 1.0

  def __post_init__(self):
    if self.windows is not None:
      windows_lib.check_windows(
          self.windows, _REFUSED, f' of table {self.table_name!r}'
      )
    if self.max_sequence_length is not None:
      checks.check_positive(
          f'max_sequence_length of the items of table {self.table_name!r}',
          self.max_sequence_length,
      )
      if self.windows is not None:
        raise ValueError(
            f'The items of table {self.table_name!r} have windows, and'
            ' max_sequence_length is for whole episodes.'
        )
    if not callable(self.priority) and not 0 <= self.priority < math.inf:
      raise ValueError(
          f'The priority of the items of table {self.table_name!r} must be a'
          f' finite number from 0 up, but is {self.priority}.'
      )

  @property
  def sequence_length(self) -> Optional[int]:
    """The number of frames of an item; None for whole episodes."""
    return None if self.windows is None else self.windows.length

  @property
  def crosses_episodes(self) -> bool:
    """Whether items go on into the next episode."""
    return self.windows is not None and self.windows.crosses_episodes

  @property
  def pads_episodes(self) -> bool:
    """Whether padding frames may follow an episode."""
    return self.windows is not None and self.windows.pads_episodes

  def is_too_long(self, lengths: np.ndarray) -> np.ndarray:
    """Returns which episodes of `lengths` frames are longer than an item."""
    return lengths > (self.max_sequence_length or math.inf)

  def padding(self, lengths: np.ndarray) -> np.ndarray:
    """Returns how many padding frames follow episodes of `lengths` frames."""
    if self.windows is None:
      return np.zeros_like(lengths)
    return self.windows.padding(lengths)

  def count(self, lengths: np.ndarray) -> np.ndarray:
    """Returns how many items episodes have, int64 `[E]`.

    Args:
      lengths: how many frames each has; or, where items cross episodes, all
        the data has.
    """
    if self.windows is None:
      return np.where(self.is_too_long(lengths), 0, 1)
    return self.windows.count(lengths)
