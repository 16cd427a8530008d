"""Checks that disks have enough space for a job."""

import os
import shutil
from typing import Collection, Dict

from rlds2reverb.datasets import files
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib


def _needed(
    plan: plan_lib.Plan,
    output: outputs.JobOutput,
    folder: str,
    done: Collection[int],
) -> Dict[str, int]:
  """Returns about how many bytes are still to be written, by folder."""
  sizes = [
      plan.data_sets[task.source].num_bytes
      / plan.data_sets[task.source].num_episodes
      * task.num_episodes
      for task in plan.tasks
  ]
  left = sum(size for number, size in enumerate(sizes) if number not in done)
  return output.space(folder, int(left), int(sum(sizes)))


def check(
    plan: plan_lib.Plan,
    output: outputs.JobOutput,
    folder: str,
    done: Collection[int],
) -> None:
  """Raises an OSError if a disk is too full for the rest of the output.

  Args:
    plan: the plan.
    output: its output.
    folder: the folder of the job.
    done: the numbers of the tasks that are done.
  """
  sizes = _needed(plan, output, folder, done)
  of_disks: Dict[int, int] = {}
  paths = {}
  for path, size in sizes.items():
    if not files.is_url(path):
      path = _existing(path)
      disk = os.stat(path).st_dev
      of_disks[disk] = of_disks.get(disk, 0) + size
      paths[disk] = path
  for disk, size in of_disks.items():
    left = _free(paths[disk])
    if left < size:
      raise OSError(
          f'The disk of {paths[disk]} needs about {size / 1e6:,.1f} MB for'
          ' the parts of this job and its result, but'
          f' {left / 1e6:,.1f} MB are free there.'
      )


def explain_full(
    plan: plan_lib.Plan,
    output: outputs.JobOutput,
    folder: str,
    done: Collection[int],
) -> str:
  """Says that the disk of the result became full; args are those of `check`."""
  place = plan.output.place
  size = _needed(plan, output, folder, done).get(place, 0)
  return (
      f'{place} could not be written, because its disk is full: the result'
      f' takes about {size / 1e6:,.1f} MB, and {_free(place) / 1e6:,.1f} MB'
      ' are free.'
  )


def _free(path: str) -> int:
  """Returns how many bytes are free where a path is, or will be."""
  return shutil.disk_usage(_existing(path)).free


def _existing(path: str) -> str:
  """Returns a local path, or the folder above it that is there."""
  while not os.path.exists(path):
    path = os.path.dirname(path)
  return path
