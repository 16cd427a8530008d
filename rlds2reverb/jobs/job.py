"""A job: its plan, and the files in its folder.

plan.json          the plan, which never changes
receipts/          a file for each task that is done
parts/             the output of these tasks, until it is joined
quarantine.jsonl   the invalid episodes
summary.json       what was done, when all is done
"""

import contextlib
import functools
import json
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional

from rlds2reverb.datasets import files
from rlds2reverb.datasets import locks
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import paths
from rlds2reverb.jobs import plan as plan_lib

QUARANTINE = 'quarantine.jsonl'
_PLAN = 'plan.json'
_RECEIPTS = 'receipts'
_PARTS = 'parts'
_SUMMARY = 'summary.json'
_LOCK = '.lock'


# What a task did, as JSON values: a small file, left when its output is whole.
#
#   task: its number
#   plan: the hash of the plan
#   data: the state of the files that were read; see `OpenSource.state_of`
#   episodes, steps, num_bytes, statistics: see `task_episodes.no_counts`
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
    self._plan: Optional[plan_lib.Plan] = plan

  def __getstate__(self) -> Dict[str, Any]:
    return {**vars(self), '_plan': None}

  @property
  def plan(self) -> plan_lib.Plan:
    return self._plan or _plan_of(self.folder, self.hash)

  def path(self, *names: str) -> str:
    """Returns the path of something in the folder."""
    return os.path.join(self.folder, *names)

  def part(self, number: int) -> str:
    """Returns the folder with the output of a task."""
    # All names have one length, because some stores find files by the start of
    # a name.
    return self.path(_PARTS, f'{number:08d}')

  def whole_parts(self, marker: str) -> List[int]:
    """Returns the tasks whose parts are there, and have a file `marker`."""
    return [
        int(name)
        for name in files.names_in(self.path(_PARTS))
        if name.isdigit() and files.exists(self.path(_PARTS, name, marker))
    ]

  def remove_parts(self) -> None:
    files.remove_folder(self.path(_PARTS))

  @contextlib.contextmanager
  def locked(self) -> Iterator[None]:
    """Keeps other jobs away from the folder and the output.

    Several jobs may write to a server at once, and one to a directory. There
    are no locks at a URL.
    """
    place = self.plan.output.place
    locked = [self.path(_LOCK)]
    if self.plan.output.kind != plan_lib.SERVER:
      parent, name = os.path.split(place)
      locked.append(os.path.join(parent, f'.{name}.job{_LOCK}'))
    with contextlib.ExitStack() as stack:
      for path in locked:
        if not files.is_url(path):
          stack.enter_context(locks.locked(path, place))
      yield

  def check_same_plan(self) -> None:
    """Raises a ValueError if the folder is of a job with another plan.

    There is none if that job ended before it did anything.
    """
    stored = _read_plan(self.folder)
    if stored not in (None, self.plan) and Job(stored, self.folder).is_of_use():
      raise ValueError(
          f'The job in {self.folder} was started with another plan:\n  '
          + ';\n  '.join(differences(stored, self.plan))
          + '.\nStart it as before, or choose another output, or remove that'
          ' folder.'
      )

  def begin(self) -> None:
    """Writes the plan, in the place of what is left of another one."""
    if _read_plan(self.folder) != self.plan:
      self.remove()
      whole.write_text(self.path(_PLAN), self.plan.to_json())

  def is_of_use(self) -> bool:
    """Returns whether it is done, or its tasks have made anything."""
    return bool(self.summary()) or any(
        sum(receipt['items'].values() or [receipt['episodes']])
        for receipt in self.receipts().values()
    )

  def remove(self) -> None:
    """Removes its files but the quarantine, and no others in its folder."""
    files.remove(self.path(_PLAN))
    files.remove_folder(self.path(_RECEIPTS))
    self.remove_parts()

  def done(self) -> List[int]:
    """Returns the tasks that have a receipt, of whatever plan."""
    names = files.names_in(self.path(_RECEIPTS))
    stems = [name.removesuffix('.json') for name in names]
    return [int(stem) for stem in stems if stem.isdigit()]

  def receipts(
      self, numbers: Optional[Iterable[int]] = None
  ) -> Dict[int, Receipt]:
    """Returns the receipts of tasks, by number; those of another plan are not.

    Args:
      numbers: the tasks, which are done; by default all that are.
    """
    found = {}
    for number in self.done() if numbers is None else numbers:
      with files.open_text(self._receipt(number)) as f:
        receipt = json.load(f)
      if receipt['plan'] == self.hash:
        found[number] = receipt
    return found

  def write_receipt(self, receipt: Receipt) -> None:
    """Writes a receipt, so that it is on disk."""
    files.make_folder(self.path(_RECEIPTS))
    path = self._receipt(receipt['task'])
    whole.write_text(path, json.dumps(receipt, indent=1))

  def forget(self, number: int) -> None:
    """Removes the receipt of a task, which has to be done again."""
    files.remove(self._receipt(number))

  def _receipt(self, number: int) -> str:
    return self.path(_RECEIPTS, f'{number:05d}.json')

  def write_quarantine(self, receipts: Mapping[int, Receipt]) -> str:
    """Writes the episodes that were left out, a line of JSON each.

    Args:
      receipts: the receipts of the tasks.

    Returns:
      The path of the file.
    """
    lines = [
        json.dumps(bad) + '\n'
        for _, receipt in sorted(receipts.items())
        for bad in receipt['skipped']
    ]
    whole.write_text(self.path(QUARANTINE), ''.join(lines))
    return self.path(QUARANTINE)

  def summary(self) -> Dict[str, Any]:
    """Returns the summary; an empty dict if there is none of this plan."""
    path = self.path(_SUMMARY)
    if not files.exists(path):
      return {}
    with files.open_text(path) as f:
      summary = json.load(f)
    return summary if summary['plan'] == self.hash else {}

  def write_summary(self, summary: Mapping[str, Any]) -> None:
    """Writes the summary; an empty one is removed."""
    if summary:
      whole.write_text(self.path(_SUMMARY), json.dumps(summary, indent=1))
    else:
      files.remove(self.path(_SUMMARY))


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


def _read_plan(folder: str) -> Optional[plan_lib.Plan]:
  path = os.path.join(folder, _PLAN)
  if not files.exists(path):
    return None
  with files.open_text(path) as f:
    return plan_lib.from_json(f.read())


@functools.lru_cache(maxsize=1)
def _plan_of(folder: str, plan_hash: str) -> plan_lib.Plan:
  """Returns the plan in the folder of a job, for a worker."""
  plan = _read_plan(folder)
  if plan is None or plan.hash != plan_hash:
    raise ValueError(f'This worker does not find the plan in {folder}.')
  return plan
