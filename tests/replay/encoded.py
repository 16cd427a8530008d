"""Makes random blocks of frames, and decodes the batches built from them."""

from typing import Any

import numpy as np
import pyarrow
from reverb.cc import schema_pb2
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib

_SNAPPY = pyarrow.Codec('snappy')


def episode(rng, length, image_bytes=12):
  """Returns the frames of a random episode."""
  step_type = np.ones(length, np.int32)
  step_type[0] = 0
  step_type[-1] = 2
  return trajectory.Trajectory(
      step_type=step_type,
      observation={
          'image': rng.integers(0, 256, (length, image_bytes)).astype(np.uint8),
          'speed': rng.normal(size=length),
          'text': np.array([rng.bytes(n % 9) for n in range(length)], object),
      },
      action=rng.normal(size=(length, 2)).astype(np.float32),
      policy_info=(),
      next_step_type=np.roll(step_type, -1),
      reward=rng.normal(size=length).astype(np.float32),
      discount=rng.uniform(size=length).astype(np.float32),
  )


def rows(frames, begin, length):
  return tf.nest.map_structure(
      lambda leaf: leaf[begin : begin + length], frames
  )


def concatenated(parts):
  return tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *parts)


def blocks(episodes, size=1, length=None, ids=None):
  """Yields blocks of `size` episodes, or of `length` frames of an episode."""
  for first in range(0, len(episodes), size):
    batch = episodes[first : first + size]
    splits = np.cumsum([0, *(len(frames.step_type) for frames in batch)])
    names = list((ids or range(len(episodes)))[first : first + size])
    for begin in range(0, splits[-1], length or splits[-1]):
      piece = rows(concatenated(batch), begin, length or splits[-1])
      found = [0, len(piece.step_type)] if length else splits
      yield conversion.FrameBlock(piece, names, np.array(found), begin)


class _Blocks:
  """A fake data set of blocks with the methods that a `FrameSource` calls."""

  def __init__(self, found):
    self._blocks = found

  def prefetch(self, unused_size):
    return self

  def with_options(self, unused_options):
    return self

  def as_numpy_iterator(self):
    for block in self._blocks:
      yield block._replace(
          fields={'name': np.array(block.episode_indices, object)}
      )


def source(found, tables, identity=None, chunk_length=4, **options):
  """Returns a `FrameSource` of blocks with the frames of `episode`."""
  spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(
          leaf.shape[1:], tf.string if leaf.dtype == object else leaf.dtype
      ),
      episode(np.random.default_rng(0), 1),
  )
  return frames_lib.FrameSource(
      spec,
      tables,
      chunk_length,
      _Blocks(found),
      None,
      options_lib.complete(
          options_lib.ConversionOptions(
              identity=identity, episode_id='name', **options
          )
      ),
  )


def _decode(tensor):
  """Decodes a TensorProto of a chunk to an array."""
  shape = [dim.size for dim in tensor.tensor_shape.dim]
  dtype = tf.as_dtype(tensor.dtype)
  if dtype == tf.string:
    return tf.io.parse_tensor(tensor.SerializeToString(), dtype).numpy()
  size = int(np.prod(shape)) * dtype.size
  content = _SNAPPY.decompress(tensor.tensor_content, size, asbytes=True)
  return np.frombuffer(content, dtype.as_numpy_dtype).reshape(shape)


def read_chunks(batch):
  """Returns the columns of each chunk of a batch by chunk key."""
  read = {}
  for content in batch.chunks:
    chunk = schema_pb2.ChunkData.FromString(content)
    assert chunk.data_tensors_len == len(chunk.data.tensors)
    read[chunk.chunk_key] = [_decode(tensor) for tensor in chunk.data.tensors]
  return read


def read_items(batch) -> list[Any]:
  return [schema_pb2.PrioritizedItem.FromString(item) for item in batch.items]


def slices(item):
  return [
      [(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices]
      for column in item.flat_trajectory.columns
  ]


def content(item, columns_of):
  """Returns the columns of an item as lists, given those of `read_chunks`."""
  return [
      np.concatenate(
          [
              columns_of[key][index][offset : offset + length]
              for key, offset, length, index in column
          ]
      ).tolist()
      for column in slices(item)
  ]
