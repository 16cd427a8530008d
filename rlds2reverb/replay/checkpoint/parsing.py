"""Parses chunks and items of a checkpoint, many at a time, in graph mode."""

import functools
from typing import Any, List, NamedTuple, Tuple

from google.protobuf import descriptor_pb2
import tensorflow as tf

from rlds2reverb.replay import messages


class ParsedItems(NamedTuple):
  """Items that were parsed, and the slices of chunks that they refer to.

  Attributes:
    keys: the keys of the items, uint64 `[N]`.
    tables: the names of their tables, strings `[N]`.
    owners: the index of the item of each slice, int64 `[S]`.
    columns: the index of the column of each slice, int64 `[S]`.
    chunks: the key of the chunk of each slice, uint64 `[S]`.
    tensors: the index of its tensor in that chunk, int32 `[S]`.
  """

  keys: Any
  tables: Any
  owners: Any
  columns: Any
  chunks: Any
  tensors: Any


def parse_chunks(records: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
  """Returns the keys of `ChunkData`s and of their episodes, uint64 `[N]`."""
  (keys, ranges), _ = decode(
      records,
      messages.ChunkData,
      chunk_key=tf.uint64,
      sequence_range=tf.string,
  )
  (episodes,), _ = decode(
      ranges[:, 0], messages.SequenceRange, episode_id=tf.uint64
  )
  return keys[:, 0], episodes[:, 0]


def parse_items(records: tf.Tensor) -> ParsedItems:
  """Parses `PrioritizedItem`s, strings `[N]`."""
  (keys, tables, trajectories), _ = decode(
      records,
      messages.PrioritizedItem,
      key=tf.uint64,
      table=tf.string,
      flat_trajectory=tf.string,
  )
  (columns,), counts = decode(
      trajectories[:, 0], messages.FlatTrajectory, columns=tf.string
  )
  is_column = tf.sequence_mask(counts[:, 0])
  owners, places = tf.unstack(tf.where(is_column), axis=1)
  (slices,), counts = decode(
      tf.boolean_mask(columns, is_column),
      messages.Column,
      chunk_slices=tf.string,
  )
  is_slice = tf.sequence_mask(counts[:, 0])
  (chunks, tensors), _ = decode(
      tf.boolean_mask(slices, is_slice),
      messages.ChunkSlice,
      chunk_key=tf.uint64,
      index=tf.int32,
  )
  return ParsedItems(
      keys[:, 0],
      tables[:, 0],
      tf.repeat(owners, counts[:, 0]),
      tf.repeat(places, counts[:, 0]),
      chunks[:, 0],
      tensors[:, 0],
  )


def decode(
    records: tf.Tensor, kind: Any, **fields: tf.DType
) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """Returns the fields of messages, and how often each field occurs.

  Args:
    records: the messages, strings `[N]`.
    kind: the class of the messages.
    **fields: the dtypes of the `F` fields to decode, by their names.

  Returns:
    The values of each field, `[N, C]`, and the counts, `[N, F]`.
  """
  # TensorFlow refuses to decode an empty batch, so an empty message comes last.
  counts, values = tf.io.decode_proto(
      tf.concat([records, ['']], 0),
      kind.DESCRIPTOR.full_name,
      list(fields),
      list(fields.values()),
      _descriptors(),
  )
  return [value[:-1] for value in values], counts[:-1]


@functools.lru_cache(maxsize=None)
def _descriptors() -> bytes:
  """Returns the descriptors of Reverb's messages for `tf.io.decode_proto`."""
  descriptors = {}

  def add(file):
    for dependency in file.dependencies:
      add(dependency)
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    descriptors[file.name] = proto

  add(messages.ChunkData.DESCRIPTOR.file)
  content = descriptor_pb2.FileDescriptorSet(file=descriptors.values())
  return b'bytes://' + content.SerializeToString()
