"""History and future actions of single steps, found by index."""

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Union

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

  The items are those of `windows.stack_and_chunk`. One frame and K=2, as in ACT
  and LeRobot, for four steps; observations and chunks have no axis of frames:

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
    num_frames: `N`, how many observations an item has. With one, which is the
      default, a batch has observations `[B, ...]`, actions `[B, K, ...]`,
      `action_mask` `[B, K]` and no `observation_mask`. With more, it has
      observations `[B, N, ...]`, actions `[B, N, K, ...]`, `action_mask`
      `[B, N, K]` and `observation_mask` `[B, N]`.
    num_actions: `K`, how many actions there are for each of them.
    fill: the values after the last action: `'repeat'`, `'zeros'` or a number.
    goal_step: the name of the field that is the index of the step's goal, as
      `RelabelGoals` adds it. Actions from there on are masked.
    last_steps: whether the last step of an episode is an item, too. It has no
      action of its own, unless a field `has_action`, as `StepMapping` makes it,
      says so.
    frame_axis: the axis of an observation along which its frames are
      concatenated, as in `windows.stack_and_chunk`: with -1 and N=4, decoded
      images `[84, 84, 1]` become `[84, 84, 4]`. By default frames have an axis
      of their own. A `transform` gets the concatenated frames.
  """

  num_frames: int = 1
  num_actions: int = 1
  fill: Union[str, float] = 'repeat'
  goal_step: Optional[str] = None
  last_steps: bool = True
  frame_axis: Optional[int] = None

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
    episodes: the episodes, with the number of their items.
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
    layout, lengths = index.layout, index.lengths
    structure = layout.structure
    for name in (_OBSERVATION, _ACTION, chunks.goal_step):
      if name is not None and name not in structure:
        raise ValueError(
            f'ActionChunks need a field {name}, but steps have'
            f' {sorted(structure)}. Map the fields in the function prepare of'
            ' build_index.'
        )
    masks = [_ACTION_MASK] + [_OBSERVATION_MASK] * (chunks.num_frames > 1)
    for name in masks:
      if name in structure:
        raise ValueError(f'There is a field {name} already. Rename it.')
    self._first = np.cumsum(lengths) - lengths
    # How many steps of each episode have an action.
    self._acting = np.maximum(lengths - 1, 0)
    if _HAS_ACTION in structure:
      place = layout.places[structure[_HAS_ACTION]]
      is_true = index.groups[place.group][:, place.begin]
      some = lengths > 0
      self._acting[some] = np.add.reduceat(
          is_true, self._first[some], dtype=np.int64
      )
    counts = lengths if chunks.last_steps else self._acting
    self.episodes = store_items.Episodes(self._first, lengths, counts)

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
    }
    numbers: Dict[str, List[int]] = {}
    for number, column in enumerate(layout.columns):
      name = column.keys[0] if column.keys[0] in steps else ''
      numbers.setdefault(name, []).append(number)
    leaves: Dict[int, np.ndarray] = {}
    for name, some in numbers.items():
      places = steps.get(name, step)
      first = self._first[episode].reshape([-1] + [1] * (places.ndim - 1))
      found = decoded(self._index.take(first + places, some), some)
      if name == _ACTION and chunks.fill != 'repeat':
        fill = 0 if chunks.fill == 'zeros' else chunks.fill
        for leaf in found:
          leaf[chosen >= past] = b'' if leaf.dtype == object else fill
      if name == _OBSERVATION and chunks.frame_axis is not None:
        found = [
            _concatenate_frames(
                layout.columns[number].name, leaf, chunks.frame_axis
            )
            for number, leaf in zip(some, found)
        ]
      leaves.update(zip(some, found))
    if chunks.num_frames == 1:
      for name in steps:
        if name == _OBSERVATION and chunks.frame_axis is not None:
          continue  # It has no axis of frames.
        for number in numbers.get(name, ()):
          leaves[number] = leaves[number][:, 0]
    nest = layout.nest(leaves)
    mask = (frames >= 0)[..., np.newaxis]
    mask = mask & (frames[..., np.newaxis] + ahead < past)
    if chunks.goal_step:
      goal = np.asarray(nest[chunks.goal_step], np.int64)
      mask &= frames[..., np.newaxis] + ahead < goal[:, np.newaxis, np.newaxis]
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
        ' Leave frame_axis out, decode images (images=), or give an axis that'
        ' every observation has.'
    )
  return np.concatenate(
      [leaf[:, number] for number in range(leaf.shape[1])],
      axis=1 + axis % len(shape),
  )
