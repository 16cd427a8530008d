"""`TableItems`: the items of episodes in a table."""

from collections.abc import Callable
import dataclasses
import math

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib

_REFUSED = {
    windows_lib.EndOfEpisode.REPEAT_LAST: (
        'A table holds each frame once, so items cannot repeat frames. Use'
        ' "zero_pad", or write the sequences of convert_rlds_to_sequences.'
    )
}

Priority = float | Callable[[trajectory.Trajectory], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class TableItems:
  """Defines the items of every episode in a table.

  An item is a window of consecutive frames, which are sampled together, or a
  complete episode. A padding row is a boundary: a frame of zeros whose step
  type is LAST. The settings correspond to the TF-Agents observers.

  Attributes:
    table_name: the name of the table.
    windows: the windows of frames that are items, with any end except
      `"repeat_last"`, because a table holds every frame once; or None if items
      are complete episodes.
    max_sequence_length: the maximum number of frames of an item that is a
      complete episode; None for no limit.
    bypass_longer_episodes: whether longer episodes are skipped with a warning.
      By default they are an error.
    priority: the priority of every item; or a function that is called in graph
      mode with the `Trajectory` of each item, `[L, ...]`, and returns its
      priority.

  Raises:
    ValueError: if a setting is not valid, or two of them cannot be combined.
  """

  table_name: str
  windows: windows_lib.Windows | None = windows_lib.Windows(2)
  max_sequence_length: int | None = None
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
            ' max_sequence_length is for complete episodes.'
        )
    if not callable(self.priority) and not 0 <= self.priority < math.inf:
      raise ValueError(
          f'The priority of the items of table {self.table_name!r} must be a'
          f' finite number from 0 up, but is {self.priority}.'
      )

  @property
  def sequence_length(self) -> int | None:
    """The number of frames of an item; None for complete episodes."""
    return None if self.windows is None else self.windows.length

  @property
  def crosses_episodes(self) -> bool:
    """Whether items continue in the next episode."""
    return self.windows is not None and self.windows.crosses_episodes

  @property
  def pads_episodes(self) -> bool:
    """Whether padding frames may follow an episode."""
    return self.windows is not None and self.windows.pads_episodes

  def is_too_long(self, lengths: np.ndarray) -> np.ndarray:
    """Returns which episodes of `lengths` frames exceed the maximum."""
    return lengths > (self.max_sequence_length or math.inf)

  def padding(self, lengths: np.ndarray) -> np.ndarray:
    """Returns the number of padding frames after episodes of `lengths`."""
    if self.windows is None:
      return np.zeros_like(lengths)
    return self.windows.padding(lengths)

  def count(self, lengths: np.ndarray) -> np.ndarray:
    """Returns the number of items of episodes, int64 `[E]`.

    Args:
      lengths: the number of frames of each episode; or of all data, if items
        cross episodes.
    """
    if self.windows is None:
      return np.where(self.is_too_long(lengths), 0, 1)
    return self.windows.count(lengths)
