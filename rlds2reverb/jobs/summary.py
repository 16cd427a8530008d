"""Texts about a job: its description before it runs, and its summary.

TFDS records the number of episodes and bytes. The number of steps is estimated
from the steps per byte of a sample.
"""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.trajectories import report as report_lib

# Bytes of an item in a server's memory in addition to its frames, measured by
# `benchmarks.insert`.
_ITEM_BYTES = 1_800

_EXISTED = (
    'A server keeps existing items with the same keys. If the data was'
    ' rewritten since another job inserted them, remove them and convert it'
    ' again.'
)


def describe_job(
    job: job_lib.Job,
    opened: Sequence[sources_lib.OpenSource],
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
    receipts: the receipts of finished tasks.
  """
  plan = job.plan
  samples = [source.sample_lengths() for source in opened]
  num_episodes = sum(source.num_episodes for source in opened)
  lines = ['from']
  for source, sample in zip(opened, samples):
    lines += _describe_source(source, *sample)
  if plan.only_listed_in:
    lines.append(
        f'  only the {plan.num_episodes:,} episodes in {plan.only_listed_in}'
    )
  elif plan.num_episodes < num_episodes:
    lines.append(f'  {plan.num_episodes:,} episodes by their weights')
  lines.append('frames')
  for path, leaf in tree.flatten_with_path(spec):
    name = paths.name_of(path)
    lines.append(f'  {name}: {leaf.dtype.name} {leaf.shape}')
  for table in plan.table_items:
    windows: Any = table.windows
    content = 'complete episodes'
    if windows is not None:
      content = f'{windows.length} frames, every {windows.stride}, at an end'
      content += f' {windows.end.value}'
    size = 'number of items unknown until steps are read'
    if all(lengths for lengths, _ in samples):
      count = steps = 0.0
      for lengths, factor in samples:
        factor *= plan.num_episodes / num_episodes
        count += factor * float(table.count(np.array(lengths)).sum())
        steps += factor * sum(lengths)
      num_bytes = count * _ITEM_BYTES + steps * steps_lib.estimate_step_bytes(
          spec
      )
      size = (
          f'about {count:,.0f} items; a server needs about'
          f' {num_bytes / 1e6:,.0f} MB of memory for them'
      )
    lines += [f'table {table.table_name}: items of {content}', f'  {size}']
  done = sum(plan.tasks[number].num_episodes for number in receipts)
  return '\n'.join(
      [
          *lines,
          *output_lines,
          f'tasks: {len(plan.tasks)}, done already: {len(receipts)}'
          f' ({done:,} of {plan.num_episodes:,} episodes)',
          f'the job is stored in {job.folder}',
      ]
  )


def _describe_source(source, lengths, factor) -> list[str]:
  # Like the program describe. `source.num_bytes` excludes headers of records.
  num_bytes = files.total_size(source.files())
  estimate = 'number of steps unknown until they are read'
  if lengths:
    steps = round(sum(lengths) * factor)
    estimate = f'about {steps:,} steps, estimated from {len(lengths)} episodes'
  lines = [
      f'  {source.name}, split {source.source.split}, in {source.directory}',
      f'    episodes: {source.num_episodes:,}; files: {len(source.shards)},'
      f' {num_bytes / 1e6:,.1f} MB; {estimate}',
  ]
  if source.mapping is not None:
    config = source.source.config or 'the gin bindings'
    lines.append(f'    fields mapped by {config}')
    for field in ('observation', 'action', 'reward', 'discount'):
      lines.append(f'      {field} <- {getattr(source.mapping, field)!r}')
  return lines + [f'    transformed by {t!r}' for t in source.transforms]


def make_summary(
    plan: plan_lib.Plan, receipts: Mapping[int, job_lib.Receipt]
) -> dict[str, Any]:
  """Returns the summary of a job, as JSON values."""
  tables = {table['table_name']: 0 for table in plan.tables}
  total = {**tasks_lib.make_counts(), 'items': tables}
  total.update(filtered=0, seconds=0, there_before=0)
  rules: dict[str, int] = collections.Counter()
  for receipt in receipts.values():
    counts = {key: receipt[key] for key in total if key in receipt}
    if plan.output.kind == plan_lib.SERVER:
      written = receipt['output'].values()
      new = sum(sum(server['new'].values()) for server in written)
      counts['there_before'] = sum(receipt['items'].values()) - new
    total = tasks_lib.merge_counts(total, counts)
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
  """Returns a table of the summary, and warnings.

  Args:
    summary: the summary.
    quarantine: the path of the file with the invalid episodes.
  """
  num_existing, statistics = summary['there_before'], summary['statistics']

  def format_range(numbers):
    if not numbers['count']:
      return None
    ends = f'{numbers["min"]:,.6g} to {numbers["max"]:,.6g}'
    return f'{ends}, mean {numbers["sum"] / numbers["count"]:,.6g}'

  rows = {
      'episodes': summary['episodes'],
      'steps': summary['steps'],
      'bytes of frames': summary['bytes'],
      **{f'items in {name}': n for name, n in summary['items'].items()},
      # Rows without a value are dropped below.
      'items that existed': num_existing or None,
      'transitions of an episode': format_range(statistics['length']),
      'return of an episode': format_range(statistics['return']),
      'dropped by filters': summary['filtered'] or None,
      **{
          f'steps removed by {name}': n
          for name, n in statistics.get('removed_steps', {}).items()
      },
      'invalid, skipped': summary['skipped'],
      **{f'  {rule}': n for rule, n in summary['skipped_by_rule'].items()},
      '  listed in': quarantine if summary['skipped'] else None,
      'seconds': f'{summary["seconds"]:,.1f}',
  }
  rows = {name: value for name, value in rows.items() if value is not None}
  width = max(map(len, rows))
  last = statistics['last_rewards']
  dropped = statistics.get('dropped_rewards', {'episodes': 0, 'sum': 0})
  warnings = report_lib.format_warnings(
      statistics['bootstrapped_terminals'],
      last['episodes'] - dropped['episodes'],
      last['sum'] - dropped['sum'],
      statistics['nan'],
      num_dropped=dropped['episodes'],
      sum_dropped=dropped['sum'],
  )
  lines = [
      f'{name:<{width}}  ' + (f'{value:,}' if isinstance(value, int) else value)
      for name, value in rows.items()
  ]
  if num_existing:
    lines.append(_EXISTED)
  return '\n'.join([*lines, *warnings])


def explain_empty(
    tables: Sequence[Any], items: Mapping[str, int], longest: int
) -> str:
  """Returns why a table has no items, or '' if all tables have items.

  Args:
    tables: the `TableItems`.
    items: the number of items by the name of the table.
    longest: the number of steps of the longest episode; 0 without episodes.
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
        f' block indefinitely: {reason} To allow empty tables, set allow_empty.'
    )
  return ''
