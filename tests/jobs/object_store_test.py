"""Tests of jobs whose data, folder and output are in an object store.

The store is TensorFlow's file system in memory, at `ram://`, to which `rename`
is denied: an object is whole or not there, and nothing else is promised.
"""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import pytest
import tensorflow as tf

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.replay.checkpoint import records
from tests import ram_files  # noqa: F401
from tests.jobs import job_testing

_FOLDERS = (plan_lib.CHECKPOINT, plan_lib.RLDS, plan_lib.STATISTICS)
_COPY = tf.io.gfile.copy


def _copy_to(url, source):
  tf.io.gfile.makedirs(url)
  for name in os.listdir(source):
    _COPY(os.path.join(source, name), f'{url}/{name}')
  return url


@pytest.mark.long
class ObjectStoreTest(job_testing.JobTestCase):

  def setUp(self):
    super().setUp()
    denied = tf.errors.UnimplementedError(None, None, 'There is no rename.')
    self.enter_context(
        mock.patch.object(tf.io.gfile, 'rename', side_effect=denied)
    )
    self.url = f'ram://{self._testMethodName}'
    self.addCleanup(tf.io.gfile.rmtree, self.url)
    self.data = _copy_to(f'{self.url}/data/numbered', self.directory)

  def convert(self, plan, **kwargs):
    # TensorFlow's file system takes `output.job` for a part of `output`.
    return super().convert(plan, folder=self.job_folder(plan), **kwargs)

  def job_folder(self, plan):
    is_stored = plan.output.place.startswith(self.url)
    return f'{self.url}/job' if is_stored else super().job_folder(plan)

  def _plan(self, kind, place):
    return self.plan(kind, place, directory=self.data, episodes_per_task=4)

  @parameterized.parameters(*_FOLDERS)
  def test_output_at_url_equals_output_on_disk(self, kind):
    on_disk = self._plan(kind, self.new())
    stored = self._plan(kind, f'{self.url}/output')
    self.convert(on_disk)
    self.convert(stored)
    contents = job_testing.contents_of(stored.output.place)
    self.assertEqual(contents, job_testing.contents_of(on_disk.output.place))
    self.convert(stored)
    self.assertIn('nothing to do', self.said[-1])

  @parameterized.parameters(
      ('items.tfrecord', False), (records.DONE, False), (records.DONE, True)
  )
  def test_an_end_while_an_object_is_written(self, name, is_joined):
    plan = self._plan(plan_lib.CHECKPOINT, f'{self.url}/output')

    def copy(source, target):
      is_output = os.path.dirname(target) == plan.output.place
      if os.path.basename(target) == name and is_output >= is_joined:
        raise tf.errors.UnavailableError(None, None, 'The store is away.')
      _COPY(source, target)

    with mock.patch.object(tf.io.gfile, 'copy', copy):
      self.assert_fails(Exception, 'The store is away', plan)
    with self.assertRaisesRegex(FileNotFoundError, 'not a complete'):
      records.read_tables(plan.output.place)
    done = self.receipts_of(plan)
    self.assertLen(done, 2 if is_joined else 0)
    self.convert(plan)
    (table,) = records.read_tables(plan.output.place).values()
    self.assertEqual(records.num_items(table), 26)
    self.assertNotIn('.unfinished', tf.io.gfile.listdir(plan.output.place))


if __name__ == '__main__':
  absltest.main()
