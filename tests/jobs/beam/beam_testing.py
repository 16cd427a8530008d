"""Jobs on Beam, and what they leave; for tests that need Apache Beam."""

import dataclasses
import importlib.util
import os
from typing import Any, Dict
import unittest

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts
from tests.jobs import job_testing

needs_beam = unittest.skipIf(
    importlib.util.find_spec('apache_beam') is None,
    "Apache Beam is not installed: pip install -e '.[beam]'",
)


class BeamTestCase(job_testing.JobTestCase):
  """Compares jobs on Beam with those of the local runner."""

  def run_on_beam(
      self, plan: plan_lib.Plan, *options: str, **kwargs: Any
  ) -> Dict[str, Any]:
    """Does a plan on Beam; returns the summary, and keeps the runner."""
    from rlds2reverb.jobs.beam import runner  # pylint: disable=g-import-not-at-top

    self.runner = runner.BeamRunner(options)
    return self.convert(plan, runner=self.runner, **kwargs)

  def receipts_of(self, plan: plan_lib.Plan) -> Dict[int, Dict[str, Any]]:
    """Returns the receipts of a job, but for what depends on its place."""
    found = receipts.read(self.job_folder(plan), plan.hash)
    return {
        number: {
            **dataclasses.asdict(receipt),
            'plan': None,
            'seconds': None,
            'output': {
                name: value
                for name, value in receipt.output.items()
                if name in ('bytes', 'files')
            },
        }
        for number, receipt in found.items()
    }


def contents_of(directory: str) -> Dict[str, bytes]:
  """Returns the bytes of all files of a folder, by their names."""
  contents = {}
  for entry in os.scandir(directory):
    if entry.is_file():
      with open(entry.path, 'rb') as f:
        contents[entry.name] = f.read()
  return contents
