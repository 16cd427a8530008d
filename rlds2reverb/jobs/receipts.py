"""Receipts: small JSON files that tasks leave when their output is whole."""

import dataclasses
import json
import os
from typing import Any, Dict, List, Optional

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole

FOLDER = 'receipts'


@dataclasses.dataclass(frozen=True)
class Bad:
  """An episode that was left out, a line of a quarantine file.

  Attributes:
    data_set: the name of the data set, with its config and version.
    directory: the folder of its version.
    split: the name of the split.
    file: the file that holds the episode.
    episode: the index of the episode in the split.
    step: the index of the step at fault; None if it is not one step.
    rule: the sentence that the episode breaks.
    values: what was found there.
    message: the whole message.
    field: the path of the field at fault; empty if it is not one field.
  """

  data_set: str
  directory: str
  split: str
  file: str
  episode: int
  step: Optional[int]
  rule: str
  values: str
  message: str
  field: str = ''


@dataclasses.dataclass(frozen=True)
class Receipt:
  """Says what a task did.

  Attributes:
    task: the number of the task.
    plan: the hash of the plan.
    data: the state of the files that were read; see `OpenSource.state_of`.
    episodes: how many episodes were converted.
    steps: how many steps they have.
    items: how many items each table got, by its name.
    num_bytes: how many bytes the frames have, as numbers in memory.
    skipped: the episodes that were left out because they are invalid.
    filtered: how many episodes the source's filters left out.
    statistics: of the converted episodes; see `task_episodes.Measures`.
    seconds: how long the task took.
    output: values that the output needs about the task's result, in JSON.
  """

  task: int
  plan: str
  data: str
  episodes: int
  steps: int
  items: Dict[str, int]
  num_bytes: int
  skipped: List[Bad]
  filtered: int
  statistics: Dict[str, Any]
  seconds: float
  output: Dict[str, Any]


def write(folder: str, receipt: Receipt) -> None:
  """Writes a receipt into the folder of a job, so that it is on disk."""
  path = path_of(folder, receipt.task)
  files.make_folder(os.path.dirname(path))
  whole.write_text(path, json.dumps(dataclasses.asdict(receipt), indent=1))


def read(folder: str, plan: str) -> Dict[int, Receipt]:
  """Returns the receipts of a job, by task.

  Args:
    folder: the folder of the job.
    plan: the hash of its plan. Receipts of another plan are left out.
  """
  receipts = {}
  for name in files.names_in(os.path.join(folder, FOLDER)):
    if name.startswith('.') or not name.endswith('.json'):
      continue
    receipt = _read(os.path.join(folder, FOLDER, name))
    if receipt.plan == plan:
      receipts[receipt.task] = receipt
  return receipts


def numbers(folder: str) -> List[int]:
  """Returns the tasks that have a receipt, of whatever plan."""
  names = files.names_in(os.path.join(folder, FOLDER))
  stems = [name.removesuffix('.json') for name in names]
  return [int(stem) for stem in stems if stem.isdigit()]


def read_one(folder: str, plan: str, task: int) -> Optional[Receipt]:
  """Returns the receipt of a task; None if there is none of this plan."""
  path = path_of(folder, task)
  receipt = _read(path) if files.exists(path) else None
  return receipt if receipt and receipt.plan == plan else None


def _read(path: str) -> Receipt:
  with files.open_text(path) as f:
    plain = json.load(f)
  plain['skipped'] = [Bad(**bad) for bad in plain['skipped']]
  return Receipt(**plain)


def remove(folder: str, task: int) -> None:
  """Removes the receipt of a task, which has to be done again."""
  files.remove(path_of(folder, task))


def path_of(folder: str, task: int) -> str:
  """Returns where the receipt of a task is."""
  return os.path.join(folder, FOLDER, f'{task:05d}.json')
