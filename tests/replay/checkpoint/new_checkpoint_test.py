"""Tests of the files of a checkpoint that is being written."""

import os

from absl.testing import absltest
from absl.testing import parameterized

from rlds2reverb.replay import protos
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write


class NewCheckpointTest(parameterized.TestCase):

  def test_is_there_when_it_is_whole(self):
    directory = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    tables = [
        protos.PriorityTableCheckpoint(table_name=name, max_size=size)
        for name, size in (('first', 3), ('second', 5))
    ]
    with write.new_checkpoint(directory) as path:
      with records.RecordFile(path, records.CHUNKS) as file:
        file.write([b'a', b''])
        file.write([b'c'])
      write.write_tables(path, tables)
      self.assertFalse(os.path.exists(os.path.join(directory, records.DONE)))
    self.assertCountEqual(
        os.listdir(directory), [records.CHUNKS, records.TABLES, records.DONE]
    )
    self.assertEqual(
        list(records.read(directory, records.CHUNKS)), [[b'a', b'', b'c']]
    )
    self.assertEqual(
        records.read_tables(directory),
        {'first': tables[0], 'second': tables[1]},
    )

  def test_leaves_nothing_after_an_error(self):
    parent = self.create_tempdir().full_path
    directory = os.path.join(parent, 'checkpoint')
    with self.assertRaisesRegex(RuntimeError, 'stopped'):
      with write.new_checkpoint(directory) as path:
        with records.RecordFile(path, records.CHUNKS) as file:
          file.write([b'a'])
        raise RuntimeError('stopped')
    self.assertEmpty(os.listdir(parent))

  def test_a_file_that_cannot_be_written(self):
    path = os.path.join(self.create_tempdir().full_path, 'missing')
    with self.assertRaisesRegex(OSError, 'could not be written'):
      with records.RecordFile(path, records.CHUNKS) as file:
        file.write([b'a'])


if __name__ == '__main__':
  absltest.main()
