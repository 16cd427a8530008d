"""Says what a job will do, and sums up what it has done.

TFDS records how many episodes there are and how many bytes they take. The
number of steps is that of some episodes, for each of their bytes.
"""

import collections
import dataclasses
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np
import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import counts as counts_lib
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.trajectories import report as report_lib

# The bytes of an item in a server's memory, besides the frames, as
# `benchmarks.insert` measures them.
_ITEM_BYTES = 1_800

_THERE_BEFORE = (
    'Items whose keys a server has already stay as they are. If the data was'
    ' written anew since another job inserted them, remove them and convert it'
    ' again.'
)


def describe(
    job: job_lib.Job,
    opened: Sequence[opened_lib.OpenSource],
    spec: Any,
    output_lines: Sequence[str],
    receipts: Mapping[int, job_lib.Receipt],
) -> str:
  """Returns the plan of a job as text.

  Args:
    job: the job.
    opened: its sources.
    spec: the spec of a frame, a `Trajectory`.
    output_lines: lines about its output; see `JobOutput.check`.
    receipts: the receipts of an earlier start.
  """
  plan = job.plan
  samples = [source.sample() for source in opened]
  num_episodes = sum(source.num_episodes for source in opened)
  lines = ['from']
  for source, sample in zip(opened, samples):
    lines += _describe_source(source, *sample)
  if plan.only:
    lines.append(f'  only the {plan.num_episodes:,} episodes in {plan.only}')
  elif plan.num_episodes < num_episodes:
    lines.append(f'  {plan.num_episodes:,} episodes by their weights')
  lines.append('frames')
  for path, leaf in tree.flatten_with_path(spec):
    name = steps_lib.field_path(path)
    lines.append(f'  {name}: {leaf.dtype.name} {leaf.shape}')
  for table in plan.table_items:
    windows: Any = table.windows
    what, size = 'whole episodes', 'how many is not known before steps are read'
    if windows is not None:
      what = f'{windows.length} frames, every {windows.stride}, at an end'
      what += f' {windows.end.value}'
    if all(lengths for lengths, _ in samples):
      count = steps = 0.0
      for lengths, factor in samples:
        factor *= plan.num_episodes / num_episodes
        count += factor * float(table.count(np.array(lengths)).sum())
        steps += factor * sum(lengths)
      num_bytes = count * _ITEM_BYTES + steps * blocks.step_bytes(spec)
      size = (
          f'about {count:,.0f} items; a server needs about'
          f' {num_bytes / 1e6:,.0f} MB of memory for them'
      )
    lines += [f'table {table.table_name}: items of {what}', f'  {size}']
  done = sum(plan.tasks[number].num_episodes for number in receipts)
  return '\n'.join(
      [
          *lines,
          *output_lines,
          f'tasks: {len(plan.tasks)}, done already: {len(receipts)}'
          f' ({done:,} of {plan.num_episodes:,} episodes)',
          f'the job is kept in {job.folder}',
      ]
  )


def _describe_source(source, lengths, factor) -> List[str]:
  # This counts as describe does. `num_bytes` leaves out the headers of records.
  num_bytes = files.total_size(source.files())
  known = 'how many steps is not known before they are read'
  if lengths:
    steps = round(sum(lengths) * factor)
    known = f'about {steps:,} steps, by {len(lengths)} of the episodes'
  lines = [
      f'  {source.name}, split {source.source.split}, in {source.directory}',
      f'    episodes: {source.num_episodes:,}; files: {len(source.shards)},'
      f' {num_bytes / 1e6:,.1f} MB; {known}',
  ]
  if source.mapping is not None:
    config = source.source.config or 'the gin bindings'
    lines.append(f'    fields mapped by {config}')
    for field in ('observation', 'action', 'reward', 'discount'):
      lines.append(f'      {field} <- {getattr(source.mapping, field)!r}')
  return lines + [f'    transformed by {each!r}' for each in source.transforms]


def make(
    plan: plan_lib.Plan, receipts: Mapping[int, job_lib.Receipt]
) -> Dict[str, Any]:
  """Returns the summary of a job, as JSON values."""
  tables = {table['table_name']: 0 for table in plan.tables}
  total = {**counts_lib.no_counts(), 'items': tables}
  total.update(filtered=0, seconds=0, there_before=0)
  rules: Dict[str, int] = collections.Counter()
  for receipt in receipts.values():
    counts = {key: receipt[key] for key in total if key in receipt}
    if plan.output.kind == plan_lib.SERVER:
      of_servers = receipt['output'].values()
      new = sum(sum(each['new'].values()) for each in of_servers)
      counts['there_before'] = sum(receipt['items'].values()) - new
    total = counts_lib.merge(total, counts)
    rules.update(bad['rule'] for bad in receipt['skipped'])
  return {
      'plan': plan.hash,
      'output': dataclasses.asdict(plan.output),
      'data_sets': [dataclasses.asdict(data) for data in plan.data_sets],
      'tasks': len(receipts),
      'bytes': total.pop('num_bytes'),
      'skipped': sum(rules.values()),
      'skipped_by_rule': dict(rules),
      'seconds_of_tasks': total.pop('seconds'),
      **total,
  }


def to_text(summary: Mapping[str, Any], quarantine: str) -> str:
  """Returns a table of the summary, and what looks wrong.

  Args:
    summary: the summary.
    quarantine: the path of the file with the invalid episodes.
  """
  there_before, statistics = summary['there_before'], summary['statistics']

  def span(numbers):
    if not numbers['count']:
      return None
    ends = f'{numbers["min"]:,.6g} to {numbers["max"]:,.6g}'
    return f'{ends}, mean {numbers["sum"] / numbers["count"]:,.6g}'

  rows = {
      'episodes': summary['episodes'],
      'steps': summary['steps'],
      'bytes of frames': summary['bytes'],
      **{f'items in {name}': n for name, n in summary['items'].items()},
      # What is None is left out.
      'items there before': there_before or None,
      'transitions of an episode': span(statistics['length']),
      'return of an episode': span(statistics['return']),
      'left out by filters': summary['filtered'] or None,
      'invalid, left out': summary['skipped'],
      **{f'  {rule}': n for rule, n in summary['skipped_by_rule'].items()},
      '  listed in': quarantine if summary['skipped'] else None,
      'seconds': f'{summary["seconds"]:,.1f}',
  }
  rows = {name: value for name, value in rows.items() if value is not None}
  width = max(map(len, rows))
  warnings = report_lib.warnings_of(
      statistics['bootstrapped_terminals'],
      statistics['last_rewards']['episodes'],
      statistics['last_rewards']['sum'],
      statistics['nan'],
  )
  lines = [
      f'{name:<{width}}  ' + (f'{value:,}' if isinstance(value, int) else value)
      for name, value in rows.items()
  ]
  return '\n'.join([*lines, *[_THERE_BEFORE] * bool(there_before), *warnings])


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
    reason = 'there is no valid episode.'
    if longest:
      length = f'{table.max_sequence_length} or fewer'
      if table.windows is not None:
        length = table.windows.length
      reason = (
          f'an item has {length} steps, and the longest episode has {longest}.'
          ' Choose other lengths, or pad short episodes: an end of "pad".'
      )
    return (
        f'Table {table.table_name!r} would have no items, and samplers would'
        f' wait for ever: {reason} If an empty table is what you want, ask for'
        ' it with allow_empty.'
    )
  return ''
