"""The summary of a finished job: a table to read, and JSON."""

import dataclasses
import json
import os
from typing import Any, Dict, List, Mapping, Sequence

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import task_episodes
from rlds2reverb.trajectories import report as report_lib

SUMMARY = 'summary.json'
QUARANTINE = 'quarantine.jsonl'
_LABELS = {'length': 'transitions', 'return': 'return'}


def make(
    plan: plan_lib.Plan, receipts: Mapping[int, receipts_lib.Receipt]
) -> Dict[str, Any]:
  """Returns the summary of a job, as JSON values."""
  done = list(receipts.values())
  rules: Dict[str, int] = {}
  for receipt in done:
    for bad in receipt.skipped:
      rules[bad.rule] = rules.get(bad.rule, 0) + 1
  return {
      'plan': plan.hash,
      'output': dataclasses.asdict(plan.output),
      'data_sets': [dataclasses.asdict(data) for data in plan.data_sets],
      'tasks': len(done),
      'episodes': sum(receipt.episodes for receipt in done),
      'steps': sum(receipt.steps for receipt in done),
      'items': {
          table['table_name']: sum(
              receipt.items[table['table_name']] for receipt in done
          )
          for table in plan.tables
      },
      'there_before': _there_before(plan, done),
      'bytes': sum(receipt.num_bytes for receipt in done),
      'skipped': sum(len(receipt.skipped) for receipt in done),
      'skipped_by_rule': rules,
      'filtered': sum(receipt.filtered for receipt in done),
      'statistics': task_episodes.merge(
          [receipt.statistics for receipt in done]
      ),
      'seconds_of_tasks': sum(receipt.seconds for receipt in done),
  }


def _there_before(plan, done) -> int:
  """Returns how many items servers had already, under the same keys."""
  if plan.output.kind != plan_lib.SERVER:
    return 0
  return sum(
      sum(receipt.items.values())
      - sum(
          sum(of_server['new'].values())
          for of_server in receipt.output.values()
      )
      for receipt in done
  )


def write(
    plan: plan_lib.Plan,
    folder: str,
    receipts: Mapping[int, receipts_lib.Receipt],
    seconds: float,
) -> Dict[str, Any]:
  """Writes the summary and the quarantine file into the folder of a job.

  Args:
    plan: the plan.
    folder: the folder.
    receipts: the receipts of all tasks.
    seconds: how long the last start of the job took.

  Returns:
    The summary.
  """
  write_quarantine(folder, receipts)
  summary = {**make(plan, receipts), 'seconds': seconds}
  whole.write_text(os.path.join(folder, SUMMARY), json.dumps(summary, indent=1))
  return summary


def write_quarantine(
    folder: str, receipts: Mapping[int, receipts_lib.Receipt]
) -> None:
  """Writes the episodes that were left out, a line of JSON each."""
  lines = [
      json.dumps(dataclasses.asdict(bad)) + '\n'
      for _, receipt in sorted(receipts.items())
      for bad in receipt.skipped
  ]
  whole.write_text(os.path.join(folder, QUARANTINE), ''.join(lines))


def read(folder: str, plan: str) -> Dict[str, Any]:
  """Returns the summary of a job; an empty dict if there is none.

  Args:
    folder: the folder of the job.
    plan: the hash of its plan. The summary of another one does not count.
  """
  path = os.path.join(folder, SUMMARY)
  if not files.exists(path):
    return {}
  with files.open_text(path) as f:
    summary = json.load(f)
  return summary if summary['plan'] == plan else {}


def to_text(summary: Mapping[str, Any], folder: str) -> str:
  """Returns a table of the summary."""
  notes: List[str] = []
  rows = [
      ('episodes', f'{summary["episodes"]:,}'),
      ('steps', f'{summary["steps"]:,}'),
      ('bytes of frames', f'{summary["bytes"]:,}'),
  ]
  for name, count in summary['items'].items():
    rows.append((f'items in {name}', f'{count:,}'))
  if summary['there_before']:
    rows.append(('items there before', f'{summary["there_before"]:,}'))
    notes.append(
        'Items whose keys a server has already stay as they are. If the data'
        ' was written anew since another job inserted them, remove them and'
        ' convert it again.'
    )
  for name in task_episodes.RANGES:
    numbers = summary['statistics'][name]
    if numbers['count']:
      mean = numbers['sum'] / numbers['count']
      rows.append(
          (
              f'{_LABELS[name]} of an episode',
              f'{numbers["min"]:,.6g} to {numbers["max"]:,.6g},'
              f' mean {mean:,.6g}',
          )
      )
  if summary['filtered']:
    rows.append(('left out by filters', f'{summary["filtered"]:,}'))
  rows.append(('invalid, left out', f'{summary["skipped"]:,}'))
  for rule, count in summary['skipped_by_rule'].items():
    rows.append((f'  {rule}', f'{count:,}'))
  if summary['skipped']:
    rows.append(('  listed in', os.path.join(folder, QUARANTINE)))
  seconds = summary['seconds']
  rows.append(('seconds', f'{seconds:,.1f}'))
  width = max(len(name) for name, _ in rows)
  statistics = summary['statistics']
  warnings = report_lib.warnings_of(
      statistics['bootstrapped_terminals'],
      statistics['last_rewards']['episodes'],
      statistics['last_rewards']['sum'],
      statistics['nan'],
  )
  return '\n'.join(
      [
          *(f'{name:<{width}}  {value}' for name, value in rows),
          *notes,
          *warnings,
      ]
  )


def why_empty(
    tables: Sequence[Any], items: Mapping[str, int], longest: int
) -> str:
  """Returns why a table has no items; an empty string if all have some.

  Args:
    tables: the `TableItems`.
    items: how many items each table has, by its name.
    longest: the number of steps of the longest episode; 0 if there is none.
  """
  for table in tables:
    if items[table.table_name]:
      continue
    if not longest:
      reason = 'there is no valid episode.'
    elif table.windows is None:
      reason = (
          f'an item is a whole episode of {table.max_sequence_length} steps at'
          f' most, and all are longer; the longest has {longest}.'
      )
    else:
      reason = (
          f'an item has {table.windows.length} steps, and the longest episode'
          f' has {longest}. Choose shorter windows, or pad short episodes: an'
          ' end of "pad".'
      )
    return (
        f'Table {table.table_name!r} would have no items, and samplers would'
        f' wait for ever: {reason} If an empty table is what you want, ask for'
        ' it with allow_empty.'
    )
  return ''
