"""Turns RLDS data, or sequences, into blocks of frames that can be laid out."""

import dataclasses
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Union,
)

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import segments as segments_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

_LARGE_STEP_BYTES = 1 << 10
# A sampler reads whole chunks, so chunks of few bytes sample quickly. But the
# rows of an item should not be spread over many chunks either.
_CHUNK_BYTES = 8 << 10
_MAX_CHUNK_LENGTH = 64
# For rows of this size, the server's overhead for a chunk hardly counts.
_LARGE_ROW_BYTES = 1 << 10
_LARGE_CHUNK_BYTES = 32 << 10
_STRING_FACTOR = 3  # An encoded image is larger than other strings.


class FrameSource(NamedTuple):
  """The frames to write, and which items to make of them.

  Attributes:
    spec: the spec of one frame, a `Trajectory`.
    tables: which items go into which table.
    chunk_length: the largest number of rows of a chunk.
    blocks: a data set of `FrameBlock`s of any length.
    settings: everything besides the data that changes the frames, as a JSON
      value.
    options: how they are converted. Their report is filled by `segments`, which
      logs it at its end; their identity is that of the items.
    of_sequences: whether the blocks consist of whole sequences, which are the
      items.
    first_episode: what identifies the first episode, if they are identified by
      their index.
    watch: a function that is called with each block.
  """

  spec: trajectory.Trajectory
  tables: List[items_lib.TableItems]
  chunk_length: int
  blocks: tf.data.Dataset
  settings: Any
  options: options_lib.ConversionOptions
  of_sequences: bool = False
  first_episode: int = 0
  watch: Callable[[frame_blocks.FrameBlock], None] = lambda block: None

  def segments(self) -> Iterator[segments_lib.Segment]:
    """Yields all episodes, some at a time; at the end the report is logged.

    The blocks of a long episode are held until it ends. If reading fails, the
    whole episodes before come first.
    """
    held: List[frame_blocks.FrameBlock] = []
    blocks = self.blocks.prefetch(1).with_options(_unoptimized())
    try:
      for block in blocks.as_numpy_iterator():
        if not len(block.frames.step_type):
          continue
        self.watch(block)
        held.append(block)
        if self.of_sequences or block.frames.step_type[-1] == ts.StepType.LAST:
          segment, held = self._join(held), []
          yield from segment.parts()
    except Exception:
      if held:
        segment = self._join(held)
        if len(segment.episode_ids) > 1:
          yield segment.slice(0, len(segment.episode_ids) - 1)
      raise
    if held:
      yield from self._join(held)._replace(is_open=True).parts()
    if self.options.report is not None:
      self.options.report.warn()

  def _join(self, blocks) -> segments_lib.Segment:
    """Joins consecutive blocks into a segment."""
    frames = segments_lib.concatenate([block.frames for block in blocks])
    count = len(frames.step_type)
    # The episodes of the data set: their first rows, and the steps these are.
    starts, steps, ids, begin = [], [], [], 0
    for block in blocks:
      found = self._episode_ids(block)
      starts.append(block.row_splits[:-1] + begin)
      steps += [block.step] * len(found)
      ids += found
      begin += len(block.frames.step_type)
    if self.of_sequences:
      splits = np.arange(0, count + 1, self.chunk_length)
    else:
      is_last = frames.step_type == ts.StepType.LAST
      splits = np.unique([0, *(np.flatnonzero(is_last) + 1), count])
    starts = np.concatenate(starts)
    of = np.searchsorted(starts, splits[:-1], 'right') - 1
    return segments_lib.Segment(
        frames,
        splits,
        [ids[index] for index in of.tolist()],
        np.array(steps)[of] + splits[:-1] - starts[of],
        False,
    )

  def _episode_ids(self, block) -> List[Any]:
    """Returns the identifier of each episode of a block, a JSON value."""
    if self.of_sequences:
      return [None]
    if self.options.episode_id is None:
      return (self.first_episode + block.episode_ids).tolist()
    return [
        each.decode(errors='backslashreplace')
        if isinstance(each, bytes)
        else each
        for each in block.fields[self.options.episode_id].tolist()
    ]


def make_frame_source(
    data: tf.data.Dataset,
    tables: Union[items_lib.TableItems, Sequence[items_lib.TableItems]],
    options: Optional[options_lib.ConversionOptions] = None,
) -> FrameSource:
  """Prepares the frames of a data set for writing.

  Args:
    data: an RLDS data set; or a data set of sequences, `Trajectory`s
      `[L, ...]`, each of which is written as one item.
    tables: which items go into which table.
    options: how the data is converted. Sequences are written as they are, so
      for them only `identity` can be set.

  Raises:
    ValueError: if `data` is neither of the two, or an argument does not go with
      it.
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
          ' depend on the order of the data set, and an episode_id is for keys'
          ' that do not. Leave it out, or choose another end of windows.'
      )
  if options.report is None:
    options = dataclasses.replace(options, report=report_lib.ConversionReport())
  spec = specs.frame_spec(data.element_spec, options.policy_info_fn)
  chunk_length = options.chunk_length
  if chunk_length is None:
    chunk_length = default_chunk_length(spec)
  checks.check_positive('chunk_length', chunk_length)
  # Stacked episodes of small steps, which take little memory, are cut into
  # blocks after the pipeline: a pipeline that does not cut is built sooner.
  is_stacked = steps_lib.steps_spec(data.element_spec).stacked
  block_length = blocks_lib.default_block_length(spec)
  if is_stacked and blocks_lib.step_bytes(spec) < _LARGE_STEP_BYTES:
    block_length = None
  blocks = conversion.trajectory_blocks(
      data, options, block_length=block_length
  )
  settings = {
      'frames': _columns(spec),
      'terminal_discount': options.rules.terminal_discount,
  }
  tables = list(tables)
  return FrameSource(spec, tables, chunk_length, blocks, settings, options)


def default_chunk_length(spec: Any) -> int:
  """Returns the length of chunks with which items are sampled quickly.

  Args:
    spec: the spec of one frame.
  """
  sizes = [
      blocks_lib.step_bytes(leaf)
      * (_STRING_FACTOR if leaf.dtype == tf.string else 1)
      for leaf in tf.nest.flatten(spec)
  ]
  is_large = max(sizes) >= _LARGE_ROW_BYTES
  limit = _LARGE_CHUNK_BYTES if is_large else _CHUNK_BYTES
  return min(max(limit // sum(sizes), 1), _MAX_CHUNK_LENGTH)


def _unoptimized() -> tf.data.Options:
  """Returns options that start a pipeline sooner, for the sake of small pushes.

  TensorFlow takes longer to rewrite the pipeline, and to tune it, than to read
  some thousand steps, and a long push is no faster for it.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  options.experimental_optimization.inject_prefetch = False
  return options


def _columns(spec):
  """Returns the path, dtype and shape of every column, as a JSON value."""
  return [
      [steps_lib.field_path(path), leaf.dtype.name, str(leaf.shape)]
      for path, leaf in tree.flatten_with_path(spec)
  ]


def _source_of_sequences(data, tables, options) -> FrameSource:
  shape = data.element_spec.step_type.shape
  if shape.rank != 1 or shape[0] is None:
    found = {
        0: 'one-step frames',
        1: 'blocks of frames, of no fixed length',
    }.get(shape.rank, 'batches of sequences, which unbatch() takes apart')
    raise ValueError(
        'What is written is an RLDS data set, as it is before any conversion;'
        ' or a data set of sequences of a fixed length, Trajectories [L, ...]'
        f' as of convert_rlds_to_sequences. But these are {found}: their'
        f' step_type has the spec {data.element_spec.step_type}.'
    )
  if options != options_lib.ConversionOptions(
      identity=options.identity, one_episode_chunks=options.one_episode_chunks
  ):
    raise ValueError(
        'Sequences are written as they are: policy_info_fn, episode_id,'
        ' chunk_length, rules and report go with RLDS data alone.'
    )
  length = shape[0]
  for table in tables:
    if table != items_lib.TableItems(table.table_name, priority=table.priority):
      raise ValueError(
          f'The items of table {table.table_name!r} are the sequences of the'
          ' data set, so its TableItems can have a priority and nothing else.'
      )
  spec = steps_lib.without_time(data.element_spec)
  count = max(blocks_lib.default_block_length(spec) // length, 1)

  def join(index, sequences):
    rows = tf.nest.map_structure(
        lambda leaf: tf.reshape(leaf, tf.concat([[-1], tf.shape(leaf)[2:]], 0)),
        sequences,
    )
    num_rows = tf.size(rows.step_type, tf.int64)
    splits, step = tf.stack([0, num_rows]), index * count * length
    return frame_blocks.FrameBlock(rows, index[tf.newaxis], splits, step)

  windows = windows_lib.Windows(length, length, 'cross')
  return FrameSource(
      spec,
      [dataclasses.replace(table, windows=windows) for table in tables],
      length,
      data.batch(count).enumerate().map(join),
      {'sequences': _columns(data.element_spec)},
      options,
      of_sequences=True,
  )
