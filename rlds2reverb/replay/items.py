"""Which items of a stream of trajectories go into a table."""

import dataclasses
from typing import (
    Callable,
    Dict,
    Iterable,
    Iterator,
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

END_OF_EPISODE = ('drop', 'pad', 'tile', 'cross')

Priority = Union[float, Callable[[trajectory.Trajectory], tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class TableItems:
  """Which items of every episode go into a table.

  The settings are those of the TF-Agents observers. An episode of 5 frames,
  `sequence_length=3`, `stride_length=2`; P is a padding frame, a boundary of
  zeros (LAST, then FIRST); x is the next episode:

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
    table: the name of the table.
    sequence_length: the number of frames of an item; None for items that are
      whole episodes.
    stride_length: the number of frames from the start of an item to that of the
      next.
    end_of_episode: what becomes of the last frames of an episode: `"drop"`, no
      item that is not full; `"pad"`, one padded item where the episode is
      shorter than an item; `"tile"`, padded items up to one that starts with
      the last frame; `"cross"`, items go on into the next episode.
    max_sequence_length: the most frames of an item that is a whole episode.
    bypass_longer_episodes: whether a longer one is left out, with a warning,
      rather than an error.
    priority: of every item; or called in graph mode with each item's
      `Trajectory`, `[sequence_length, ...]`, returns it.
  """

  table: str
  sequence_length: Optional[int] = 2
  stride_length: int = 1
  end_of_episode: str = 'drop'
  max_sequence_length: Optional[int] = None
  bypass_longer_episodes: bool = False
  priority: Priority = 1.0

  def __post_init__(self):
    items = f'of the items of table {self.table!r}'
    for name in ('sequence_length', 'stride_length', 'max_sequence_length'):
      value = getattr(self, name)
      if value is not None:
        checks.check_positive(f'{name} {items}', value)
    checks.check_choice(
        f'end_of_episode {items}', self.end_of_episode, END_OF_EPISODE
    )
    if self.sequence_length is None and (
        self.end_of_episode != 'drop' or self.stride_length != 1
    ):
      raise ValueError(
          f'The items of table {self.table!r} are whole episodes, which have no'
          ' end_of_episode and no stride_length.'
      )
    if self.sequence_length is not None and self.max_sequence_length:
      raise ValueError(
          f'The items of table {self.table!r} have a sequence_length, and'
          ' max_sequence_length is for whole episodes.'
      )
    if not callable(self.priority) and not self.priority >= 0:
      raise ValueError(
          f'The priority of the items of table {self.table!r} must be a number'
          f' from 0 up, but is {self.priority}.'
      )

  def is_too_long(self, length: int) -> bool:
    """Whether an episode of `length` frames is longer than an item may be."""
    return (
        self.max_sequence_length is not None
        and length > self.max_sequence_length
    )

  def padding(self, length: int) -> int:
    """Returns how many frames are padded to an episode of `length` frames."""
    if self.end_of_episode == 'tile':
      return self.sequence_length - 1
    if self.end_of_episode == 'pad':
      return max(self.sequence_length - length, 0)
    return 0

  def next_start(self, end: int) -> int:
    """Returns where the first item starts that ends behind `end`.

    Args:
      end: a number of frames from the start of the episode, or where items
        cross episodes from the start of the data.
    """
    if self.sequence_length is None:
      return 0
    first = max(end + 1 - self.sequence_length, 0)
    return -(-first // self.stride_length) * self.stride_length

  def starts(self, begin: int, end: int) -> np.ndarray:
    """Returns where the items start that end in `(begin, end]`, as int64.

    Args:
      begin: a number of frames, as in `next_start`.
      end: another, not smaller.
    """
    return np.arange(
        self.next_start(begin),
        end + 1 - self.sequence_length,
        self.stride_length,
        dtype=np.int64,
    )


def split_at_ends(step_type: np.ndarray) -> Iterator[Tuple[int, int, bool]]:
  """Splits frames `[B]` where episodes end.

  Yields:
    Where the frames of an episode begin and end, and whether it ends there.
  """
  begin = 0
  for end in (np.flatnonzero(step_type == ts.StepType.LAST) + 1).tolist():
    yield begin, end, True
    begin = end
  if begin < len(step_type):
    yield begin, len(step_type), False


def count_items(
    tables: Sequence[TableItems], step_types: Iterable[np.ndarray]
) -> Dict[str, int]:
  """Counts the items of each table.

  Args:
    tables: which items go into which table.
    step_types: the step types of consecutive frames, arrays `[B]`.

  Returns:
    The number of items, by table.
  """
  counts = {table.table: 0 for table in tables}
  length = 0  # of the episode so far
  total = 0

  def add(is_end):
    for table in tables:
      if table.end_of_episode == 'cross':
        continue
      if table.sequence_length is None:
        counts[table.table] += is_end and not table.is_too_long(length)
      else:
        padding = table.padding(length) if is_end else 0
        counts[table.table] += len(table.starts(0, length + padding))

  for step_type in step_types:
    for begin, end, is_end in split_at_ends(step_type):
      length += end - begin
      if is_end:
        add(True)
        length = 0
    total += len(step_type)
  if length:
    add(False)
  for table in tables:
    if table.end_of_episode == 'cross':
      counts[table.table] += len(table.starts(0, total))
  return counts
