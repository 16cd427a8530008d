"""Tests of the parts of outputs: how they are merged, and found again."""

import os

from absl.testing import absltest

from rlds2reverb.jobs import checkpoint_output
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import tasks
from rlds2reverb.replay.checkpoint import parts
from tests.jobs import job_testing


class _Plan:
  """As much of a plan as tells what is merged."""

  def __init__(self, num_tasks):
    self.tasks = [None] * num_tasks


class MergesTest(absltest.TestCase):

  def _merges(self, num_tasks):
    return checkpoint_output.CheckpointOutput(_Plan(num_tasks)).merges()

  def test_few_parts_are_not_merged_before(self):
    self.assertEqual(self._merges(16), [])

  def test_sixty_four_parts(self):
    self.assertEqual(
        self._merges(64),
        [[range(0, 16), range(16, 32), range(32, 48), range(48, 64)]],
    )

  def test_levels_until_sixteen_are_left(self):
    first, second = self._merges(16**3 - 1)
    self.assertLen(first, 256)
    self.assertEqual(first[-1], range(4080, 4095))
    self.assertLen(second, 16)
    self.assertEqual(second[1], range(256, 512))
    self.assertEqual(second[-1], range(3840, 4095))


class PartsTest(job_testing.JobTestCase):

  def test_a_merge_that_was_interrupted(self):
    plan = self.plan(plan_lib.CHECKPOINT, self.new())
    folder = self.new('job')
    os.mkdir(folder)
    output = checkpoint_output.CheckpointOutput(plan)
    done = {}
    for number in range(4):
      done[number] = tasks.run_task(plan, number, folder)
    # The larger part is there, and so are those that it was made of.
    merged = os.path.join(folder, 'parts', '00000000-00000002')
    parts.merge_parts(output.parts(folder, range(0, 2)), merged)
    names = ['00000000-00000002', '00000002-00000003', '00000003-00000004']
    self.assertEqual(
        [os.path.basename(path) for path in output.parts(folder, range(4))],
        names,
    )
    output.merge(folder, range(0, 2))
    self.assertEqual(sorted(os.listdir(os.path.join(folder, 'parts'))), names)
    self.assertEqual(output.lost(folder, done), {})
    # What is joined in a part that is larger still is not joined again.
    for numbers in range(0, 4), range(0, 2):
      output.merge(folder, numbers)
      self.assertEqual(
          os.listdir(os.path.join(folder, 'parts')), ['00000000-00000004']
      )
    self.assertEqual(output.lost(folder, done), {})
    with self.assertRaisesRegex(FileNotFoundError, 'The output of task 4'):
      output.parts(folder, range(0, 5))


if __name__ == '__main__':
  absltest.main()
