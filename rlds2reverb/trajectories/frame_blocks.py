"""Blocks of consecutive frames, which conversions make and sinks take."""

from typing import Any, NamedTuple

import tensorflow as tf


class FrameBlock(NamedTuple):
  """Frames of one episode, or of several whole ones, with their places.

  A conversion makes blocks of tensors, and sinks, such as Reverb, take them as
  arrays.

  Attributes:
    frames: a `Trajectory` of `[B, ...]`: consecutive frames of one episode; or
      several whole episodes, one after the other.
    episode_ids: int64 `[E]`: the index of each of the `E` episodes in the data
      set.
    row_splits: int64 `[E + 1]`: episode `e` has the frames from `row_splits[e]`
      to `row_splits[e + 1]`.
    step: int64 `[]`: the index of the first frame in its episode, which is 0 if
      there are several episodes.
    fields: a dict of fields of the episodes, every leaf `[E, ...]`: the one
      that identifies them, if one was asked for, or all.
    steps: the steps of the frames with all their fields, `[B, ...]`, if they
      were asked for.
  """

  frames: Any
  episode_ids: Any
  row_splits: Any
  step: Any
  fields: Any = ()
  steps: Any = ()


def slice_frames(frames: Any, begin: int, end: int) -> Any:
  """Returns the rows `[begin, end)` of a nest of arrays `[B, ...]`."""
  return tf.nest.map_structure(lambda leaf: leaf[begin:end], frames)
