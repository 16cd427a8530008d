"""Tests of the records that are read from a checkpoint."""

import os

from absl.testing import absltest
import numpy as np
from reverb.cc import schema_pb2

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from tests import testing
from tests.replay.checkpoint import checkpoints


class RecordsTest(checkpoints.CheckpointTestCase):

  def test_keys_and_tables_of_a_checkpoint(self):
    path = self.write(
        checkpoints.episodes([5, 3]),
        [
            checkpoints.PAIRS,
            items.TableItems(checkpoints.OTHER, windows_lib.Windows(3)),
        ],
        chunk_length=4,
    )
    tables = records.read_tables(path)
    self.assertEqual(list(tables), [testing.TABLE, checkpoints.OTHER])
    self.assertEqual(
        [records.num_items(table) for table in tables.values()],
        [4 + 2, 3 + 1],
    )
    index = records.read_index(path)
    self.assertEqual(index.tables, tables)
    chunks = [
        schema_pb2.ChunkData.FromString(record).chunk_key
        for record in checkpoints.records_of(path, 'chunks.tfrecord')
    ]
    self.assertLen(chunks, 2 + 1)
    self.assertEqual(index.chunks.tolist(), chunks)
    found = [
        schema_pb2.PrioritizedItem.FromString(record)
        for record in checkpoints.records_of(path, 'items.tfrecord')
    ]
    self.assertEqual(index.items.tolist(), [item.key for item in found])
    self.assertEqual(
        index.item_tables.tolist(),
        [(testing.TABLE, checkpoints.OTHER).index(i.table) for i in found],
    )
    self.assertEqual(np.bincount(index.item_tables).tolist(), [6, 4])

  def test_records_come_in_their_order(self):
    path = self.create_tempdir().full_path
    # More than are read at once.
    contents = [b'%d' % number for number in range(3000)]
    checkpoints.rewrite(path, records.ITEMS, contents)
    found = list(records.read(path, records.ITEMS))
    self.assertGreater(len(found), 1)
    self.assertEqual(sum(found, []), contents)

  def test_what_is_no_checkpoint(self):
    path = self.create_tempdir().mkdir('one').full_path
    with self.assertRaisesRegex(FileNotFoundError, 'it has no DONE.$'):
      records.read_tables(path)
    missing = os.path.join(path, 'bigger')
    os.makedirs(os.path.join(path, 'bigge.job'))
    with self.assertRaisesRegex(FileNotFoundError, 'it does not exist.$'):
      records.read_tables(missing)
    os.makedirs(os.path.join(path, 'big'))
    with self.assertRaisesRegex(FileNotFoundError, r'mean big\?$'):
      records.read_tables(missing)
    # A job that has not ended, whose output is nowhere yet or not whole.
    os.makedirs(f'{missing}.job')
    for is_there in False, True:
      with self.assertRaisesRegex(
          FileNotFoundError,
          'is not a whole .* Its job, .*/bigger.job, has not ended: the same'
          ' command goes on with it.$',
      ):
        records.read_tables(missing)
      if not is_there:
        os.makedirs(missing)
    with open(os.path.join(path, 'DONE'), 'wb'):
      pass
    with self.assertRaisesRegex(records.CheckpointError, 'is damaged'):
      records.read_tables(path)


if __name__ == '__main__':
  absltest.main()
