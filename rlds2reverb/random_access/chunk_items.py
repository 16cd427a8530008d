"""The rows of an index that the items of `ActionChunks` have."""

from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from rlds2reverb.random_access import action_chunks
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.store import layout as layout_lib

# The names of `rlds` and of `windows.stacking`, whose modules use TensorFlow.
_OBSERVATION, _ACTION = 'observation', 'action'
_OBSERVATION_MASK, _ACTION_MASK = 'observation_mask', 'action_mask'
_HAS_ACTION = 'has_action'

_COUNTED_ROWS = 1 << 16

# Returns columns of rows, by the numbers of the columns.
Read = Callable[[np.ndarray, Sequence[int]], List[np.ndarray]]


class ChunkItems:
  """The items of `ActionChunks`: every step, or every one with an action.

  Attributes:
    lengths: int64 `[E]`: how many rows each episode has.
    counts: int64 `[E]`: how many items each episode has.
    masks: the shapes of the further fields of items, which are bools.
  """

  def __init__(
      self, index: index_lib.Index, chunks: action_chunks.ActionChunks
  ):
    """Finds the items; see `Items`."""
    self._index, self._chunks = index, chunks
    self._check()
    self.lengths = index.lengths
    # The number of steps that have an action.
    self._acting = self._count_acting()
    self.counts = self.lengths if chunks.last_steps else self._acting
    frames = (chunks.num_frames,)
    self.masks = {
        _OBSERVATION_MASK: frames,
        _ACTION_MASK: (*frames, chunks.num_actions),
    }

  def starts(self, episode: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns the step of items, given their numbers in their episodes."""
    del episode
    return number

  def lead(self, column: layout_lib.Column) -> Tuple[int, ...]:
    """Returns the leading dimensions of a column in an item."""
    return {
        _OBSERVATION: self.masks[_OBSERVATION_MASK],
        _ACTION: self.masks[_ACTION_MASK],
    }.get(column.keys[0], ())

  def make(
      self,
      read: Read,
      episode: np.ndarray,
      first: np.ndarray,
      step: np.ndarray,
  ) -> Dict[str, Any]:
    """Returns items, stacked.

    Args:
      read: see `Read`.
      episode: the episode of each one `[B]`.
      first: the first row of each one's episode `[B]`.
      step: the step of each one `[B]`.
    """
    chunks, layout = self._chunks, self._index.layout
    of: Dict[str, List[int]] = {_OBSERVATION: [], _ACTION: [], '': []}
    for number, column in enumerate(layout.columns):
      name = column.keys[0]
      of[name if name in of else ''].append(number)
    found: Dict[int, np.ndarray] = {}
    frames = chunks.frames(step)
    rows = first[:, np.newaxis] + np.maximum(frames, 0)
    found.update(zip(of[_OBSERVATION], read(rows, of[_OBSERVATION])))
    found.update(zip(of[''], read(first + step, of[''])))
    actions, stop = chunks.actions(step), self._acting[episode]
    past = stop[:, np.newaxis, np.newaxis]
    rows = np.minimum(actions, np.maximum(past - 1, 0))
    rows += first[:, np.newaxis, np.newaxis]
    found.update(zip(of[_ACTION], read(rows, of[_ACTION])))
    if chunks.fill != 'repeat':
      beyond = actions >= past
      fill = 0 if chunks.fill == 'zeros' else chunks.fill
      for number in of[_ACTION]:
        is_text = found[number].dtype == object
        found[number][beyond] = b'' if is_text else fill
    nest = layout.nest([found[number] for number in range(len(found))])
    goal = chunks.goal_step and nest[chunks.goal_step]
    nest[_OBSERVATION_MASK] = frames >= 0
    nest[_ACTION_MASK] = chunks.action_mask(step, stop, goal)
    return nest

  def _count_acting(self) -> np.ndarray:
    """Returns how many steps of each episode have an action."""
    lengths = self.lengths
    if _HAS_ACTION not in self._index.layout.structure:
      return np.maximum(lengths - 1, 0)
    number = self._index.layout.structure[_HAS_ACTION]
    ends = np.cumsum(lengths)
    counts = np.zeros(len(lengths), np.int64)
    for begin in range(0, self._index.num_rows, _COUNTED_ROWS):
      rows = np.arange(begin, min(begin + _COUNTED_ROWS, ends[-1]))
      [has_action] = self._index.read(rows, [number])
      np.add.at(counts, np.searchsorted(ends, rows[has_action], 'right'), 1)
    return counts

  def _check(self) -> None:
    structure = self._index.layout.structure
    if self._index.is_trajectory:
      raise ValueError(
          'ActionChunks are made of steps, but the index has the frames of'
          ' trajectories: build it without as_trajectories.'
      )
    for name in (_OBSERVATION, _ACTION, self._chunks.goal_step):
      if name is not None and name not in structure:
        raise ValueError(
            f'ActionChunks need a field {name}, but steps have'
            f' {sorted(structure)}. Map the fields in the function prepare of'
            ' build_index.'
        )
    for name in (_OBSERVATION_MASK, _ACTION_MASK):
      if name in structure:
        raise ValueError(f'There is a field {name} already. Rename it.')
