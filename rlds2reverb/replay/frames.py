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
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import blocks as blocks_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import chunks
from rlds2reverb.replay import items as items_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

_LARGE_STEP_BYTES = 1 << 10


class FrameSource(NamedTuple):
  """The frames to write, and which items to make of them.

  Attributes:
    spec: the spec of one frame, a `Trajectory`.
    tables: which items go into which table.
    groups: the columns that share chunks.
    block_length: the largest number of frames that are laid out at once.
    blocks: a data set of `FrameBlock`s of any length.
    settings: everything besides the data that changes the frames, as a JSON
      value.
    options: how they are converted. Their report is filled by `frames`, which
      logs it at its end; their identity is that of the items.
    of_sequences: whether the blocks consist of whole sequences, which are the
      items.
    first_episode: what identifies the first episode, if they are identified by
      their index.
    watch: a function that is called with each block of `frames`.
  """

  spec: trajectory.Trajectory
  tables: List[items_lib.TableItems]
  groups: List[chunks.ColumnGroup]
  block_length: int
  blocks: tf.data.Dataset
  settings: Any
  options: options_lib.ConversionOptions
  of_sequences: bool = False
  first_episode: int = 0
  watch: Callable[[frame_blocks.FrameBlock], None] = lambda block: None

  def step_types(self) -> Iterator[np.ndarray]:
    """Yields the step types of each block, int32 `[B]`."""
    return self.blocks.map(
        lambda block: block.frames.step_type
    ).as_numpy_iterator()

  def frames(self) -> Iterator[frame_blocks.FrameBlock]:
    """Yields the frames in the blocks that are laid out at once.

    At the end it logs warnings about data that looks wrong.
    """
    blocks = self.blocks.prefetch(1).with_options(_unoptimized())
    for block in blocks.as_numpy_iterator():
      block = block._replace(
          episode_ids=[None] if self.of_sequences else self._episode_ids(block),
          step=int(block.step),
      )
      length = len(block.frames.step_type)
      longest = length if len(block.episode_ids) > 1 else self.block_length
      for begin in range(0, length, longest):
        end = min(begin + longest, length)
        part = frame_blocks.slice_block(block, begin, end)
        self.watch(part)
        yield part
    if self.options.report is not None:
      self.options.report.warn()

  def _episode_ids(self, block) -> List[Any]:
    """Returns the identifier of each episode of a block, a JSON value."""
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
  if options.chunk_length is None:
    groups = chunks.default_groups(spec)
  else:
    groups = chunks.one_group(spec, options.chunk_length)
  # Blocks consist of whole chunks, so that where a chunk starts does not depend
  # on how the frames come in blocks.
  longest = max(group.chunk_length for group in groups)
  count = max(blocks_lib.default_block_length(spec) // longest, 1)
  block_length = count * longest
  # Stacked episodes of small steps, which take little memory, are cut into
  # blocks after the pipeline: a pipeline that does not cut is built sooner.
  comes_whole = (
      steps_lib.steps_spec(data.element_spec).stacked
      and blocks_lib.step_bytes(spec) < _LARGE_STEP_BYTES
  )
  blocks = conversion.trajectory_blocks(
      data, options, block_length=None if comes_whole else block_length
  )
  settings = {
      'frames': _columns(spec),
      'terminal_discount': options.rules.terminal_discount,
  }
  return FrameSource(
      spec, list(tables), groups, block_length, blocks, settings, options
  )


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


def _check_sequences(spec) -> None:
  shape = spec.step_type.shape
  if shape.rank == 1 and shape[0] is not None:
    return
  found = {
      0: 'one-step frames',
      1: 'blocks of frames, of no fixed length',
  }.get(shape.rank, 'batches of sequences, which unbatch() takes apart')
  raise ValueError(
      'What is written is an RLDS data set, as it is before any conversion; or'
      ' a data set of sequences of a fixed length, Trajectories [L, ...] as of'
      f' convert_rlds_to_sequences. But these are {found}: their step_type has'
      f' the spec {spec.step_type}.'
  )


def _source_of_sequences(data, tables, options) -> FrameSource:
  _check_sequences(data.element_spec)
  if options != options_lib.ConversionOptions(
      identity=options.identity, one_episode_chunks=options.one_episode_chunks
  ):
    raise ValueError(
        'Sequences are written as they are: policy_info_fn, episode_id,'
        ' chunk_length, rules and report go with RLDS data alone.'
    )
  length = data.element_spec.step_type.shape[0]
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
    return frame_blocks.FrameBlock(
        rows,
        episode_ids=index[tf.newaxis],
        row_splits=tf.stack([0, num_rows]),
        step=index * count * length,
    )

  blocks = data.batch(count).enumerate().map(join)
  tables = [
      dataclasses.replace(
          table, windows=windows_lib.Windows(length, length, 'cross')
      )
      for table in tables
  ]
  groups = chunks.one_group(spec, length)
  settings = {'sequences': _columns(data.element_spec)}
  return FrameSource(
      spec,
      tables,
      groups,
      count * length,
      blocks,
      settings,
      options,
      of_sequences=True,
  )
