"""Blocks of consecutive frames, which conversions make and sinks take."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class FrameBlock(NamedTuple):
  """Frames of one episode, or of several whole ones, with their places.

  A conversion makes blocks of tensors. Sinks, such as Reverb, take blocks of
  arrays, whose episodes have the identifiers that the user chose.

  Attributes:
    frames: a `Trajectory` of `[B, ...]`: consecutive frames of one episode; or
      several whole episodes, one after the other; or whole sequences, one after
      the other.
    episode_ids: what identifies each of the `E` episodes: its index in the data
      set, int64 `[E]`; or a list of JSON values, which is `[None]` if the block
      consists of sequences.
    row_splits: int64 `[E + 1]`: episode `e` has the frames from `row_splits[e]`
      to `row_splits[e + 1]`.
    step: int64 `[]`: the index of the first frame in its episode, which is 0 if
      there are several episodes; of sequences, its index in the data.
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


def slice_block(block: FrameBlock, begin: int, end: int) -> FrameBlock:
  """Returns the frames `[begin, end)` of a block, as a block.

  All its episodes stay; those that are cut off have no frames left.
  """
  return block._replace(
      frames=slice_frames(block.frames, begin, end),
      row_splits=np.clip(block.row_splits - begin, 0, end - begin),
      step=block.step + begin,
      steps=slice_frames(block.steps, begin, end),
  )


def slice_episodes(block: FrameBlock, begin: int, end: int) -> FrameBlock:
  """Returns the episodes `[begin, end)` of a block, as a block."""
  splits = block.row_splits[begin : end + 1]
  return block._replace(
      frames=slice_frames(block.frames, splits[0], splits[-1]),
      episode_ids=block.episode_ids[begin:end],
      row_splits=splits - splits[0],
      fields=slice_frames(block.fields, begin, end),
      steps=slice_frames(block.steps, splits[0], splits[-1]),
  )


def choose_episodes(block: FrameBlock, is_chosen: np.ndarray) -> FrameBlock:
  """Returns some episodes of a block, bool `[E]`, as a block."""
  if is_chosen.all():
    return block
  lengths = np.diff(block.row_splits)
  rows = np.repeat(is_chosen, lengths)
  choose = lambda nest, chosen: tf.nest.map_structure(
      lambda leaf: leaf[chosen], nest
  )
  return block._replace(
      frames=choose(block.frames, rows),
      episode_ids=list(itertools.compress(block.episode_ids, is_chosen)),
      row_splits=np.concatenate([[0], np.cumsum(lengths[is_chosen])]),
      fields=choose(block.fields, is_chosen),
      steps=choose(block.steps, rows),
  )
