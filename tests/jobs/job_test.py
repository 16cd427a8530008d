"""Tests of the files of a job."""

import os
import pickle

from absl.testing import absltest

from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib

_PLAN = plan_lib.Plan(
    (), (), plan_lib.Output(plan_lib.RLDS, '/out', 'train'), (), {}, ()
)


def _receipt(task, plan=_PLAN.hash):
  return {'task': task, 'plan': plan, 'items': {'t': 6}, 'skipped': []}


class JobTest(absltest.TestCase):

  def test_receipts_that_are_written_are_read(self):
    job = job_lib.Job(_PLAN, self.create_tempdir().full_path)
    self.assertEqual(job.receipts(), {})
    for receipt in _receipt(0), _receipt(12), _receipt(3, 'another'):
      job.write_receipt(receipt)
    self.assertEqual(job.receipts(), {0: _receipt(0), 12: _receipt(12)})
    job.forget(0)
    self.assertSameElements(job.receipts(), [12])
    # Nothing but receipts stays there.
    self.assertEqual(
        sorted(os.listdir(job.path('receipts'))), ['00003.json', '00012.json']
    )

  def test_a_worker_reads_the_plan_from_the_folder(self):
    job = job_lib.Job(_PLAN, self.create_tempdir().full_path)
    moved = pickle.loads(pickle.dumps(job))
    with self.assertRaisesRegex(ValueError, 'does not find the plan in'):
      _ = moved.plan
    job.begin()
    self.assertEqual(moved.plan, _PLAN)


if __name__ == '__main__':
  absltest.main()
