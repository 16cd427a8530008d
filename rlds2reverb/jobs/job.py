"""A job: its plan, and the files in its folder.

plan.json          the plan, which never changes
receipts/          a file for each task that is done
parts/             the output of these tasks, until it is joined
quarantine.jsonl   the invalid episodes
summary.json       what was done, when all is done
"""

import functools
import json
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import paths
from rlds2reverb.jobs import plan as plan_lib

# What a task did, as JSON values: a small file, left when its output is whole.
#
#   task: its number
#   plan: the hash of the plan
#   data: the state of the files that were read; see `OpenSource.state_of`
#   episodes, steps, num_bytes, statistics: see `counts`
#   items: how many items each table got, by its name
#   skipped: the invalid episodes; see `TaskEpisodes.skipped`
#   filtered: how many episodes the source's filters left out
#   seconds: how long the task took
#   output: values that the output needs about the task's result
Receipt = Dict[str, Any]


class Job:
  """A plan and its folder; pickled, it is the folder and the plan's hash.

  Attributes:
    folder: the folder, by default beside the output. If that is a server, it is
      in the user's cache, one for each plan. The repair of some episodes is a
      job of its own.
    hash: the hash of the plan.
    plan: the plan. A worker reads it from the folder.
  """

  def __init__(
      self, plan: plan_lib.Plan, folder: Optional[files.PathLike] = None
  ):
    place = plan.output.place
    if not folder and plan.output.kind == plan_lib.SERVER:
      name = re.sub('[:/,]', '_', place)
      folder = f'~/.cache/rlds2reverb/jobs/{name}-{plan.hash}'
    elif not folder:
      repair = f'.repair-{plan.hash}' if plan.only else ''
      folder = f'{place}{repair}.job'
    self.folder = files.expand(folder)
    self.hash = plan.hash
    self.plan = plan

  def __reduce__(self):
    return _job_of, (self.folder, self.hash)

  def path(self, *names: str) -> str:
    """Returns the path of something in the folder."""
    return os.path.join(self.folder, *names)

  def part(self, number: int) -> str:
    """Returns the folder with the output of a task."""
    # All names have one length, because some stores find files by the start of
    # a name.
    return self.path('parts', f'{number:08d}')

  def whole_parts(self, marker: str) -> List[int]:
    """Returns the tasks whose parts are there, and have a file `marker`."""
    return [
        int(name)
        for name in files.names_in(self.path('parts'))
        if name.isdigit() and files.exists(self.path('parts', name, marker))
    ]

  def remove_parts(self) -> None:
    files.remove_folder(self.path('parts'))

  def locks(self) -> List[str]:
    """Returns the files whose locks keep other jobs from folder and output.

    Several jobs may write to a server at once, and one to a directory.
    """
    found = [self.path('.lock')]
    if self.plan.output.kind != plan_lib.SERVER:
      parent, name = os.path.split(self.plan.output.place)
      found.append(os.path.join(parent, f'.{name}.job.lock'))
    return found

  def check_same_plan(self) -> None:
    """Raises a ValueError if the folder has tasks done of another plan."""
    stored = _plan_in(self.folder)
    if stored not in (None, self.plan) and self.done():
      raise ValueError(
          f'The job in {self.folder} was started with another plan:\n  '
          + ';\n  '.join(differences(stored, self.plan))
          + '.\nStart it as before, or choose another output, or remove that'
          ' folder.'
      )

  def begin(self) -> None:
    """Writes the plan, in the place of one of which no task was done."""
    self.check_same_plan()
    if _plan_in(self.folder) != self.plan:
      whole.write_text(self.path('plan.json'), self.plan.to_json())

  def done(self) -> List[int]:
    """Returns the tasks that have a receipt, of whatever plan."""
    names = files.names_in(self.path('receipts'))
    return [int(name[:-5]) for name in names if re.match(r'\d+\.json$', name)]

  def receipts(self) -> Dict[int, Receipt]:
    """Returns the receipts by their numbers; those of another plan are not."""
    found = {number: self.receipt(number) for number in self.done()}
    return {n: one for n, one in found.items() if one['plan'] == self.hash}

  def receipt(self, number: int) -> Receipt:
    return self.read(*_receipt_of(number))

  def write_receipt(self, receipt: Receipt) -> None:
    """Writes a receipt, so that it is on disk."""
    files.make_folder(self.path('receipts'))
    self.write(receipt, *_receipt_of(receipt['task']))

  def forget(self, number: int) -> None:
    """Removes the receipt of a task, which has to be done again."""
    files.remove(self.path(*_receipt_of(number)))

  def write_quarantine(self, receipts: Mapping[int, Receipt]) -> str:
    """Writes the invalid episodes, a line of JSON each; returns the path."""
    lines = [
        json.dumps(bad) + '\n'
        for _, receipt in sorted(receipts.items())
        for bad in receipt['skipped']
    ]
    path = self.path('quarantine.jsonl')
    whole.write_text(path, ''.join(lines))
    return path

  def read(self, *names: str) -> Any:
    """Returns the JSON value in a file of the folder; None without a file."""
    return _read(self.path(*names))

  def write(self, value: Any, *names: str) -> None:
    """Writes a JSON value to a file of the folder."""
    whole.write_text(self.path(*names), json.dumps(value, indent=1))


def _receipt_of(number: int) -> Tuple[str, str]:
  return 'receipts', f'{number:05d}.json'


def differences(plan: plan_lib.Plan, other: plan_lib.Plan) -> List[str]:
  """Returns a line for each value in which two plans differ."""
  plains = [json.loads(each.to_json()) for each in (plan, other)]
  if len(plan.tasks) != len(other.tasks):
    # The tasks then differ as a consequence, and are not listed.
    for plain in plains:
      plain['number of tasks (--task_mb)'] = len(plain.pop('tasks'))
  values, others = map(paths.leaves, plains)
  return [
      f'{path}: {values.get(path, "nothing")!r} before,'
      f' {others.get(path, "nothing")!r} now'
      for path in sorted(values.keys() | others.keys())
      if values.get(path) != others.get(path)
  ]


def _read(path: str) -> Any:
  try:
    with files.open_text(path) as f:
      return json.load(f)
  except (FileNotFoundError, NotADirectoryError):
    return None


def _plan_in(folder: str) -> Optional[plan_lib.Plan]:
  plain = _read(os.path.join(folder, 'plan.json'))
  return plain and plan_lib.from_plain(plain)


@functools.lru_cache(maxsize=1)
def _job_of(folder: str, plan_hash: str) -> Job:
  """Returns the job in a folder, for a worker."""
  plan = _plan_in(folder)
  if plan is None or plan.hash != plan_hash:
    raise ValueError(f'This worker does not find the plan in {folder}.')
  return Job(plan, folder)
