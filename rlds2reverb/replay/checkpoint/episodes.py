"""Reads episodes back from the items of a checkpoint.

A checkpoint keeps frames in chunks, and each chunk names its episode and its
first step there. Items refer to chunks, and say which column of a table each
tensor of a chunk is. The frames that no item refers to, such as an episode too
short for one, are not in a checkpoint.

The items are read once, and the chunks twice: for their places, and for their
frames. An episode comes out when its last chunk was read. If the chunks are in
the order of the episodes, as `write_reverb_checkpoint` writes them, only a few
episodes are in memory at a time. A server writes chunks in any order, and then
most of the checkpoint is in memory, though compressed.
"""

import collections
import functools
from typing import Any, Dict, Iterator, List, Set, Tuple

import numpy as np
import pyarrow
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import private
from rlds2reverb.episodes import rlds
from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.server import table_kinds

POLICY_INFO = 'policy_info'

_SNAPPY = pyarrow.Codec('snappy')

# The columns that each chunk has: pairs of the index of a column of the table
# and the index of a tensor of the chunk.
_Columns = Dict[int, Set[Tuple[int, int]]]


def signature_of(table: Any) -> Any:
  """Returns the signature of a table of `records.read_tables`, or None."""
  if not table.HasField('signature'):
    return None
  return private.decode_structure(table.signature)


def read_checkpoint_episodes(
    directory: str, table_name: str, *, whole: bool = False
) -> tf.data.Dataset:
  """Reads the episodes of a table whose items are of `Trajectory` frames.

  An episode is terminal if the discount of its last frame is 0. Short episodes
  travel in batches, see `data_sets.batches_of`.

  Args:
    directory: the checkpoint, as `files.expand` returns it.
    table_name: the name of the table.
    whole: whether every episode must be there from its first step to its last.

  Returns:
    A data set of episodes with stacked steps, which have the seven fields of
    RLDS, and `policy_info` where the frames have any. An episode with a gap in
    the middle comes out as two. With `whole`, an episode that is not whole
    raises a `tf.errors.InvalidArgumentError` instead.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if a file is damaged.
    ValueError: if there is no such table, or its frames are not trajectories.
  """
  index = records_lib.read_index(directory, columns_of=table_name)
  signature = table_kinds.trajectory_signature(
      table_name, signature_of(index.tables[table_name])
  )
  episodes = {
      key: episode
      for key, episode in zip(index.chunks.tolist(), index.episodes.tolist())
      if key in index.columns
  }

  def read():
    waiting = collections.Counter(episodes.values())
    parts = collections.defaultdict(list)
    for batch in records_lib.parse(
        directory, records_lib.CHUNKS, protos.ChunkData
    ):
      found = []
      for chunk in batch:
        if chunk.chunk_key not in episodes:
          continue
        episode = episodes[chunk.chunk_key]
        parts[episode].append(chunk)
        waiting[episode] -= 1
        if not waiting[episode]:
          found += _assemble(parts.pop(episode), index.columns, signature)
      for steps in found if whole else ():
        if not (steps[rlds.IS_FIRST][0] and steps[rlds.IS_LAST][-1]):
          raise ValueError(
              f'Table {table_name!r} of the checkpoint {directory} has parts of'
              ' episodes: its items are sequences that leave frames out or'
              ' overlap, or some were removed. So the episodes cannot be read'
              ' back. A Reverb server gives the items as they are: open the'
              ' checkpoint with reverb_server=True.'
          )
      if found:  # Each element of a generator costs a millisecond.
        yield episode_batches.EpisodeBatch(
            tf.nest.map_structure(lambda *each: np.concatenate(each), *found),
            np.cumsum([0, *(len(steps[rlds.IS_FIRST]) for steps in found)]),
            {},
        )

  rows = lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
  spec = _steps_of(
      tf.nest.map_structure(rows, signature),
      *[tf.TensorSpec([None], tf.bool)] * 3,
  )
  batches = tf.data.Dataset.from_generator(
      read,
      output_signature=episode_batches.EpisodeBatch(
          spec, tf.TensorSpec([None], tf.int64), {}
      ),
  )
  return data_sets.Episodes(batches)


def _assemble(
    chunks: List[Any], columns: _Columns, signature: Any
) -> Iterator[Dict[str, Any]]:
  """Yields the steps of each episode in the chunks of one episode of Reverb."""
  parts = collections.defaultdict(list)
  for chunk in sorted(chunks, key=lambda one: one.sequence_range.start):
    if chunk.delta_encoded:
      raise records_lib.CheckpointError(
          'The chunks of the checkpoint are delta-encoded, which cannot be read'
          ' here. Describe the data that it was made from.'
      )
    for column, index in columns[chunk.chunk_key]:
      values = _decode_tensor(chunk.data.tensors[index])
      steps = chunk.sequence_range.start + np.arange(len(values))
      parts[column].append((steps, values))
  num_columns = len(tf.nest.flatten(signature))
  if len(parts) < num_columns:
    return
  found = [
      list(map(np.concatenate, zip(*parts[column])))
      for column in range(num_columns)
  ]
  common = functools.reduce(np.intersect1d, [steps for steps, _ in found])
  leaves = [
      values[np.intersect1d(common, steps, return_indices=True)[2]]
      for steps, values in found
  ]
  frames = tf.nest.pack_sequence_as(signature, leaves)
  # Frames may be missing, and chunks and sequences may go on into the next
  # episode. An episode of one step is one LAST frame whose next step type is
  # LAST, too. Any other LAST frame that follows a LAST frame is padding.
  is_last = frames.step_type == ts.StepType.LAST
  is_single = is_last & (frames.next_step_type == ts.StepType.LAST)
  is_first = (frames.step_type == ts.StepType.FIRST) | is_single
  is_kept = is_single | ~is_last | ~np.append(False, is_last)[:-1]
  is_terminal = is_last & (frames.discount == 0)
  steps, common = tf.nest.map_structure(
      lambda leaf: leaf[is_kept],
      (_steps_of(frames, is_first, is_last, is_terminal), common),
  )
  is_gap = np.diff(common, prepend=common[:1]) > 1
  starts = np.flatnonzero(steps[rlds.IS_FIRST] | is_gap).tolist()
  bounds = sorted({0, *starts, len(common)})
  for begin, end in zip(bounds, bounds[1:]):
    yield tf.nest.map_structure(lambda leaf: leaf[begin:end], steps)  # pylint: disable=cell-var-from-loop


def _steps_of(
    frames: trajectory.Trajectory, is_first: Any, is_last: Any, is_terminal: Any
) -> Dict[str, Any]:
  """Returns the fields of steps, given frames and flags, or their specs."""
  steps = {
      rlds.OBSERVATION: frames.observation,
      rlds.ACTION: frames.action,
      rlds.REWARD: frames.reward,
      rlds.DISCOUNT: frames.discount,
      rlds.IS_FIRST: is_first,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_terminal,
  }
  if tf.nest.flatten(frames.policy_info):
    steps[POLICY_INFO] = frames.policy_info
  return steps


def _decode_tensor(proto: Any) -> np.ndarray:
  """Returns the tensor that Reverb keeps in a `TensorProto`."""
  dtype = tf.as_dtype(proto.dtype)
  if dtype == tf.string:
    return tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy()
  shape = [dim.size for dim in proto.tensor_shape.dim]
  size = int(np.prod(shape)) * dtype.size
  content = _SNAPPY.decompress(proto.tensor_content, size, asbytes=True)
  return np.frombuffer(content, dtype.as_numpy_dtype).reshape(shape)
