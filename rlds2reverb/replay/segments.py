"""Segments: some whole episodes of frames, which are laid out together."""

import bisect
import itertools
from typing import Any, Iterator, List, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.trajectories import frame_blocks

# The largest number of frames of a segment of several episodes. An item takes
# some hundred bytes, so the items of more frames would be a large request.
_MAX_FRAMES = 4096


class Segment(NamedTuple):
  """Whole episodes, one after the other, arrays of NumPy.

  An episode ends with a frame that is LAST. It may be a part of an episode of
  the data set, or several joined (`validation="tf_agents"`). Of a data set of
  sequences, each is an episode.

  Attributes:
    frames: a `Trajectory` of `[B, ...]`.
    row_splits: int64 `[E + 1]`: episode `e` has the frames from `row_splits[e]`
      to `row_splits[e + 1]`.
    episode_ids: what identifies the episode of the data set that each starts
      in, a list `[E]` of JSON values; None for sequences.
    step: the index there of the first frame, int64 `[E]`.
    is_open: whether the data ends before the last episode does.
  """

  frames: Any
  row_splits: np.ndarray
  episode_ids: List[Any]
  step: np.ndarray
  is_open: bool

  @property
  def length(self) -> np.ndarray:
    """The number of frames of each episode, int64 `[E]`."""
    return np.diff(self.row_splits)

  def slice(self, begin: int, end: int) -> 'Segment':
    """Returns the episodes `[begin, end)`."""
    splits = self.row_splits[begin : end + 1]
    return Segment(
        frame_blocks.slice_frames(self.frames, splits[0], splits[-1]),
        splits - splits[0],
        self.episode_ids[begin:end],
        self.step[begin:end],
        self.is_open and end == len(self.episode_ids),
    )

  def choose(self, is_chosen: np.ndarray) -> 'Segment':
    """Returns some episodes, bool `[E]`."""
    if is_chosen.all():
      return self
    length = self.length
    rows = np.repeat(is_chosen, length)
    return Segment(
        tf.nest.map_structure(lambda leaf: leaf[rows], self.frames),
        np.concatenate([[0], np.cumsum(length[is_chosen])]),
        list(itertools.compress(self.episode_ids, is_chosen)),
        self.step[is_chosen],
        bool(self.is_open and is_chosen[-1]),
    )

  def parts(self) -> Iterator['Segment']:
    """Yields segments of fewer frames, unless an episode has more."""
    firsts = find_runs(self.length, _MAX_FRAMES).tolist()
    for begin, end in zip(firsts, [*firsts[1:], len(self.episode_ids)]):
      yield self.slice(begin, end)


def concatenate(parts: Sequence[Any]) -> Any:
  """Returns one nest of arrays of several, one after the other."""
  return tf.nest.map_structure(
      lambda *leaves: np.concatenate(leaves) if leaves[1:] else leaves[0],
      *parts,
  )


def find_runs(sizes: np.ndarray, limit: int) -> np.ndarray:
  """Joins what follows each other into runs that are as large as possible.

  Args:
    sizes: the sizes of what is joined, `[N]`.
    limit: the largest size of a run, unless it consists of one alone.

  Returns:
    The index of the first of each run, `[R]`.
  """
  ends = np.cumsum(sizes).tolist()
  firsts = []
  first = 0
  end = 0
  while first < len(ends):
    firsts.append(first)
    following = bisect.bisect_right(ends, end + limit, first)
    first = max(following, first + 1)
    end = ends[first - 1]
  return np.array(firsts)
