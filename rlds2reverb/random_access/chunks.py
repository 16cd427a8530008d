"""Action chunks: every step with its last observations and next actions."""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.store import items as store_items

# The names of `rlds` and of `windows.stacking`, whose modules use TensorFlow.
_OBSERVATION, _ACTION = 'observation', 'action'
_OBSERVATION_MASK, _ACTION_MASK = 'observation_mask', 'action_mask'
_HAS_ACTION = 'has_action'


@dataclasses.dataclass(frozen=True)
class ActionChunks:
  """Every step is an item, with its last observations and next actions.

  The items are equal to the steps from `windows.stack_and_chunk`. One frame and
  K=2, as in ACT and LeRobot, for four steps; observations and chunks have no
  axis of frames:

      step           0              1              2              3
      observation    o0             o1             o2             o3
      action         a0 a1          a1 a2          a2 a2          a2 a2
      action_mask    T  T           T  T           T  F           F  F

  N=2 and K=2, as in Octo:

      step           0              1              2              3
      observation    o0    o0       o0    o1       o1    o2       o2    o3
      action         a0 a1 a0 a1    a0 a1 a1 a2    a1 a2 a2 a2    a2 a2 a2 a2
      action_mask    F  F  T  T     T  T  T  T     T  T  T  F     T  F  F  F

  Attributes:
    num_frames: the number of observations of an item, `N`. With 1, the default,
      a batch has observations `[B, ...]`, actions `[B, K, ...]`, `action_mask`
      `[B, K]` and no `observation_mask`. With more, it has observations
      `[B, N, ...]`, actions `[B, N, K, ...]`, `action_mask` `[B, N, K]` and
      `observation_mask` `[B, N]`.
    num_actions: the number of actions for each observation, `K`.
    fill: the values after the last action: `'repeat'`, `'zeros'` or a number.
    goal_step: the name of the field with the index of the step's goal, as added
      by `RelabelGoals`. Actions from the goal on are masked.
    last_steps: whether the last step of an episode is an item, too. It has no
      action, unless the field `has_action`, which `StepMapping` adds, is True.
    frame_axis: the axis of an observation along which its frames are
      concatenated, as in `windows.stack_and_chunk`: with -1 and N=4, decoded
      images `[84, 84, 1]` become `[84, 84, 4]`. By default frames have a
      separate axis. A `transform` receives the concatenated frames.
  """

  num_frames: int = 1
  num_actions: int = 1
  fill: str | float = 'repeat'
  goal_step: str | None = None
  last_steps: bool = True
  frame_axis: int | None = None

  def __post_init__(self):
    checks.check_positive('num_frames', self.num_frames)
    checks.check_positive('num_actions', self.num_actions)
    if isinstance(self.fill, str):
      checks.check_choice('fill', self.fill, ('repeat', 'zeros'))
    if self.frame_axis is not None:
      checks.to_index('frame_axis', self.frame_axis)


class ChunkReader:
  """Reads the items of `ActionChunks`.

  Attributes:
    episodes: the episodes, with the number of items of each.
  """

  def __init__(self, chunks: ActionChunks, index: Any):
    """Finds the items.

    Args:
      chunks: the shape of an item.
      index: the `Index` of the steps.

    Raises:
      ValueError: if steps do not have the required fields, or `has_action` is
        not one number or bool per step.
    """
    self._chunks, self._index = chunks, index
    layout, lengths = index.layout, index.lengths
    structure = layout.structure
    for name in (_OBSERVATION, _ACTION, chunks.goal_step):
      if name is not None and name not in structure:
        raise ValueError(
            f'ActionChunks need a field {name}, but steps have'
            f' {sorted(structure)}. Map the fields in the function prepare of'
            ' build_index.'
        )
    masks = [_ACTION_MASK]
    if chunks.num_frames > 1:
      masks.append(_OBSERVATION_MASK)
    for name in masks:
      if name in structure:
        raise ValueError(f'There is a field {name} already. Rename it.')
    self._first_row = np.cumsum(lengths) - lengths
    # The number of steps of each episode that have an action.
    self._num_actions = np.maximum(lengths - 1, 0)
    if _HAS_ACTION in structure:
      number = structure[_HAS_ACTION]
      column = layout.columns[number]
      if column.is_string or tuple(column.shape) not in ((), (1,)):
        raise ValueError(
            f'Step field {_HAS_ACTION} must be one number or bool per step, of'
            f' shape () or (1,), but is {column.dtype} {column.shape}.'
        )
      [has_action] = index.take(np.arange(index.num_rows), [number])
      has_rows = lengths > 0
      self._num_actions[has_rows] = np.add.reduceat(
          has_action.ravel() != 0, self._first_row[has_rows], dtype=np.int64
      )
    self.episodes = store_items.Episodes(
        self._first_row,
        lengths,
        lengths if chunks.last_steps else self._num_actions,
    )

  def read(
      self, episode: np.ndarray, step: np.ndarray, decode: Callable[..., Any]
  ) -> dict[str, Any]:
    """Returns items, stacked.

    Args:
      episode: the episode of each item, int64 `[B]`.
      step: the step of each item.
      decode: takes columns and their numbers, and returns them with images and
        strings instead of cells.
    """
    chunks, columns = self._chunks, self._index.layout.columns
    frames = step[:, np.newaxis] + np.arange(1 - chunks.num_frames, 1)
    offsets = np.arange(chunks.num_actions)
    num_actions = self._num_actions[episode][:, np.newaxis, np.newaxis]
    # The actions of a frame before the first step are the first actions.
    observed = np.maximum(frames, 0)
    acted = observed[..., np.newaxis] + offsets
    steps = {
        _OBSERVATION: observed,
        _ACTION: np.minimum(acted, np.maximum(num_actions - 1, 0)),
        None: step,
    }
    leaves: dict[int, np.ndarray] = {}
    for field, rows in steps.items():
      numbers = [
          number
          for number, column in enumerate(columns)
          if field == (column.keys[0] if column.keys[0] in steps else None)
      ]
      first_row = self._first_row[episode].reshape([-1] + [1] * (rows.ndim - 1))
      cells = self._index.take(first_row + rows, numbers)
      for number, leaf in zip(numbers, decode(cells, numbers)):
        if field == _ACTION and chunks.fill != 'repeat':
          fill = 0 if chunks.fill == 'zeros' else chunks.fill
          leaf[acted >= num_actions] = b'' if leaf.dtype == object else fill
        if field == _OBSERVATION and chunks.frame_axis is not None:
          leaf = _concatenate_frames(
              columns[number].name, leaf, chunks.frame_axis
          )
        elif field is not None and chunks.num_frames == 1:
          leaf = leaf[:, 0]
        leaves[number] = leaf
    nest = self._index.layout.nest(leaves)
    ahead = frames[..., np.newaxis] + offsets
    mask = (frames >= 0)[..., np.newaxis] & (ahead < num_actions)
    if chunks.goal_step:
      goal = np.asarray(nest[chunks.goal_step], np.int64)
      mask &= ahead < goal[:, np.newaxis, np.newaxis]
    if chunks.num_frames == 1:
      nest[_ACTION_MASK] = mask[:, 0]
    else:
      nest[_OBSERVATION_MASK], nest[_ACTION_MASK] = frames >= 0, mask
    return nest


def _concatenate_frames(path: str, leaf: np.ndarray, axis: int) -> np.ndarray:
  """Concatenates frames `[B, N, ...]` along an axis of a single frame."""
  shape = list(leaf.shape[2:])
  if not -len(shape) <= axis < len(shape):
    raise ValueError(
        f'frame_axis is {axis}, but {path} has {len(shape)} axes: {shape}.'
        ' Omit frame_axis, decode images (images=), or give an axis that'
        ' every observation has.'
    )
  frames = np.moveaxis(leaf, 1, 0)
  return np.concatenate(list(frames), axis=1 + axis % len(shape))
