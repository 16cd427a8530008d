"""Tests of encoded chunks and items, which Reverb's protocol buffers read."""

from absl.testing import absltest
from absl.testing import parameterized
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
import numpy as np
import pyarrow
from reverb.cc import schema_pb2
import tensorflow as tf

from rlds2reverb.replay import encoding
from rlds2reverb.replay import wire


def _service_messages():
  """Returns the classes of what Reverb's service is sent, and answers.

  They are InsertStreamRequest, InsertStreamResponse, MutatePrioritiesRequest.

  Reverb's package has the messages of `schema.proto`, but not these, which are
  declared in its `reverb_service.proto`.
  """
  field = descriptor_pb2.FieldDescriptorProto
  many = dict(label=field.LABEL_REPEATED)
  file = descriptor_pb2.FileDescriptorProto(
      name='service_of_tests.proto',
      package='service_of_tests',
      syntax='proto3',
      dependency=[schema_pb2.DESCRIPTOR.name],
  )
  request = file.message_type.add(name='InsertStreamRequest')
  for number, (name, message) in enumerate(
      (('chunks', schema_pb2.ChunkData), ('items', schema_pb2.PrioritizedItem)),
      1,
  ):
    request.field.add(
        name=name,
        number=number,
        type=field.TYPE_MESSAGE,
        type_name=f'.{message.DESCRIPTOR.full_name}',
        **many,
    )
  request.field.add(
      name='keep_chunk_keys', number=3, type=field.TYPE_UINT64, **many
  )
  response = file.message_type.add(name='InsertStreamResponse')
  response.field.add(name='keys', number=1, type=field.TYPE_UINT64, **many)
  mutate = file.message_type.add(name='MutatePrioritiesRequest')
  mutate.field.add(
      name='table', number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL
  )
  mutate.field.add(
      name='updates',
      number=2,
      type=field.TYPE_MESSAGE,
      type_name=f'.{schema_pb2.KeyWithPriority.DESCRIPTOR.full_name}',
      **many,
  )
  pool = descriptor_pool.Default()
  pool.Add(file)
  return [
      message_factory.GetMessageClass(
          pool.FindMessageTypeByName(f'{file.package}.{message.name}')
      )
      for message in file.message_type
  ]


_Request, _Response, _MutatePriorities = _service_messages()
_SNAPPY = pyarrow.Codec('snappy')
_KEYS = np.array([0, 1, 127, 128, 2**63, 2**64 - 1], np.uint64)


def _items(count=6, table='table'):
  """Items of three columns in two groups, of one slice and of two."""
  rng = np.random.default_rng(0)
  slices = [
      encoding.ChunkSlices(
          rng.integers(0, 2**64, 4, np.uint64),
          rng.integers(0, 4, (count, number)),
          rng.integers(0, 2**27, (count, number)),
          rng.integers(1, 300, (count, number)),
      )
      for number in (1, 2)
  ]
  # Some of them are of another second than the others.
  inserted_at = 1_700_000_000_999_999_998 + np.arange(count)
  encoded = encoding.encode_items(
      table,
      _KEYS[:count],
      np.arange(count) / 4,
      [(0, 2), (1,)],
      slices,
      inserted_at,
  )
  return encoded, slices, inserted_at


def _expected(index, slices, inserted_at, table='table'):
  """Returns the message of one of `_items`."""
  item = schema_pb2.PrioritizedItem(
      key=int(_KEYS[index]), table=table, priority=index / 4
  )
  item.inserted_at.FromNanoseconds(int(inserted_at[index]))
  # The group of each column, and its index in the chunks of the group.
  for group, column_index in ((0, 0), (1, 0), (0, 1)):
    keys, chunks, offsets, lengths = slices[group]
    column = item.flat_trajectory.columns.add()
    for chunk, offset, length in zip(
        chunks[index], offsets[index], lengths[index]
    ):
      column.chunk_slices.add(
          chunk_key=int(keys[chunk]),
          offset=int(offset),
          length=int(length),
          index=column_index,
      )
  return item


class EncodingTest(parameterized.TestCase):

  @parameterized.parameters(*_KEYS.tolist())
  def test_chunk(self, key):
    columns = [
        np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        np.array([True, False, True]),
        np.zeros((3, 0), np.int64),
        np.array([[b'', b'a\0'], [b'b' * 300, b''], [b'c', b'd']], object),
    ]
    chunk = schema_pb2.ChunkData.FromString(
        encoding.encode_chunk(key, 7, 100, columns)
    )
    self.assertEqual(chunk.chunk_key, key)
    self.assertEqual(chunk.sequence_range.episode_id, 7)
    self.assertEqual(chunk.sequence_range.start, 100)
    self.assertEqual(chunk.sequence_range.end, 102)
    self.assertFalse(chunk.delta_encoded)
    self.assertEqual(chunk.data_tensors_len, 4)
    self.assertEqual(chunk.data_uncompressed_size, 48 + 3 + 0 + 304)
    for tensor, column in zip(chunk.data.tensors, columns, strict=True):
      shape = [dim.size for dim in tensor.tensor_shape.dim]
      self.assertEqual(shape, list(column.shape))
      if column.dtype == object:
        self.assertEqual(tensor.dtype, tf.string.as_datatype_enum)
        found = tf.io.parse_tensor(tensor.SerializeToString(), tf.string)
        self.assertEqual(found.numpy().tolist(), column.tolist())
      else:
        self.assertEqual(
            tensor.dtype, tf.as_dtype(column.dtype).as_datatype_enum
        )
        content = _SNAPPY.decompress(
            tensor.tensor_content, column.nbytes, asbytes=True
        )
        self.assertEqual(content, column.tobytes())

  @parameterized.parameters('table', 'a table of 130 characters' + 'x' * 105)
  def test_items(self, table):
    encoded, slices, inserted_at = _items(table=table)
    self.assertLen(encoded, 6)
    for index, row in enumerate(encoded['item']):
      self.assertEqual(
          schema_pb2.PrioritizedItem.FromString(row.tobytes()),
          _expected(index, slices, inserted_at, table),
      )

  def test_items_of_another_date(self):
    encoded, slices, _ = _items()
    dates = 10**18 + np.arange(6) * 10**9
    redated = encoding.redate_items(
        [row.tobytes() for row in encoded['item']], dates
    )
    for index, item in enumerate(redated):
      self.assertEqual(
          schema_pb2.PrioritizedItem.FromString(item),
          _expected(index, slices, dates),
      )
    self.assertEqual(index, 5)

  def test_insert_request(self):
    chunks = [
        encoding.encode_chunk(key, 1, 0, [np.zeros(2)])
        for key in (5, 2**64 - 1)
    ]
    encoded, slices, inserted_at = _items()
    request = _Request.FromString(
        encoding.encode_insert_request(
            chunks, [encoded[:2], encoded[2:]], [5, 2**64 - 1]
        )
    )
    self.assertEqual(
        [chunk.chunk_key for chunk in request.chunks], [5, 2**64 - 1]
    )
    self.assertEqual(
        list(request.items),
        [_expected(index, slices, inserted_at) for index in range(6)],
    )
    self.assertEqual(list(request.keep_chunk_keys), [5, 2**64 - 1])

  @parameterized.parameters(0, 1, 3, 200)
  def test_count_of_confirmed_keys(self, count):
    rng = np.random.default_rng(count)
    keys = rng.integers(0, 2**64, count, np.uint64) >> rng.integers(
        0, 64, count, np.uint64
    )
    response = _Response(keys=keys.tolist())
    self.assertEqual(wire.count_keys(response.SerializeToString()), count)

  def test_keys_at_the_head_of_messages(self):
    encoded, _, _ = _items()
    chunks = [
        encoding.encode_chunk(key, 1, 0, [np.zeros(2)])
        for key in _KEYS.tolist()
    ]
    for messages in ([row.tobytes() for row in encoded['item']], chunks):
      heads = b''.join(each[: wire.KEY_HEAD] for each in messages)
      heads = np.frombuffer(heads, np.uint8).reshape(-1, wire.KEY_HEAD)
      self.assertEqual(wire.keys_of(heads).tolist(), _KEYS.tolist())

  def test_priority_updates(self):
    priorities = np.array([0, 1, 0.1, 1e300, 5e-324, 7])
    message = _MutatePriorities.FromString(
        encoding.encode_priority_updates('a table', _KEYS, priorities)
    )
    self.assertEqual(message.table, 'a table')
    self.assertEqual(
        [(update.key, update.priority) for update in message.updates],
        list(zip(_KEYS.tolist(), priorities.tolist())),
    )


if __name__ == '__main__':
  absltest.main()
