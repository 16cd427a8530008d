"""`FrameSource`: the frames of a data set, read in segments of episodes."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

# The maximum number of frames of a segment of several episodes. An item takes
# some hundred bytes.
_MAX_FRAMES = 4096
_LARGE_STEP_BYTES = 1 << 10
# A sampler reads complete chunks, so small chunks sample quickly. But an item
# should not need many chunks.
_CHUNK_BYTES = 8 << 10
_MAX_CHUNK_LENGTH = 64
# If a column has this size, the cost of a chunk in the server is negligible.
_LARGE_COLUMN_BYTES = 1 << 10
_LARGE_CHUNK_BYTES = 32 << 10
_STRING_FACTOR = 3  # An encoded image is larger than other strings.


class Segment(NamedTuple):
  """Joined `FrameBlock`s: complete episodes, which are laid out together.

  Only the last segment of all may end in the middle of an episode. An episode
  ends here at a LAST frame; with `validation="tf_agents"` that may differ from
  the end of an episode of the data set. Each sequence of a data set of
  sequences is one episode.

  Attributes:
    frames: a `Trajectory` of arrays `[B, ...]`.
    row_splits: int64 `[E + 1]`: episode `e` has the frames from `row_splits[e]`
      to `row_splits[e + 1]`.
    episode_ids: for each episode, the id of the data set's episode that has its
      first frame, a list `[E]` of JSON values; None for sequences.
    step: the index of this frame in the data set's episode, int64 `[E]`.
    is_open: whether the data ends before the last episode ends.
  """

  frames: Any
  row_splits: np.ndarray
  episode_ids: list[Any]
  step: np.ndarray
  is_open: bool

  @property
  def length(self) -> np.ndarray:
    """The number of frames of each episode, int64 `[E]`."""
    return np.diff(self.row_splits)

  @property
  def is_end(self) -> np.ndarray:
    """Whether each episode ends, bool `[E]`."""
    count = len(self.episode_ids)
    return np.arange(count) < count - self.is_open

  def choose(self, episodes: np.ndarray) -> 'Segment':
    """Returns a segment of the episodes of ascending indices, int64 `[N]`."""
    if len(episodes) == len(self.episode_ids):
      return self
    length = self.length[episodes]
    _, rows = windows_lib.expand_ranges(self.row_splits[episodes], length, 1)
    return Segment(
        tf.nest.map_structure(lambda leaf: leaf[rows], self.frames),
        np.cumsum(np.append(0, length)),
        [self.episode_ids[index] for index in episodes.tolist()],
        self.step[episodes],
        bool(self.is_open and not self.is_end[episodes].all()),
    )

  def parts(self) -> Iterator['Segment']:
    """Yields segments of at most `_MAX_FRAMES` frames, or of one episode."""
    starts = group_starts(self.length, _MAX_FRAMES)
    # The first start is 0, so the first part of the split is empty.
    for episodes in np.split(np.arange(len(self.episode_ids)), starts)[1:]:
      yield self.choose(episodes)


class FrameSource(NamedTuple):
  """The frames to write, and the tables of their items.

  Attributes:
    spec: the spec of one frame, a `Trajectory`.
    tables: the items of each table.
    chunk_length: the maximum number of rows of a chunk.
    blocks: a data set of `FrameBlock`s, or of batches `[N, L, ...]`.
    settings: everything else that changes the frames, as a JSON value.
    options: how they are converted. `segments` fills their report, and logs it
      at its end. Their identity is the identity of the items.
    of_sequences: whether the items are the sequences of a data set.
    first_episode: the index of the first episode in its split, if episodes are
      identified by their index.
    watch: a function that is called with each block before it is written.
  """

  spec: trajectory.Trajectory
  tables: list[items_lib.TableItems]
  chunk_length: int
  blocks: tf.data.Dataset
  settings: Any
  options: options_lib.ConversionOptions
  of_sequences: bool = False
  first_episode: int = 0
  watch: Callable[[conversion.FrameBlock], None] = lambda block: None

  def segments(self) -> Iterator[Segment]:
    """Yields all episodes in segments, and logs the report at the end.

    The blocks of a long episode stay in memory until it ends. If reading fails,
    the complete episodes before the error come first.
    """
    blocks = self.blocks.prefetch(1).with_options(_unoptimized())
    read = self._sequences if self.of_sequences else self._episodes
    yield from read(blocks.as_numpy_iterator())
    if self.options.report is not None:
      self.options.report.warn()

  def _sequences(self, batches) -> Iterator[Segment]:
    step = 0
    for batch in batches:
      splits = np.arange(len(batch.step_type) + 1) * self.chunk_length
      frames = tf.nest.map_structure(
          lambda leaf: leaf.reshape(splits[-1], *leaf.shape[2:]),
          batch,
      )
      ids = [None] * (len(splits) - 1)
      yield Segment(frames, splits, ids, step + splits[:-1], False)
      step += splits[-1]

  def _episodes(self, blocks) -> Iterator[Segment]:
    pending: list[conversion.FrameBlock] = []
    num_frames, min_frames = 0, steps_lib.default_block_length(self.spec)
    try:
      for block in blocks:
        types = block.frames.step_type
        if not len(types):
          continue
        self.watch(block)
        pending.append(block)
        num_frames += len(types)
        if num_frames >= min_frames and types[-1] == ts.StepType.LAST:
          segment, pending, num_frames = self._join(pending), [], 0
          yield from segment.parts()
    except Exception:
      if pending:
        segment = self._join(pending)
        yield from segment.choose(np.flatnonzero(segment.is_end)).parts()
      raise
    if pending:
      yield from self._join(pending).parts()

  def _join(self, blocks) -> Segment:
    """Joins consecutive blocks into a segment."""
    frames = concatenate([block.frames for block in blocks])
    count = len(frames.step_type)
    ends = np.flatnonzero(frames.step_type == ts.StepType.LAST) + 1
    splits = np.unique([0, *ends, count])
    # The parts of episodes of the data set: their first rows, ids and steps.
    lengths = np.concatenate([np.diff(block.row_splits) for block in blocks])
    starts = np.cumsum(lengths) - lengths
    ids = [i for block in blocks for i in self._episode_ids(block)]
    steps = [block.step for block in blocks for _ in block.row_splits[1:]]
    part = np.searchsorted(starts, splits[:-1], 'right') - 1
    return Segment(
        frames,
        splits,
        [ids[index] for index in part.tolist()],
        np.array(steps)[part] + splits[:-1] - starts[part],
        not len(ends) or ends[-1] < count,
    )

  def _episode_ids(self, block) -> list[Any]:
    """Returns the identifier of each episode of a block, a JSON value."""
    if self.options.episode_id is None:
      return (self.first_episode + block.episode_indices).tolist()
    return [
        episode_id.decode(errors='backslashreplace')
        if isinstance(episode_id, bytes)
        else episode_id
        for episode_id in block.fields[self.options.episode_id].tolist()
    ]


def concatenate(parts: Sequence[Any]) -> Any:
  """Concatenates nests of arrays along their leading dimension."""
  return tf.nest.map_structure(
      lambda *leaves: np.concatenate(leaves) if leaves[1:] else leaves[0],
      *parts,
  )


def group_starts(sizes: np.ndarray, limit: int) -> np.ndarray:
  """Groups consecutive elements, and returns the start of each group, `[G]`.

  Args:
    sizes: the size of each element, `[N]`.
    limit: the maximum total size of a group. A larger element is a group alone.
  """
  starts: list[int] = []
  total = math.inf
  for index, size in enumerate(sizes.tolist()):
    total += size
    if total > limit:
      starts.append(index)
      total = size
  return np.array(starts, np.int64)


def make_frame_source(
    data: tf.data.Dataset,
    tables: items_lib.TableItems | Sequence[items_lib.TableItems],
    options: options_lib.ConversionOptions | None = None,
) -> FrameSource:
  """Prepares the frames of a data set for writing.

  Args:
    data: an RLDS data set; or a data set of sequences, `Trajectory`s
      `[L, ...]`, each of which is written as one item.
    tables: the items of each table.
    options: how the data is converted. Sequences are written unchanged, so they
      allow only `identity` and `one_episode_chunks`.

  Raises:
    ValueError: if `data` is neither, or an argument does not apply to it.
  """
  options = options_lib.complete(options)
  if isinstance(tables, items_lib.TableItems):
    tables = [tables]
  if isinstance(data.element_spec, trajectory.Trajectory):
    return _source_of_sequences(data, tables, options)
  for table in tables:
    if options.episode_id is not None and table.crosses_episodes:
      raise ValueError(
          f'The items of table {table.table_name!r} cross episodes, so they'
          ' depend on the order of the data set, but keys from an episode_id do'
          ' not. Remove episode_id, or choose another end of windows.'
      )
  if options.report is None:
    options = dataclasses.replace(options, report=report_lib.ConversionReport())
  spec = specs.frame_spec(data.element_spec, options.policy_info_fn)
  chunk_length = options.chunk_length
  if chunk_length is None:
    chunk_length = _default_chunk_length(spec)
  checks.check_positive('chunk_length', chunk_length)
  # Stacked episodes of small steps take little memory, so the pipeline need not
  # cut them into blocks: a pipeline without cutting is built in less time.
  is_stacked = not isinstance(
      data.element_spec[rlds.STEPS], tf.data.DatasetSpec
  )
  block_length = steps_lib.default_block_length(spec)
  if is_stacked and steps_lib.estimate_step_bytes(spec) < _LARGE_STEP_BYTES:
    block_length = None
  return FrameSource(
      spec,
      list(tables),
      chunk_length,
      conversion.trajectory_blocks(data, options, block_length=block_length),
      {
          'frames': _columns(spec),
          'terminal_discount': options.rules.terminal_discount,
      },
      options,
  )


def _default_chunk_length(spec: Any) -> int:
  """Returns a chunk length with which items are sampled quickly."""
  sizes = [
      steps_lib.estimate_step_bytes(leaf)
      * (_STRING_FACTOR if leaf.dtype == tf.string else 1)
      for leaf in tf.nest.flatten(spec)
  ]
  is_large = max(sizes) >= _LARGE_COLUMN_BYTES
  limit = _LARGE_CHUNK_BYTES if is_large else _CHUNK_BYTES
  return min(max(limit // sum(sizes), 1), _MAX_CHUNK_LENGTH)


def _unoptimized() -> tf.data.Options:
  """Returns options that make a pipeline start faster, for small pushes.

  Optimizing and tuning it takes longer than reading some thousand steps.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  options.experimental_optimization.inject_prefetch = False
  return options


def _columns(spec):
  """Returns the path, dtype and shape of every column, as a JSON value."""
  return [
      [paths.name_of(path), leaf.dtype.name, str(leaf.shape)]
      for path, leaf in tree.flatten_with_path(spec)
  ]


def _source_of_sequences(data, tables, options) -> FrameSource:
  shape = data.element_spec.step_type.shape
  if shape.rank != 1 or shape[0] is None:
    raise ValueError(
        'The data must be an RLDS data set, before any conversion; or a data'
        ' set of sequences of a fixed length, Trajectories [L, ...], as'
        ' convert_rlds_to_sequences returns them (use unbatch() if they are'
        f' batched). But its step_type has the shape {shape}.'
    )
  allowed = [
      items_lib.TableItems(table.table_name, priority=table.priority)
      for table in tables
  ]
  if allowed != list(tables) or options != options_lib.ConversionOptions(
      identity=options.identity, one_episode_chunks=options.one_episode_chunks
  ):
    raise ValueError(
        'Sequences are written unchanged, so TableItems may only have a'
        ' priority, and the options only identity and one_episode_chunks. The'
        ' other settings are for RLDS data.'
    )
  length = shape[0]
  spec = steps_lib.unstack_spec(data.element_spec)
  windows = windows_lib.Windows(length, length, 'cross')
  return FrameSource(
      spec,
      [dataclasses.replace(table, windows=windows) for table in tables],
      length,
      data.batch(max(steps_lib.default_block_length(spec) // length, 1)),
      {'sequences': _columns(data.element_spec)},
      options,
      of_sequences=True,
  )
