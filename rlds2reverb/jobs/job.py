"""A job: a plan and a folder that stores its progress.

plan.json          the plan, which never changes
receipts/          a file for each finished task
parts/             the outputs of finished tasks, until they are joined
quarantine.jsonl   the invalid episodes
summary.json       the summary of a finished job
"""

from collections.abc import Mapping
import functools
import json
import os
import re
from typing import Any

from rlds2reverb.datasets import files
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import paths
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.store import damage

# The result of a task, as JSON values. It is written after the output.
#
#   task: the number of the task
#   plan: the hash of the plan
#   input_state: the state of the input files; see `OpenSource.compute_state`
#   checksum: a hash of their contents, if the job compares checksums
#   episodes, steps, num_bytes, statistics: see `tasks.make_counts`
#   items: the number of items by table
#   skipped: the invalid episodes; see `TaskEpisodes.list_skipped`
#   filtered: the number of episodes that filters dropped
#   seconds: the duration of the task
#   output: values of the output; see `JobOutput.write`
Receipt = dict[str, Any]

_NUMBER = (int, float)
_RECEIPT_TYPES: dict[str, Any] = {
    'task': int,
    'input_state': object,
    **dict.fromkeys(('episodes', 'steps', 'num_bytes', 'filtered'), int),
    'seconds': _NUMBER,
    **dict.fromkeys(('statistics', 'items', 'output'), dict),
    'skipped': list,
}
# Some of the statistics may be missing; see `tasks.merge_counts`.
_REWARD_TYPES = {'episodes': int, 'sum': _NUMBER}
_STATISTICS_TYPES: dict[str, Any] = {
    'last_rewards': _REWARD_TYPES,
    'dropped_rewards': _REWARD_TYPES,
    **dict.fromkeys(('nan', 'removed_steps'), {}),
    **dict.fromkeys(('length', 'return'), {'count': int, 'sum': _NUMBER}),
}


class Job:
  """A plan and its folder. It is pickled as the folder and the plan's hash.

  Attributes:
    folder: the folder, by default next to the output. For a server it is in the
      user's cache, one per plan. The repair of some episodes is a separate job.
    hash: the hash of the plan.
    plan: the plan. A worker reads it from the folder.
  """

  def __init__(self, plan: plan_lib.Plan, folder: files.PathLike | None = None):
    place = plan.output.place
    if not folder and plan.output.kind == plan_lib.SERVER:
      name = re.sub('[:/,]', '_', place)
      folder = f'~/.cache/rlds2reverb/jobs/{name}-{plan.hash}'
    elif not folder:
      repair = f'.repair-{plan.hash}' if plan.only_listed_in else ''
      folder = f'{place}{repair}.job'
    self.folder = files.expand(folder)
    self.hash = plan.hash
    self.plan = plan

  def __reduce__(self):
    return _load_job, (self.folder, self.hash)

  def path(self, *names: str) -> str:
    """Returns the path of a file in the folder."""
    return os.path.join(self.folder, *names)

  def part(self, number: int) -> str:
    """Returns the folder for the output of a task."""
    # All names have the same length, as some object stores list files by
    # prefix.
    return self.path('parts', f'{number:08d}')

  def list_parts(self, marker: str) -> list[int]:
    """Returns the tasks whose parts have a file `marker`."""
    return [
        int(name)
        for name in files.names_in(self.path('parts'))
        if name.isdigit() and files.exists(self.path('parts', name, marker))
    ]

  def remove_parts(self) -> None:
    files.remove_folder(self.path('parts'))

  def locks(self) -> list[str]:
    """Returns the lock files of the folder and the output.

    Several jobs may write to a server concurrently, but only one to a folder.
    """
    lock_paths = [self.path('.lock')]
    if self.plan.output.kind != plan_lib.SERVER:
      parent, name = os.path.split(self.plan.output.place)
      lock_paths.append(os.path.join(parent, f'.{name}.job.lock'))
    return lock_paths

  def check_same_plan(self) -> None:
    """Compares the plan with the stored one.

    Raises:
      OSError: if a file of the folder is damaged or a symbolic link.
      ValueError: if tasks of another plan are finished.
    """
    if not files.is_url(self.folder):
      for folder in '', 'parts', 'receipts', 'failures':
        for name in files.names_in(self.path(folder)):
          damage.refuse_link(self.path(folder, name))
    stored = _read_plan(self.folder)
    if stored not in (None, self.plan) and self.list_done():
      raise ValueError(
          f'The job in {self.folder} was started with another plan:\n  '
          + ';\n  '.join(find_differences(stored, self.plan))
          + '.\nStart it as before, or choose another output, or remove that'
          ' folder.'
      )

  def begin(self) -> None:
    """Writes the plan, unless tasks of another plan are finished."""
    self.check_same_plan()
    if _read_plan(self.folder) != self.plan:
      files.write_text(self.path('plan.json'), self.plan.to_json())

  def list_done(self) -> list[int]:
    """Returns the tasks that have a receipt, of any plan."""
    names = files.names_in(self.path('receipts'))
    return [int(name[:-5]) for name in names if re.match(r'\d+\.json$', name)]

  def receipts(self) -> dict[int, Receipt]:
    """Returns the receipts of this plan, by the number of the task.

    Raises:
      OSError: if a receipt is damaged.
    """
    receipts = {number: self.receipt(number) for number in self.list_done()}
    return {n: r for n, r in receipts.items() if r['plan'] == self.hash}

  def receipt(self, number: int) -> Receipt:
    """Returns the receipt of a task; raises an OSError if it is damaged."""
    path = self._receipt_path(number)
    remedy = 'Remove it: its task is then repeated.'
    if files.exists(self.path('summary.json')):
      remedy = (
          'The job has ended, and its output is complete. Remove'
          f' {self.folder} and the output to convert the data again.'
      )
    receipt = _read_json(path, remedy)
    with damage.naming_damage(path, remedy):
      if receipt is None or receipt['plan'] != self.hash:
        return receipt or {'plan': None}  # It is ignored.
      _check_types(receipt, _RECEIPT_TYPES)
      _check_statistics(receipt['statistics'])
      _check_types(receipt['items'], dict.fromkeys(receipt['items'], int))
      if receipt['task'] != number:
        raise ValueError(f'it is of task {receipt["task"]}')
    return receipt

  def write_receipt(self, receipt: Receipt) -> None:
    """Writes a receipt to disk."""
    files.make_folder(self.path('receipts'))
    path = self._receipt_path(receipt['task'])
    files.write_text(path, json.dumps(receipt, indent=1))

  def remove_receipt(self, number: int) -> None:
    """Removes the receipt of a task that has to be repeated."""
    files.remove(self._receipt_path(number))

  def _receipt_path(self, number: int) -> str:
    return self.path('receipts', f'{number:05d}.json')

  def write_quarantine(self, receipts: Mapping[int, Receipt]) -> str:
    """Writes the invalid episodes as lines of JSON; returns the path."""
    lines = [
        json.dumps(bad) + '\n'
        for _, receipt in sorted(receipts.items())
        for bad in receipt['skipped']
    ]
    path = self.path('quarantine.jsonl')
    files.write_text(path, ''.join(lines))
    return path

  def read(self, *names: str) -> Any:
    """Returns the JSON value of a file of the folder; None without a file."""
    path = self.path(*names)
    return _read_json(path, 'Remove it, and start the same command again.')

  def write(self, value: Any, *names: str) -> None:
    """Writes a JSON value to a file of the folder."""
    files.write_text(self.path(*names), json.dumps(value, indent=1))


def _check_types(values: Mapping[str, Any], types: Mapping[str, Any]) -> None:
  """Raises a KeyError or ValueError unless values have the given types."""
  for name, expected in types.items():
    if not isinstance(values[name], expected):
      raise ValueError(f'its {name} is {values[name]!r}')


def _check_statistics(statistics: Mapping[str, Any]) -> None:
  """Raises a KeyError or ValueError unless they can be added to others."""
  for name, value in statistics.items():
    types = _STATISTICS_TYPES.get(name)
    _check_types(statistics, {name: int if types is None else dict})
    if types is not None:
      _check_types(value, types or dict.fromkeys(value, int))
      if value.get('count') and 'count' in types:
        _check_types(value, {'min': _NUMBER, 'max': _NUMBER})


def find_differences(stored: plan_lib.Plan, plan: plan_lib.Plan) -> list[str]:
  """Returns a line for each value that differs between two plans."""
  old, new = json.loads(stored.to_json()), json.loads(plan.to_json())
  if len(stored.tasks) != len(plan.tasks):
    # Then the tasks differ as a consequence, and are not listed.
    for values in old, new:
      values['number of tasks (--task_mb)'] = len(values.pop('tasks'))
  old, new = paths.leaves(old), paths.leaves(new)
  return [
      f'{path}: {old.get(path, "nothing")!r} before,'
      f' {new.get(path, "nothing")!r} now'
      for path in sorted(old.keys() | new.keys())
      if old.get(path) != new.get(path)
  ]


def _read_json(path: str, remedy: str) -> dict[str, Any] | None:
  """Returns the value of a JSON file, or None without a file."""
  try:
    return json_files.read_json(path, remedy)
  except (FileNotFoundError, NotADirectoryError):
    return None


def _read_plan(folder: str) -> plan_lib.Plan | None:
  path = os.path.join(folder, 'plan.json')
  remedy = (
      f'If {folder} is the folder of a job, remove it and start the job again;'
      ' otherwise choose another one.'
  )
  values = _read_json(path, remedy)
  if values is None:
    return None
  with damage.naming_damage(path, remedy):
    return plan_lib.from_json(values)


@functools.lru_cache(maxsize=1)
def _load_job(folder: str, plan_hash: str) -> Job:
  """Returns the job in a folder, for a worker."""
  plan = _read_plan(folder)
  if plan is None or plan.hash != plan_hash:
    raise ValueError(f'This worker does not find the plan in {folder}.')
  return Job(plan, folder)
