"""History and future actions of single steps, found by index."""

import dataclasses
from typing import Any, Callable, Dict, Optional, Tuple, Union

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import items as store_items
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import rows as rows_lib

# The names of `rlds` and of `windows.stacking`, whose modules use TensorFlow.
_OBSERVATION, _ACTION = 'observation', 'action'
_OBSERVATION_MASK, _ACTION_MASK = 'observation_mask', 'action_mask'
_HAS_ACTION = 'has_action'
_COUNTED_ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class ActionChunks:
  """Every step is an item, with its last observations and next actions.

  The items are those of `windows.stack_and_chunk`. N=2, K=2, four steps:

      step           0              1              2              3
      observation    o0    o0       o0    o1       o1    o2       o2    o3
      action         a0 a1 a0 a1    a0 a1 a1 a2    a1 a2 a2 a2    a2 a2 a2 a2
      action_mask    F  F  T  T     T  T  T  T     T  T  T  F     T  F  F  F

  Attributes:
    num_frames: `N`, how many observations an item has. Items have this
      dimension and the next one always, of size 1 by default;
      `stack_and_chunk` adds those that are asked for.
    num_actions: `K`, how many actions there are for each of them.
    fill: the values after the last action: `'repeat'`, `'zeros'` or a number.
    goal_step: the name of the field that is the index of the step's goal, as
      `RelabelGoals` adds it. Actions from there on are masked.
    last_steps: whether the last step of an episode is an item, too. It has no
      action of its own, unless a field `has_action`, as `StepMapping` makes it,
      says so.
  """

  num_frames: int = 1
  num_actions: int = 1
  fill: Union[str, float] = 'repeat'
  goal_step: Optional[str] = None
  last_steps: bool = True

  def __post_init__(self):
    checks.check_positive('num_frames', self.num_frames)
    checks.check_positive('num_actions', self.num_actions)
    if isinstance(self.fill, str):
      checks.check_choice('fill', self.fill, ('repeat', 'zeros'))


class ChunkReader:
  """Reads the items of `ActionChunks`.

  Attributes:
    episodes: the episodes, with the number of their items.
    masks: the shapes of the further fields of items, which are bools.
  """

  def __init__(self, chunks: ActionChunks, index: Any):
    """Finds the items.

    Args:
      chunks: what an item is.
      index: the `Index` that has the steps.

    Raises:
      ValueError: if steps do not have the fields that are needed.
    """
    self._chunks, self._index = chunks, index
    frames = (chunks.num_frames,)
    self.masks: Dict[str, Tuple[int, ...]] = {
        _OBSERVATION_MASK: frames,
        _ACTION_MASK: (*frames, chunks.num_actions),
    }
    structure, lengths = index.layout.structure, index.lengths
    for name in (_OBSERVATION, _ACTION, chunks.goal_step):
      if name is not None and name not in structure:
        raise ValueError(
            f'ActionChunks need a field {name}, but steps have'
            f' {sorted(structure)}. Map the fields in the function prepare of'
            ' build_index.'
        )
    for name in self.masks:
      if name in structure:
        raise ValueError(f'There is a field {name} already. Rename it.')
    # How many steps of each episode have an action.
    self._acting = np.maximum(lengths - 1, 0)
    if _HAS_ACTION in structure:
      self._acting = _count_true(index, structure[_HAS_ACTION], lengths)
    self._first = np.cumsum(lengths) - lengths
    counts = lengths if chunks.last_steps else self._acting
    self.episodes = store_items.Episodes(self._first, lengths, counts)

  def lead_of(self, column: layout_lib.Column) -> Tuple[int, ...]:
    """Returns the leading dimensions of a column in an item."""
    return {
        _OBSERVATION: self.masks[_OBSERVATION_MASK],
        _ACTION: self.masks[_ACTION_MASK],
    }.get(column.keys[0], ())

  def read(
      self, episode: np.ndarray, step: np.ndarray, decoded: Callable[..., Any]
  ) -> Dict[str, Any]:
    """Returns items, stacked.

    Args:
      episode: the episode of each one, int64 `[B]`.
      step: the step of each one.
      decoded: takes columns and their numbers, and returns them with images and
        strings in place of cells.
    """
    chunks, layout = self._chunks, self._index.layout
    frames = step[:, np.newaxis] + np.arange(1 - chunks.num_frames, 1)
    ahead = np.arange(chunks.num_actions)
    past = self._acting[episode][:, np.newaxis, np.newaxis]
    # Before the first step, actions are those from there on.
    seen = np.maximum(frames, 0)
    chosen = seen[..., np.newaxis] + ahead
    steps = {
        _OBSERVATION: seen,
        _ACTION: np.minimum(chosen, np.maximum(past - 1, 0)),
        '': step,
    }
    leaves: Dict[int, np.ndarray] = {}
    for name, places in steps.items():
      numbers = [
          number
          for number, column in enumerate(layout.columns)
          if (column.keys[0] if column.keys[0] in steps else '') == name
      ]
      first = self._first[episode].reshape([-1] + [1] * (places.ndim - 1))
      found = decoded(self._index.take(first + places, numbers), numbers)
      if name == _ACTION and chunks.fill != 'repeat':
        fill = 0 if chunks.fill == 'zeros' else chunks.fill
        for leaf in found:
          leaf[chosen >= past] = b'' if leaf.dtype == object else fill
      leaves.update(zip(numbers, found))
    nest = layout.nest(leaves)
    mask = (frames >= 0)[..., np.newaxis]
    mask = mask & (frames[..., np.newaxis] + ahead < past)
    if chunks.goal_step:
      goal = np.asarray(nest[chunks.goal_step], np.int64)
      mask &= frames[..., np.newaxis] + ahead < goal[:, np.newaxis, np.newaxis]
    nest[_OBSERVATION_MASK], nest[_ACTION_MASK] = frames >= 0, mask
    return nest


def _count_true(
    rows: rows_lib.RowStore, column: int, lengths: np.ndarray
) -> np.ndarray:
  """Returns how many rows of each episode are True in a column."""
  ends = np.cumsum(lengths)
  counts = np.zeros(len(lengths), np.int64)
  for begin in range(0, rows.num_rows, _COUNTED_ROWS):
    steps = np.arange(begin, min(begin + _COUNTED_ROWS, rows.num_rows))
    [is_true] = rows.take(steps, [column])
    counts += np.bincount(
        np.searchsorted(ends, steps[is_true], 'right'), minlength=len(counts)
    )
  return counts
