"""Says what a conversion will do, before it starts."""

from typing import Any, List, Mapping, Optional, Sequence

import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import estimates
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib

_INDENT = '  '


def describe(
    plan: plan_lib.Plan,
    opened: Sequence[opened_lib.OpenSource],
    spec: Any,
    output_lines: Sequence[str],
    folder: str,
    receipts: Mapping[int, receipts_lib.Receipt],
) -> str:
  """Returns the plan as text.

  Args:
    plan: the plan.
    opened: its sources.
    spec: the spec of a frame, a `Trajectory`.
    output_lines: lines about its output; see `Output.check`.
    folder: the folder of the job.
    receipts: the receipts of an earlier start.
  """
  steps = [estimates.steps_or_sample(source) for source in opened]
  lines = ['from']
  for source, count in zip(opened, steps):
    lines += _indent(_describe_source(source, count))
  if plan.only:
    lines.append(f'  only the {plan.num_episodes:,} episodes in {plan.only}')
  elif plan.num_episodes < sum(source.num_episodes for source in opened):
    lines.append(f'  {plan.num_episodes:,} episodes by their weights')
  lines.append('frames')
  for path, leaf in tree.flatten_with_path(spec):
    lines.append(
        f'  {steps_lib.field_path(path)}: {leaf.dtype.name} {leaf.shape}'
    )
  for table in plan.table_items:
    lines += _describe_table(plan, opened, steps, spec, table)
  lines += output_lines
  done = sum(plan.tasks[number].num_episodes for number in receipts)
  lines.append(
      f'tasks: {len(plan.tasks)}, done already: {len(receipts)}'
      f' ({done:,} of {plan.num_episodes:,} episodes)'
  )
  lines.append(f'the job is kept in {folder}')
  return '\n'.join(lines)


def _describe_source(source, steps: Optional[estimates.Steps]) -> List[str]:
  # This counts as describe does. `num_bytes` leaves out the headers of records.
  num_bytes = files.total_size(
      path for part in source.ranges for path in source.files(part)
  )
  lines = [
      f'{source.name}, split {source.source.split}, in {source.directory}',
      f'  episodes: {source.num_episodes:,}; files: {len(source.shards)},'
      f' {num_bytes / 1e6:,.1f} MB; ' + _count_of(steps),
  ]
  if source.mapping is not None:
    lines.append(
        '  fields mapped by ' + (source.source.config or 'the gin bindings')
    )
    for field in ('observation', 'action', 'reward', 'discount'):
      lines.append(f'    {field} <- {getattr(source.mapping, field)!r}')
  for transform in source.transforms:
    lines.append(f'  transformed by {transform!r}')
  return lines


def _count_of(steps: Optional[estimates.Steps]) -> str:
  if steps is None:
    return 'how many steps is not known before they are read'
  if not steps.sampled:
    return f'about {steps.about:,} steps'
  return (
      f'about {steps.about:,} steps ({steps.low:,} to {steps.high:,}), by the'
      f' first {steps.sampled} episodes of some files'
  )


def _describe_table(plan, opened, steps, spec, table: Any) -> List[str]:
  what = (
      'whole episodes'
      if table.windows is None
      else f'{table.windows.length} frames, every {table.windows.stride}, at an'
      f' end {table.windows.end.value}'
  )
  lines = [f'table {table.table_name}: items of {what}']
  if None in steps:
    lines.append('  how many is not known before the steps are read')
    return lines
  # The share of the episodes that the plan takes, if it does not take all.
  share = plan.num_episodes / sum(source.num_episodes for source in opened)
  about, low, high = (
      estimates.table_of(table, plan.num_episodes, round(total * share), spec)
      for total in (
          sum(count.about for count in steps),
          sum(count.low for count in steps),
          sum(count.high for count in steps),
      )
  )
  between = ''
  if low != high:
    between = f' ({low.items:,} to {high.items:,})'
  lines.append(
      f'  about {about.items:,} items{between}; a server needs about'
      f' {about.server_bytes / 1e6:,.0f} MB of memory for them'
  )
  return lines


def _indent(lines: Sequence[str]) -> List[str]:
  return [_INDENT + line for line in lines]
