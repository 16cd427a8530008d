"""Tests of the records that are read from a checkpoint."""

import os

from absl.testing import absltest

from rlds2reverb.replay.checkpoint import records
from tests.replay.checkpoint import checkpoints


class RecordsTest(checkpoints.CheckpointTestCase):

  def test_a_full_disk(self):
    with self.assertRaisesRegex(
        OSError, '/dev/full could not be written, so its folder'
    ):
      with records.RecordFile('/dev/full') as file:
        file.write([b'record'])

  def test_folder_without_checkpoint_raises(self):
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
    # An unfinished job, whose output is missing or incomplete.
    os.makedirs(f'{missing}.job')
    for is_there in False, True:
      with self.assertRaisesRegex(
          FileNotFoundError,
          'is not a complete .* Its job, .*/bigger.job, is unfinished: run'
          ' the same command to resume it.$',
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
