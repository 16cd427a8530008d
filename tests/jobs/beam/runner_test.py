"""Tests of conversion jobs on Beam, beside those of the local runner."""

import os
import re
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from rlds2reverb.jobs import tasks
from tests import ram_files  # noqa: F401
from tests.jobs import data_sets
from tests.jobs import job_testing
from tests.jobs.beam import beam_testing

_FN_API = '--runner=FnApiRunner'
_BUNDLE_BASED = '--runner=BundleBasedDirectRunner'
_PROCESSES = (
    _FN_API,
    '--direct_num_workers=2',
    '--direct_running_mode=multi_processing',
)


@beam_testing.needs_beam
class BeamRunnerTest(beam_testing.BeamTestCase):

  def _check_same_folder(self, kind, *options):
    # Parts of two tasks, which are joined before the whole output.
    with mock.patch.object(outputs, '_PARTS_PER_MERGE', 2):
      local = self.plan(kind, self.new('output'))
      on_beam = self.plan(kind, self.new('output'))
      self.assertLen(on_beam.tasks, 4)
      expected = self.convert(local)
      summary = self.run_on_beam(on_beam, *options)
    self.assertEqual(
        beam_testing.contents_of(on_beam.output.place),
        beam_testing.contents_of(local.output.place),
    )
    self.assertEqual(self.receipts_of(on_beam), self.receipts_of(local))
    for name in expected.keys() - {
        'plan',
        'output',
        'seconds',
        'seconds_of_tasks',
    }:
      self.assertEqual(summary[name], expected[name], name)
    self.assertEqual(
        sorted(os.listdir(self.job_folder(on_beam))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )

  @parameterized.product(
      kind=[plan_lib.CHECKPOINT, plan_lib.RLDS],
      runner=[_FN_API, _BUNDLE_BASED],
  )
  @pytest.mark.long
  def test_a_folder_is_that_of_the_local_runner_to_the_last_bit(
      self, kind, runner
  ):
    self._check_same_folder(kind, runner)
    steps = sum(job_testing.LENGTHS)
    self.assertEqual(
        self.runner.counters,
        {
            'episodes': 8,
            'steps': steps,
            'items': steps - 8 if kind == plan_lib.CHECKPOINT else 0,
            'skipped': 0,
            # Three step types of int32, and five numbers of float32.
            'bytes': steps * (2 + 5) * 4,
        },
    )

  @pytest.mark.long
  def test_two_worker_processes_make_the_same_folder(self):
    self._check_same_folder(plan_lib.CHECKPOINT, *_PROCESSES)

  @pytest.mark.long
  def test_an_object_store(self):
    local = self.plan(plan_lib.CHECKPOINT, self.new())
    self.convert(local)
    stored = self.plan(plan_lib.CHECKPOINT, 'ram://beam/output')
    with mock.patch.object(outputs, '_PARTS_PER_MERGE', 2):
      self.run_on_beam(stored, _FN_API, folder='ram://beam/job')
    for name, content in beam_testing.contents_of(local.output.place).items():
      with tf.io.gfile.GFile(f'ram://beam/output/{name}', 'rb') as f:
        self.assertEqual(f.read(), content, name)

  @parameterized.parameters(plan_lib.CHECKPOINT, plan_lib.SERVER)
  def test_bundles_that_fail_before_a_receipt_are_tried_again(self, kind):
    place = self.new()
    if kind == plan_lib.SERVER:
      place = f'localhost:{self.start_server().port}'
    plan = self.plan(kind, place)
    rng = np.random.default_rng(1)
    failed = []
    write = receipts.write

    def write_or_fail(folder, receipt):
      failed.append(rng.random() < 0.3)
      if failed[-1]:
        raise OSError('The worker has died.')
      write(folder, receipt)

    with mock.patch.object(receipts, 'write', write_or_fail):
      summary = self.run_on_beam(plan, _BUNDLE_BASED)
    self.assertGreater(sum(failed), 0)
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    if kind == plan_lib.SERVER:
      items = job_testing.items_in(reverb.Client(place))
    else:
      items = job_testing.items_of(place)
    self.assertEqual(job_testing.rewards_of(items), job_testing.ALL_PAIRS)

  def test_a_job_that_fails_goes_on_where_it_was(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new())
    run_task = tasks.run_task
    done = []

    def run(plan, number, *args, **kwargs):
      if number == 2:
        raise OSError('No space left.')
      done.append(number)
      return run_task(plan, number, *args, **kwargs)

    with mock.patch.object(tasks, 'run_task', run):
      with self.assertRaisesRegex(
          convert.JobError,
          r'task 2: train\[4:6\] in .*tfrecord-00002: No space left',
      ):
        self.run_on_beam(plan, _FN_API)
    left = {0, 1, 2, 3} - set(done)
    self.assertSameElements(
        done, receipts.read(self.job_folder(plan), plan.hash)
    )
    done.clear()
    with mock.patch.object(
        tasks,
        'run_task',
        lambda plan, number, *args: done.append(number)
        or run_task(plan, number, *args),
    ):
      self.run_on_beam(plan, _FN_API)
    self.assertSameElements(done, left)
    self.assertEqual(
        job_testing.rewards_of(job_testing.items_of(plan.output.place)),
        job_testing.ALL_PAIRS,
    )

  def test_a_damaged_file_keeps_no_other_task_from_being_done(self):
    directory = self.new('data')
    shutil.copytree(self.directory, directory)
    path = data_sets.files_of(directory)[1]
    os.truncate(path, os.path.getsize(path) - 10)
    plan = self.plan(plan_lib.CHECKPOINT, self.new(), directory=directory)
    with self.assertRaisesRegex(
        convert.JobError, f'task 1: {path} is damaged after 1 whole episode:'
    ):
      self.run_on_beam(plan, _FN_API)
    self.assertSameElements(
        receipts.read(self.job_folder(plan), plan.hash), [0, 2, 3]
    )
    self.assertFalse(os.path.exists(plan.output.place))

  def test_invalid_episodes_fail_no_bundle(self):
    episodes = [
        data_sets.episode(index, length)
        for index, length in enumerate(job_testing.LENGTHS)
    ]
    episodes[3]['steps'][1]['discount'] = 1.5
    directory = data_sets.write(self.new('data'), episodes)
    kwargs = {'directory': directory}
    local = self.plan(plan_lib.CHECKPOINT, self.new(), **kwargs)
    on_beam = self.plan(plan_lib.CHECKPOINT, self.new(), **kwargs)
    self.convert(local)
    with self.assertRaisesRegex(
        tasks.InvalidEpisodesError, '1 episode is invalid, and 0 of 8 may be'
    ):
      self.run_on_beam(on_beam, _FN_API, max_invalid_fraction=0.0)
    self.assertFalse(os.path.exists(on_beam.output.place))
    summary = self.run_on_beam(on_beam, _FN_API)
    self.assertEqual(summary['skipped'], 1)
    self.assertEqual(self.receipts_of(on_beam), self.receipts_of(local))
    quarantined = [
        beam_testing.contents_of(self.job_folder(plan))['quarantine.jsonl']
        for plan in (local, on_beam)
    ]
    self.assertEqual(*quarantined)

  def test_runners_and_options_that_are_not_there(self):
    from rlds2reverb.jobs.beam import runner  # pylint: disable=g-import-not-at-top

    for options, message in (
        (['--runner=FlinkRuner'], 'no runner FlinkRuner. Did you mean FlinkRu'),
        (['--runner=no.such.Runner'], 'There is no runner no.such.Runner'),
        ([*_PROCESSES, '--direct_num_worker=2'], 'mean --direct_num_workers '),
        ([*_PROCESSES, '--sequence_lenght=2'], 'mean --sequence_length?'),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, re.escape(message)):
          runner.BeamRunner(options, ['sequence_length'])
    runner.BeamRunner([*_PROCESSES, '--of_an_engine=1', '--flag'])


if __name__ == '__main__':
  absltest.main()
