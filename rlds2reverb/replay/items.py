"""Which items a table gets from a stream of trajectories."""

import dataclasses
import math
from typing import (
    Callable,
    Dict,
    Iterable,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import ends

_ENDS = (
    ends.EndOfEpisode.DROP,
    ends.EndOfEpisode.PAD,
    ends.EndOfEpisode.TILE,
    ends.EndOfEpisode.CROSS,
)

Priority = Union[float, Callable[[trajectory.Trajectory], tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class TableItems:
  """Which items of every episode go into a table.

  An item is a run of consecutive frames that is sampled as one. The settings
  are those of the TF-Agents observers. Here are the items of an episode of 5
  frames with `sequence_length=3` and `stride_length=2`. P is a padding frame: a
  frame of zeros whose step type is LAST, which marks a boundary. x is a frame
  of the next episode:

      the frames     |  0  1  2  3  4 |
      drop           |  0  1  2 |
                           |  2  3  4 |
      pad            the same; only an episode of fewer than 3 frames is padded
      tile           |  0  1  2 |
                           |  2  3  4 |
                                 |  4  P  P |
      cross          |  0  1  2 |
                           |  2  3  4 |
                                 |  4  x  x |
      sequence_length=None
                     |  0  1  2  3  4 |

  Attributes:
    table_name: the name of the table.
    sequence_length: the number of frames of an item, or None for items that are
      whole episodes.
    stride_length: the number of frames between the starts of one item and the
      next.
    end_of_episode: what becomes of the last frames of an episode, an
      `EndOfEpisode` or its string. `"drop"` makes no item that is not full.
      `"pad"` makes one padded item of an episode that is shorter than an item.
      `"tile"` starts an item at every `stride_length`-th frame of the episode,
      and pads those that reach beyond its end. `"cross"` lets items go on into
      the next episode.
    max_sequence_length: the largest number of frames of an item that is a whole
      episode, or None for no limit.
    bypass_longer_episodes: whether an episode that is longer is left out with a
      warning. By default it is an error.
    priority: the priority of every item; or a function that is called in graph
      mode with the `Trajectory` of each item, `[sequence_length, ...]`, and
      returns its priority.

  Raises:
    ValueError: if a setting is not valid, or two of them do not go together.
  """

  table_name: str
  sequence_length: Optional[int] = 2
  stride_length: int = 1
  end_of_episode: Union[str, ends.EndOfEpisode] = ends.EndOfEpisode.DROP
  max_sequence_length: Optional[int] = None
  bypass_longer_episodes: bool = False
  priority: Priority = 1.0

  def __post_init__(self):
    items = f'of the items of table {self.table_name!r}'
    for name in ('sequence_length', 'stride_length', 'max_sequence_length'):
      value = getattr(self, name)
      if value is not None:
        checks.check_positive(f'{name} {items}', value)
    end = ends.check_end(f'end_of_episode {items}', self.end_of_episode, _ENDS)
    object.__setattr__(self, 'end_of_episode', end)
    if self.sequence_length is None and (
        end != ends.EndOfEpisode.DROP or self.stride_length != 1
    ):
      raise ValueError(
          f'The items of table {self.table_name!r} are whole episodes, which'
          ' have no end_of_episode and no stride_length.'
      )
    if self.sequence_length is not None and self.max_sequence_length:
      raise ValueError(
          f'The items of table {self.table_name!r} have a sequence_length, and'
          ' max_sequence_length is for whole episodes.'
      )
    if not callable(self.priority) and not 0 <= self.priority < math.inf:
      raise ValueError(
          f'The priority of the items of table {self.table_name!r} must be a'
          f' finite number from 0 up, but is {self.priority}.'
      )

  @property
  def crosses_episodes(self) -> bool:
    """Whether items go on into the next episode."""
    return self.end_of_episode == ends.EndOfEpisode.CROSS

  @property
  def pads_episodes(self) -> bool:
    """Whether padding frames may follow an episode."""
    return self.end_of_episode in (
        ends.EndOfEpisode.PAD,
        ends.EndOfEpisode.TILE,
    )

  def is_too_long(self, lengths: np.ndarray) -> np.ndarray:
    """Returns which episodes of `lengths` frames are longer than an item."""
    if self.max_sequence_length is None:
      return np.zeros(np.shape(lengths), bool)
    return lengths > self.max_sequence_length

  def padding(self, lengths: np.ndarray) -> np.ndarray:
    """Returns how many padding frames follow episodes of `lengths` frames."""
    if self.end_of_episode == ends.EndOfEpisode.TILE:
      return np.full_like(lengths, self.sequence_length - 1)
    if self.end_of_episode == ends.EndOfEpisode.PAD:
      return np.maximum(self.sequence_length - lengths, 0)
    return np.zeros_like(lengths)

  def next_start(self, end: np.ndarray) -> np.ndarray:
    """Returns where the first item starts that ends after `end`.

    Args:
      end: numbers of frames, counted from the start of an episode; or from the
        start of the data, where items cross episodes.
    """
    if self.sequence_length is None:
      return np.zeros_like(end)
    first = np.maximum(end + 1 - self.sequence_length, 0)
    return -(-first // self.stride_length) * self.stride_length

  def starts(
      self, begin: np.ndarray, end: np.ndarray
  ) -> Tuple[np.ndarray, np.ndarray]:
    """Returns where the items start that end in `(begin, end]`.

    Args:
      begin: numbers of frames, counted as in `next_start`.
      end: numbers of frames, not smaller than `begin`.

    Returns:
      Where the first of them start, and how many there are. The others follow
      at distances of `stride_length`.
    """
    first = self.next_start(begin)
    last = end - self.sequence_length
    return first, np.maximum((last - first) // self.stride_length + 1, 0)


def episode_lengths(step_type: np.ndarray, length: int) -> np.ndarray:
  """Returns the lengths of the episodes that frames belong to.

  Args:
    step_type: the step types of consecutive frames, `[B]`.
    length: the number of frames before these that belong to the first episode.

  Returns:
    The lengths of the episodes that end with a LAST frame; and the length so
    far of the one that goes on, or 0.
  """
  lasts = np.flatnonzero(step_type == ts.StepType.LAST)
  return np.diff(np.concatenate([[-length], lasts + 1, [len(step_type)]]))


def count_items(
    tables: Sequence[TableItems], step_types: Iterable[np.ndarray]
) -> Dict[str, int]:
  """Counts the items that each table gets, without making them.

  Args:
    tables: which items go into which table.
    step_types: the step types of consecutive frames, arrays `[B]`.

  Returns:
    The number of items of each table, by the name of the table.
  """
  counts = {table.table_name: 0 for table in tables}
  length = 0  # The number of frames of the episode so far.
  total = 0

  def add(table, lengths):
    _, count = table.starts(np.zeros_like(lengths), lengths)
    counts[table.table_name] += int(count.sum())

  for step_type in step_types:
    lengths = episode_lengths(step_type, length)
    whole, length = lengths[:-1], int(lengths[-1])
    for table in tables:
      if table.sequence_length is None:
        fitting = np.count_nonzero(~table.is_too_long(whole))
        counts[table.table_name] += fitting
      elif not table.crosses_episodes:
        add(table, whole + table.padding(whole))
    total += len(step_type)
  for table in tables:
    if table.crosses_episodes:
      add(table, np.array([total]))
    elif table.sequence_length is not None:
      add(table, np.array([length]))
  return counts
