"""The folder of a job: its place, its plan, and the space on its disk."""

import json
import os
import re
import shutil
from typing import Collection, Dict, List, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.episodes import paths
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import summary as summary_lib

_LOCK = '.lock'


def default(plan: plan_lib.Plan) -> str:
  """Returns the folder of a job, if the user names none.

  It is beside the output. If that is a server, it is in the user's cache, one
  for each plan. The repair of some episodes is a job of its own.
  """
  if plan.output.kind != plan_lib.SERVER:
    repair = f'.repair-{plan.hash}' if plan.only else ''
    return f'{plan.output.place}{repair}.job'
  name = re.sub('[:/,]', '_', plan.output.place)
  return os.path.join(
      os.path.expanduser('~'),
      '.cache', 'rlds2reverb', 'jobs', f'{name}-{plan.hash}',
  )  # fmt: skip


def lock_paths(plan: plan_lib.Plan, folder: str) -> List[str]:
  """Returns the files that a job locks against other jobs.

  Several jobs may write to a server at once, and one to a directory. There are
  no locks at a URL.
  """
  locks = [os.path.join(folder, _LOCK)]
  if plan.output.kind != plan_lib.SERVER:
    parent, name = os.path.split(plan.output.place)
    locks.append(os.path.join(parent, f'.{name}.job{_LOCK}'))
  return [path for path in locks if not files.is_url(path)]


def check_same_plan(plan: plan_lib.Plan, folder: str) -> None:
  """Raises a ValueError if a folder is of a job with another plan.

  There is none if that job ended before it did anything.
  """
  stored = plan_lib.read(folder)
  if stored not in (None, plan) and is_of_use(folder, stored):
    raise ValueError(
        f'The job in {folder} was started with another plan:\n  '
        + ';\n  '.join(differences(stored, plan))
        + '.\nStart it as before, or choose another output, or remove that'
        ' folder.'
    )


def differences(plan: plan_lib.Plan, other: plan_lib.Plan) -> List[str]:
  """Returns a line for each value in which two plans differ."""
  values, others = (
      paths.leaves(json.loads(each.to_json())) for each in (plan, other)
  )
  if len(plan.tasks) != len(other.tasks):
    # The tasks then differ as a consequence, and are not listed.
    for leaves, each in (values, plan), (others, other):
      for path in [path for path in leaves if path.startswith('tasks')]:
        del leaves[path]
      leaves['number of tasks (--task_mb)'] = len(each.tasks)
  return [
      f'{path}: {values.get(path, "nothing")!r} before,'
      f' {others.get(path, "nothing")!r} now'
      for path in sorted(values.keys() | others.keys())
      if values.get(path) != others.get(path)
  ]


def is_of_use(folder: str, plan: plan_lib.Plan) -> bool:
  """Returns whether a job is done, or its tasks have made anything."""
  return bool(summary_lib.read(folder, plan.hash)) or any(
      sum(receipt.items.values()) if receipt.items else receipt.episodes
      for receipt in receipts_lib.read(folder, plan.hash).values()
  )


def remove(folder: str) -> None:
  """Removes the files of a job, but no others that are in its folder."""
  files.remove(os.path.join(folder, plan_lib.FILE))
  for name in receipts_lib.FOLDER, outputs.PARTS:
    files.remove_folder(os.path.join(folder, name))


def check_space(
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
  of_disks: Dict[int, Tuple[str, int]] = {}
  for path, size in _needed(plan, output, folder, done).items():
    if not files.is_url(path):
      path = _existing(path)
      disk = os.stat(path).st_dev
      of_disks[disk] = path, size + of_disks.get(disk, ('', 0))[1]
  for path, size in of_disks.values():
    left = shutil.disk_usage(path).free
    if left < size:
      raise OSError(
          f'The disk of {path} needs about {size / 1e6:,.1f} MB for the parts'
          f' of this job and its result, but {left / 1e6:,.1f} MB are free'
          ' there.'
      )


def explain_full(
    plan: plan_lib.Plan,
    output: outputs.JobOutput,
    folder: str,
    done: Collection[int],
) -> str:
  """Says that the disk of the result is full; see `check_space`."""
  place = plan.output.place
  size = _needed(plan, output, folder, done).get(place, 0)
  left = shutil.disk_usage(_existing(place)).free
  return (
      f'{place} could not be written, because its disk is full: the result'
      f' takes about {size / 1e6:,.1f} MB, and {left / 1e6:,.1f} MB are free.'
  )


def _needed(
    plan: plan_lib.Plan,
    output: outputs.JobOutput,
    folder: str,
    done: Collection[int],
) -> Dict[str, int]:
  """Returns about how many bytes are still to be written, by folder."""
  sizes = []
  for task in plan.tasks:
    data_set = plan.data_sets[task.source]
    size = data_set.num_bytes / data_set.num_episodes
    sizes.append(size * task.num_episodes)
  left = sum(size for number, size in enumerate(sizes) if number not in done)
  return output.space(folder, int(left), int(sum(sizes)))


def _existing(path: str) -> str:
  """Returns a local path, or the folder above it that is there."""
  while not os.path.exists(path):
    path = os.path.dirname(path)
  return path
