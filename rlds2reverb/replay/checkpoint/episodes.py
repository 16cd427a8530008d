"""Reads episodes back from the items of a checkpoint.

A checkpoint stores frames in chunks, and each chunk has the key of its episode
and the range of its steps. Items refer to chunks, and map the tensors of a
chunk to the columns of a table. Frames that no item refers to, such as an
episode too short for an item, are not in a checkpoint.

The items are read once, and the chunks twice: for the index, and for their
frames. An episode is complete when its last chunk was read. If the chunks are
in the order of the episodes, as `write_reverb_checkpoint` writes them, only a
few episodes are in memory at a time. A server writes chunks in any order, and
then most of the checkpoint is in memory, though compressed.
"""

import collections
from collections.abc import Iterator
import functools
from typing import Any

import numpy as np
import pyarrow
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import tf_private
from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay.server import tables as tables_lib

POLICY_INFO = 'policy_info'

_SNAPPY = pyarrow.Codec('snappy')

# For the key of each chunk, pairs of the index of a column of the table and the
# index of its tensor in the chunk.
_Columns = dict[int, set[tuple[int, int]]]


def signature_of(table: Any) -> Any:
  """Returns the signature of the record of a table, or None."""
  if not table.HasField('signature'):
    return None
  return tf_private.decode_structure(table.signature)


def read_checkpoint_episodes(
    directory: str, table_name: str, *, require_complete: bool = False
) -> tf.data.Dataset:
  """Reads the episodes of a table whose items are of `Trajectory` frames.

  An episode is terminal if the discount of its last frame is 0. Short episodes
  are read in batches, see `episode_dataset.batches_of`.

  Args:
    directory: the checkpoint, as `files.expand` returns it.
    table_name: the name of the table.
    require_complete: whether every episode must have all its steps.

  Returns:
    A data set of episodes with stacked steps, which have the seven fields of
    RLDS, and `policy_info` where the frames have it. An episode with a gap in
    the middle becomes two. With `require_complete`, an incomplete episode
    raises a `tf.errors.InvalidArgumentError` instead.

  Raises:
    FileNotFoundError: if `directory` is not a complete checkpoint.
    CheckpointError: if a file is damaged.
    ValueError: if there is no such table, or its frames are not trajectories.
  """
  index = records_lib.read_index(directory, columns_of=table_name)
  signature = tables_lib.to_trajectory_signature(
      table_name, signature_of(index.tables[table_name]), directory
  )
  episode_of_chunk = {
      key: episode
      for key, episode in zip(index.chunks.tolist(), index.episodes.tolist())
      if key in index.columns
  }

  def read_batches():
    num_unread = collections.Counter(episode_of_chunk.values())
    chunks_of_episode = collections.defaultdict(list)
    for chunks in records_lib.read_messages(
        directory, records_lib.CHUNKS, protos.ChunkData
    ):
      episodes = []
      for chunk in chunks:
        if chunk.chunk_key not in episode_of_chunk:
          continue
        episode = episode_of_chunk[chunk.chunk_key]
        chunks_of_episode[episode].append(chunk)
        num_unread[episode] -= 1
        if not num_unread[episode]:
          episodes += _assemble_episodes(
              chunks_of_episode.pop(episode), index.columns, signature
          )
      if require_complete and not all(
          steps[rlds.IS_FIRST][0] and steps[rlds.IS_LAST][-1]
          for steps in episodes
      ):
        raise ValueError(
            f'Table {table_name!r} of the checkpoint {directory} has incomplete'
            ' episodes: its items are sequences that skip frames or overlap, or'
            ' some were removed. So the episodes cannot be read back. A Reverb'
            ' server samples the items unchanged: open the checkpoint with'
            ' reverb_server=True.'
        )
      if episodes:  # Each element of a generator takes a millisecond.
        lengths = [len(steps[rlds.IS_FIRST]) for steps in episodes]
        yield batch_lib.EpisodeBatch(
            tf.nest.map_structure(
                lambda *leaves: np.concatenate(leaves), *episodes
            ),
            np.cumsum([0, *lengths]),
            {},
        )

  frames_spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), signature
  )
  flag_specs = [tf.TensorSpec([None], tf.bool)] * 3
  spec = _to_steps(frames_spec, *flag_specs)
  batches = tf.data.Dataset.from_generator(
      read_batches,
      output_signature=batch_lib.EpisodeBatch(
          spec, tf.TensorSpec([None], tf.int64), {}
      ),
  )
  return episode_dataset.EpisodeDataset(batches)


def _assemble_episodes(
    chunks: list[Any], columns: _Columns, signature: Any
) -> Iterator[dict[str, Any]]:
  """Yields the steps of each episode in the chunks of one Reverb episode."""
  parts = collections.defaultdict(list)
  for chunk in sorted(chunks, key=lambda chunk: chunk.sequence_range.start):
    if chunk.delta_encoded:
      raise records_lib.CheckpointError(
          'The chunks of the checkpoint are delta-encoded, which is not'
          ' supported. Use the data that the checkpoint was written from.'
      )
    for column, tensor in columns[chunk.chunk_key]:
      values = _decode_tensor(chunk.data.tensors[tensor])
      steps = chunk.sequence_range.start + np.arange(len(values))
      parts[column].append((steps, values))
  num_columns = len(tf.nest.flatten(signature))
  if len(parts) < num_columns:
    return
  column_rows = [
      list(map(np.concatenate, zip(*parts[column])))
      for column in range(num_columns)
  ]
  # The steps that all columns have.
  common = functools.reduce(np.intersect1d, [steps for steps, _ in column_rows])
  leaves = [
      values[np.intersect1d(common, steps, return_indices=True)[2]]
      for steps, values in column_rows
  ]
  frames = tf.nest.pack_sequence_as(signature, leaves)
  # Frames may be missing, and chunks and sequences may continue into the next
  # episode. An episode of one step is one LAST frame whose next step type is
  # LAST, too. Any other LAST frame that follows a LAST frame is padding.
  is_last = frames.step_type == ts.StepType.LAST
  is_single = is_last & (frames.next_step_type == ts.StepType.LAST)
  is_first = (frames.step_type == ts.StepType.FIRST) | is_single
  is_padding = ~is_single & is_last & np.append(False, is_last)[:-1]
  is_terminal = is_last & (frames.discount == 0)
  steps, common = tf.nest.map_structure(
      lambda leaf: leaf[~is_padding],
      (_to_steps(frames, is_first, is_last, is_terminal), common),
  )
  is_after_gap = np.diff(common, prepend=common[:1]) > 1
  starts = np.flatnonzero(steps[rlds.IS_FIRST] | is_after_gap).tolist()
  bounds = sorted({0, *starts, len(common)})
  for begin, end in zip(bounds, bounds[1:]):
    yield tf.nest.map_structure(lambda leaf: leaf[begin:end], steps)


def _to_steps(
    frames: trajectory.Trajectory, is_first: Any, is_last: Any, is_terminal: Any
) -> dict[str, Any]:
  """Returns RLDS steps, from frames and flags, or from their specs."""
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
  """Returns the array that Reverb has compressed into a `TensorProto`."""
  dtype = tf.as_dtype(proto.dtype)
  if dtype == tf.string:
    return tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy()
  shape = [dim.size for dim in proto.tensor_shape.dim]
  size = int(np.prod(shape)) * dtype.size
  content = _SNAPPY.decompress(proto.tensor_content, size, asbytes=True)
  return np.frombuffer(content, dtype.as_numpy_dtype).reshape(shape)
