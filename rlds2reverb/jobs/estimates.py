"""Says what a conversion will do, and estimates how large its output gets.

TFDS records how many episodes there are and how many bytes they take. The
number of steps is that of some episodes, for each of their bytes.
"""

from typing import Any, List, Mapping, Sequence

import numpy as np
import tree

from rlds2reverb.datasets import files
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import opened as opened_lib

# The bytes of an item in a server's memory, besides the frames, as
# `benchmarks.insert` measures them.
_ITEM_BYTES = 1_800


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
