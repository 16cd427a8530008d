"""Tests of jobs on Beam, beside those in this process."""

import importlib.util
import os
import re
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import reverb

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from tests.jobs import data_sets
from tests.jobs import job_testing
from tests.scripts import programs

_FN_API = '--runner=FnApiRunner'
_BUNDLE_BASED = '--runner=BundleBasedDirectRunner'
_PROCESSES = (
    _FN_API,
    '--direct_num_workers=2',
    '--direct_running_mode=multi_processing',
)


@unittest.skipIf(
    importlib.util.find_spec('apache_beam') is None,
    "Apache Beam is not installed: pip install -e '.[beam]'",
)
class BeamEngineTest(job_testing.JobTestCase):

  def run_on_beam(self, plan, *options, **kwargs):
    """Does a plan on Beam; returns the summary."""
    from rlds2reverb.jobs import beam_engine  # pylint: disable=g-import-not-at-top

    engine = beam_engine.BeamEngine(options)
    return self.convert(plan, engine=engine, **kwargs)

  @parameterized.parameters(
      (plan_lib.CHECKPOINT, _FN_API), (plan_lib.RLDS, _BUNDLE_BASED)
  )
  @pytest.mark.long
  def test_a_folder_is_that_of_one_process_to_the_last_bit(
      self, kind, *options
  ):
    here = self.plan(kind, self.new('output'))
    on_beam = self.plan(kind, self.new('output'))
    expected = self.convert(here)
    summary = self.run_on_beam(on_beam, *options)
    contents = job_testing.contents_of(on_beam.output.place)
    self.assertEqual(contents, job_testing.contents_of(here.output.place))
    names = {'episodes', 'steps', 'bytes', 'items', 'skipped', 'statistics'}
    for name in names:
      self.assertEqual(summary[name], expected[name], name)
    self.assertEqual(
        sorted(os.listdir(self.job_folder(on_beam))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )

  def test_bundles_that_fail_before_a_receipt_are_tried_again(self):
    place = f'localhost:{self.start_server().port}'
    plan = self.plan(plan_lib.SERVER, place)
    rng = np.random.default_rng(1)
    failed = []
    write = job_lib.Job.write_receipt

    def write_or_fail(job, receipt):
      failed.append(rng.random() < 0.3)
      if failed[-1]:
        raise OSError('The worker has died.')
      write(job, receipt)

    with mock.patch.object(job_lib.Job, 'write_receipt', write_or_fail):
      summary = self.run_on_beam(plan, _BUNDLE_BASED)
    self.assertGreater(sum(failed), 0)
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    found = job_testing.items_in(reverb.Client(place))
    self.assertEqual(job_testing.rewards_of(found), job_testing.ALL_PAIRS)

  def test_a_job_that_fails_goes_on_where_it_was(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    path = data_sets.files_of(folder)[1]
    os.rename(path, f'{path}.away')
    plan = self.plan(directory=folder)
    message = f'task 1: .*No such file.*{path}'
    with self.assertRaisesRegex(convert.JobError, message):
      self.run_on_beam(plan, _FN_API)
    self.assertFalse(os.path.exists(plan.output.place))
    kept = self.receipts_of(plan)
    self.assertCountEqual(kept, [0, 2, 3])
    os.rename(f'{path}.away', path)
    self.run_on_beam(plan, _FN_API)
    self.assertEqual({**self.receipts_of(plan), **kept}, self.receipts_of(plan))
    found = job_testing.items_of(plan.output.place)
    self.assertEqual(job_testing.rewards_of(found), job_testing.ALL_PAIRS)

  def test_runners_that_are_not_there(self):
    for name, message in (
        ('FlinkRuner', 'There is no runner FlinkRuner. Beam has'),
        ('no.such.Runner', 'There is no runner no.such.Runner'),
    ):
      with self.assertRaisesRegex(ValueError, re.escape(message)):
        self.run_on_beam(None, f'--runner={name}')

  @pytest.mark.long
  def test_the_program(self):
    output = self.new()
    done = programs.run(
        'convert',
        f'--dataset={self.directory}',
        f'--checkpoint_dir={output}',
        '--task_mb=0.0001',
        *_PROCESSES,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    found = job_testing.items_of(output)
    self.assertEqual(job_testing.rewards_of(found), job_testing.ALL_PAIRS)


if __name__ == '__main__':
  absltest.main()
