"""Tests of checkpoints with right checksums and wrong numbers."""

import math
import os
import shutil
import tempfile
import zlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pyarrow

from rlds2reverb.episodes import limits
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import episodes as episodes_lib
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import validation
from tests import reverb_testing
from tests.replay.checkpoint import checkpoints

_KINDS = {
    'tables': protos.PriorityTableCheckpoint,
    'items': protos.PrioritizedItem,
    'chunks': protos.ChunkData,
}


def _slice(**numbers):
  def change(item):
    part = item.flat_trajectory.columns[1].chunk_slices[0]
    for name, number in numbers.items():
      setattr(part, name, number)

  return change


def _tensor(change):
  return lambda chunk: change(chunk.data.tensors[-1])


def _shape(*shape):
  def change(tensor):
    del tensor.tensor_shape.dim[:]
    for size in shape:
      tensor.tensor_shape.dim.add(size=size)

  return _tensor(change)


def _content(content):
  return _tensor(lambda tensor: setattr(tensor, 'tensor_content', content))


def _set(**values):
  def change(record):
    for name, value in values.items():
      setattr(record, name, value)

  return change


def _limiter(**values):
  return lambda table: _set(**values)(table.rate_limiter)


def _no_columns(item):
  del item.flat_trajectory.columns[:]


def _squeeze(item):
  item.flat_trajectory.columns[0].squeeze = True


def _swap(item):
  first, second = item.flat_trajectory.columns[:2]
  first.chunk_slices[0].index, second.chunk_slices[0].index = 1, 5


def _two_shapes(item):
  column = item.flat_trajectory.columns[0]
  column.chunk_slices.add(
      chunk_key=column.chunk_slices[0].chunk_key, length=1, index=1
  )


_PIECES = {
    'far slice': ('items', _slice(offset=1 << 30, length=1 << 30)),
    'overflowing slice': ('items', _slice(offset=2**31 - 1, length=2**31 - 1)),
    'negative offset': ('items', _slice(offset=-1)),
    'negative length': ('items', _slice(length=-5)),
    'empty slice': ('items', _slice(length=0)),
    'one row too many': ('items', _slice(offset=1, length=400)),
    'tensor beyond': ('items', _slice(index=1000)),
    'negative tensor': ('items', _slice(index=-1)),
    'chunk elsewhere': ('items', _slice(chunk_key=12345)),
    'no columns': ('items', _no_columns),
    'squeezed pair': ('items', _squeeze),
    'columns of others': ('items', _swap),
    'column of two shapes': ('items', _two_shapes),
    'priority of NaN': ('items', _set(priority=math.nan)),
    'negative priority': ('items', _set(priority=-1.0)),
    'table elsewhere': ('items', _set(table='elsewhere')),
    'huge shape': ('chunks', _shape(1 << 33, 1 << 33)),
    'overflowing shape': ('chunks', _shape(1 << 32, 1 << 32)),
    'negative shape': ('chunks', _shape(-1)),
    'scalar': ('chunks', _shape()),
    'no tensors': ('chunks', lambda chunk: chunk.ClearField('data')),
    'other number of tensors': ('chunks', _set(data_tensors_len=1)),
    'backwards': (
        'chunks',
        lambda chunk: _set(start=5, end=3)(chunk.sequence_range),
    ),
    'bomb': ('chunks', _content(b'\xff\xff\xff\xff\x0f')),
    'no content': ('chunks', _content(b'')),
    'damaged content': (
        'chunks',
        lambda chunk: _content(
            chunk.data.tensors[-1].tensor_content[:2] + b'\xff' * 8
        )(chunk),
    ),
    'dtype of resources': ('chunks', _tensor(_set(dtype=20))),
    'reference dtype': ('chunks', _tensor(_set(dtype=101))),
    'unknown dtype': ('chunks', _tensor(_set(dtype=77))),
    'wider dtype': ('chunks', _tensor(_set(dtype=2))),
    'strings': ('chunks', _tensor(_set(dtype=7))),
    'small table': ('tables', _set(max_size=3)),
    'negative table': ('tables', _set(max_size=-3)),
    'no sampler': ('tables', lambda table: table.sampler.Clear()),
    'sampler of NaN': (
        'tables',
        lambda table: _set(priority_exponent=math.nan)(
            table.sampler.prioritized
        ),
    ),
    'no remover': ('tables', lambda table: table.remover.Clear()),
    'limiter of NaN': ('tables', _limiter(samples_per_insert=math.nan)),
    'limiter of nothing': ('tables', _limiter(samples_per_insert=0)),
    'limits crossed': ('tables', _limiter(min_diff=5, max_diff=1)),
    'no size to sample': ('tables', _limiter(min_size_to_sample=-1)),
    'other signature': (
        'tables',
        lambda table: table.signature.CopyFrom(
            type(table.signature)(float64_value=1.0)
        ),
    ),
}
_OPENERS = {
    'index': lambda path, _: records.read_index(path),
    'restore': lambda path, _: serve.restore_reverb_server(path),
    'merge': lambda path, new: merge.merge_reverb_checkpoints([path], new),
    'episodes': lambda path, _: episodes_lib.read_checkpoint_episodes(
        path, reverb_testing.TABLE
    ),
}


class ValidationTest(checkpoints.CheckpointTestCase):

  def setUp(self):
    super().setUp()
    if not hasattr(type(self), 'path'):
      tables = [
          checkpoints.PAIRS,
          items_lib.TableItems(checkpoints.OTHER, windows_lib.Windows(5)),
      ]
      folder = tempfile.TemporaryDirectory()
      self.addClassCleanup(folder.cleanup)
      # Where workers take tests from each other, one may come back to a class
      # that it has left, and cleaned up.
      self.addClassCleanup(delattr, type(self), 'path')
      path = self.write(checkpoints.episodes([30, 7]), tables)
      type(self).path = os.path.join(folder.name, 'checkpoint')
      shutil.copytree(path, self.path)

  def change(self, file, number, change):
    copy = self.copy(self.path)
    contents = checkpoints.records_of(copy, f'{file}.tfrecord')
    record = _KINDS[file].FromString(contents[number])
    change(record)
    contents[number] = record.SerializeToString()
    checkpoints.rewrite(copy, f'{file}.tfrecord', contents)
    return copy

  @parameterized.named_parameters(
      *((name, *piece) for name, piece in _PIECES.items())
  )
  def test_invalid_numbers_in_records_raise(self, file, change):
    for number in 0, -1:
      path = self.change(file, number, change)
      with self.assertRaisesRegex(
          records.CheckpointError, f'{path}.* is damaged: {file}.tfrecord'
      ):
        records.read_index(path)

  @parameterized.product(
      case=(
          (1.0, 1e308, 'too large, up to 1e.308: the sum of priority'),
          (2.0, 1e200, 'too large'),
          (2.0, 1e-200, r'too small: priority \*\* 2 is 0 for all'),
      ),
      opener=tuple(_OPENERS),
  )
  def test_weights_that_overflow_or_vanish(self, case, opener):
    exponent, priority, message = case
    path = self.copy(self.path)
    for file, change in (
        ('items', _set(priority=priority)),
        (
            'tables',
            lambda table: _set(priority_exponent=exponent)(
                table.sampler.prioritized
            ),
        ),
    ):
      contents = []
      for content in checkpoints.records_of(path, f'{file}.tfrecord'):
        record = _KINDS[file].FromString(content)
        change(record)
        contents.append(record.SerializeToString())
      checkpoints.rewrite(path, f'{file}.tfrecord', contents)
    with self.assertRaisesRegex(
        records.CheckpointError, f'is damaged: .*{message}'
    ):
      _OPENERS[opener](path, self.new())

  @parameterized.product(
      name=('far slice', 'huge shape', 'damaged content', 'no sampler'),
      opener=tuple(_OPENERS),
  )
  def test_every_opener_refuses_damaged_checkpoints(self, name, opener):
    file, change = _PIECES[name]
    path, new = self.change(file, 0, change), self.new()
    with self.assertRaisesRegex(
        records.CheckpointError, f'{path}.* is damaged: {file}.tfrecord'
    ):
      _OPENERS[opener](path, new)
    self.assertFalse(os.path.exists(new))

  def test_checkpoints_of_a_server(self):
    # Its items have other bytes than ours, and keys and offsets of any size.
    path = self.serve(self.path).checkpoint()
    index, own = records.read_index(path), records.read_index(self.path)
    self.assertCountEqual(index.items.tolist(), own.items.tolist())
    self.assertCountEqual(index.chunks.tolist(), own.chunks.tolist())

  def test_values_equal_parsed_messages(self):
    path = os.path.join(self.serve(self.path).checkpoint(), 'items.tfrecord')
    count = 0
    for batch in validation.read_records(path):
      for record in batch.records():
        count += 1
        form = validation._ItemForm(record)
        item = protos.PrioritizedItem.FromString(record)
        rows = np.frombuffer(record, np.uint8)[None]
        self.assertEqual(form.read_varints(rows, [form.key]), item.key)
        expected = [
            [part.chunk_key, part.offset, part.length, part.index]
            for column in item.flat_trajectory.columns
            for part in column.chunk_slices
        ]
        actual = [
            form.read_varints(rows, each)[0].tolist() for each in form.slices
        ]
        self.assertEqual(actual, expected)
        self.assertEqual(form.read_priorities(rows), item.priority)
    self.assertGreater(count, 30)

  def test_files_that_expand(self):
    self.addCleanup(os.environ.pop, limits.VARIABLE, None)
    os.environ[limits.VARIABLE] = str(1 << 20)
    record = (1 << 20).to_bytes(8, 'little') + bytes((1 << 20) + 8)
    for file in checkpoints.FILES:
      copy = self.copy(self.path)
      with open(os.path.join(copy, file), 'wb') as f:
        f.write(zlib.compress(record * 5))
      with self.assertRaisesRegex(records.CheckpointError, file):
        serve.restore_reverb_server(copy)
    with self.assertRaisesRegex(ValueError, 'expands to more than 4194304'):
      for _ in validation.read_records(os.path.join(copy, file)):
        pass

  def test_a_record_of_exabytes(self):
    for file in checkpoints.FILES:
      copy = self.copy(self.path)
      header = (40 << 30).to_bytes(8, 'little') + b'\0\0\0\0'
      with open(os.path.join(copy, file), 'wb') as f:
        f.write(zlib.compress(header + b'1234'))
      with self.assertRaisesRegex(
          records.CheckpointError, 'a record takes 42949672960 bytes'
      ):
        records.read_index(copy)

  def test_limit_can_be_raised_by_environment_variable(self):
    zeros = pyarrow.Codec('snappy').compress(bytes(1 << 20), asbytes=True)
    path = self.change(
        'chunks',
        0,
        lambda chunk: (_shape(1 << 18)(chunk), _content(zeros)(chunk)),
    )
    self.addCleanup(os.environ.pop, limits.VARIABLE, None)
    os.environ[limits.VARIABLE] = str(1 << 19)
    with self.assertRaisesRegex(
        records.CheckpointError, f'raise the limit: {limits.VARIABLE}=1048576'
    ):
      records.read_index(path)
    os.environ[limits.VARIABLE] = str(1 << 20)
    records.read_index(path)
    os.environ[limits.VARIABLE] = 'a lot'
    with self.assertRaisesRegex(records.CheckpointError, 'but is .a lot.'):
      records.read_index(path)


if __name__ == '__main__':
  absltest.main()
