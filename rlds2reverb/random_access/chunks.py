"""History and future actions of single steps, found by index."""

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import layout as layout_lib
from rlds2reverb.store import rows as rows_lib

# The names of `rlds` and of `windows.stacking`, whose modules use TensorFlow.
_OBSERVATION, _ACTION = 'observation', 'action'
_OBSERVATION_MASK, _ACTION_MASK = 'observation_mask', 'action_mask'
_HAS_ACTION = 'has_action'
_COUNTED_ROWS = 1 << 16

# Returns columns of rows `[...]`, by the numbers of the columns.
Read = Callable[[np.ndarray, Sequence[int]], List[np.ndarray]]


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

  @property
  def masks(self) -> Dict[str, Tuple[int, ...]]:
    """The shapes of the further fields of items, which are bools."""
    frames = (self.num_frames,)
    return {
        _OBSERVATION_MASK: frames,
        _ACTION_MASK: (*frames, self.num_actions),
    }

  def lead(self, column: layout_lib.Column) -> Tuple[int, ...]:
    """Returns the leading dimensions of a column in an item."""
    return {
        _OBSERVATION: self.masks[_OBSERVATION_MASK],
        _ACTION: self.masks[_ACTION_MASK],
    }.get(column.keys[0], ())

  def count_acting(
      self, rows: rows_lib.RowStore, lengths: np.ndarray
  ) -> np.ndarray:
    """Returns how many steps of each episode have an action, int64 `[E]`.

    Args:
      rows: the steps.
      lengths: how many each episode has.

    Raises:
      ValueError: if steps do not have the fields that are needed.
    """
    structure = rows.layout.structure
    for name in (_OBSERVATION, _ACTION, self.goal_step):
      if name is not None and name not in structure:
        raise ValueError(
            f'ActionChunks need a field {name}, but steps have'
            f' {sorted(structure)}. Map the fields in the function prepare of'
            ' build_index.'
        )
    for name in self.masks:
      if name in structure:
        raise ValueError(f'There is a field {name} already. Rename it.')
    if _HAS_ACTION not in structure:
      return np.maximum(lengths - 1, 0)
    ends = np.cumsum(lengths)
    counts = np.zeros(len(lengths), np.int64)
    for begin in range(0, rows.num_rows, _COUNTED_ROWS):
      steps = np.arange(begin, min(begin + _COUNTED_ROWS, rows.num_rows))
      [has_action] = rows.take(steps, [structure[_HAS_ACTION]])
      np.add.at(counts, np.searchsorted(ends, steps[has_action], 'right'), 1)
    return counts

  def make(
      self,
      layout: layout_lib.RowLayout,
      read: Read,
      first: np.ndarray,
      step: np.ndarray,
      acting: np.ndarray,
  ) -> Dict[str, Any]:
    """Returns items, stacked.

    Args:
      layout: the layout of steps.
      read: see `Read`.
      first: the first row of each one's episode, int64 `[B]`.
      step: the step of each one.
      acting: how many steps of its episode have an action.
    """
    of: Dict[str, List[int]] = {_OBSERVATION: [], _ACTION: [], '': []}
    for number, column in enumerate(layout.columns):
      name = column.keys[0]
      of[name if name in of else ''].append(number)
    frames = step[:, np.newaxis] + np.arange(1 - self.num_frames, 1)
    actions = frames[..., np.newaxis] + np.arange(self.num_actions)
    # Before the first step, actions are those from there on.
    chosen = np.maximum(frames, 0)[..., np.newaxis] + np.arange(
        self.num_actions
    )
    past = acting[:, np.newaxis, np.newaxis]
    row = first[:, np.newaxis]
    found: Dict[int, np.ndarray] = {}
    for name, rows in (
        (_OBSERVATION, row + np.maximum(frames, 0)),
        ('', first + step),
        (
            _ACTION,
            row[..., np.newaxis] + np.minimum(chosen, np.maximum(past - 1, 0)),
        ),
    ):
      found.update(zip(of[name], read(rows, of[name])))
    if self.fill != 'repeat':
      fill = 0 if self.fill == 'zeros' else self.fill
      for number in of[_ACTION]:
        is_text = found[number].dtype == object
        found[number][chosen >= past] = b'' if is_text else fill
    nest = layout.nest([found[number] for number in range(len(found))])
    mask = (frames >= 0)[..., np.newaxis] & (actions < past)
    if self.goal_step:
      goal = np.asarray(nest[self.goal_step], np.int64)
      mask &= actions < goal[:, np.newaxis, np.newaxis]
    nest[_OBSERVATION_MASK], nest[_ACTION_MASK] = frames >= 0, mask
    return nest
