"""Says what a conversion will do, and estimates how large its output gets.

It reads no more than a few files for this. TFDS records how many episodes there
are and how many bytes they take. Where all steps take the same number of bytes,
the number of steps follows. Otherwise, as with images, strings and integers, it
is that of some episodes, for each of their bytes.
"""

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import private
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import sources as sources_lib

# The bytes of an item in a server's memory, besides the frames, as
# `benchmarks.insert` measures them.
_ITEM_BYTES = 1_800
# How much is read if the sizes of the files are not enough.
_SAMPLED_FILES = 16
_SAMPLED_EPISODES = 8
_SAMPLED_BYTES = 64 << 20


class Steps(NamedTuple):
  """About how many steps the episodes of a source have.

  Attributes:
    about: the number of steps.
    sampled: how many episodes were read for the estimate; 0 if the sizes of the
      files were enough.
  """

  about: int
  sampled: int


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
  steps = [steps_or_sample(source) for source in opened]
  num_episodes = sum(source.num_episodes for source in opened)
  lines = ['from']
  for source, count in zip(opened, steps):
    lines += _describe_source(source, count)
  if plan.only:
    lines.append(f'  only the {plan.num_episodes:,} episodes in {plan.only}')
  elif plan.num_episodes < num_episodes:
    lines.append(f'  {plan.num_episodes:,} episodes by their weights')
  lines.append('frames')
  for path, leaf in tree.flatten_with_path(spec):
    lines.append(
        f'  {steps_lib.field_path(path)}: {leaf.dtype.name} {leaf.shape}'
    )
  num_steps = None
  if None not in steps:
    # The share of the episodes that the plan takes, if it does not take all.
    share = plan.num_episodes / num_episodes
    num_steps = round(sum(count.about for count in steps) * share)
  for table in plan.table_items:
    lines += _describe_table(table, plan.num_episodes, num_steps, spec)
  done = sum(plan.tasks[number].num_episodes for number in receipts)
  return '\n'.join(
      [
          *lines,
          *output_lines,
          f'tasks: {len(plan.tasks)}, done already: {len(receipts)}'
          f' ({done:,} of {plan.num_episodes:,} episodes)',
          f'the job is kept in {folder}',
      ]
  )


def _describe_source(source, steps: Optional[Steps]) -> List[str]:
  # This counts as describe does. `num_bytes` leaves out the headers of records.
  num_bytes = files.total_size(source.files())
  known = 'how many steps is not known before they are read'
  if steps is not None:
    known = f'about {steps.about:,} steps'
    if steps.sampled:
      known += f', by {steps.sampled} of the episodes'
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
  return [
      *lines,
      *(f'    transformed by {transform!r}' for transform in source.transforms),
  ]


def _describe_table(
    table: Any, num_episodes: int, num_steps: Optional[int], spec: Any
) -> List[str]:
  what = 'whole episodes'
  if table.windows is not None:
    what = (
        f'{table.windows.length} frames, every {table.windows.stride}, at an'
        f' end {table.windows.end.value}'
    )
  size = '  how many is not known before the steps are read'
  if num_steps is not None:
    items = items_of(table, num_episodes, num_steps)
    num_bytes = items * _ITEM_BYTES + num_steps * blocks.step_bytes(spec)
    size = (
        f'  about {items:,} items; a server needs about {num_bytes / 1e6:,.0f}'
        ' MB of memory for them'
    )
  return [f'table {table.table_name}: items of {what}', size]


def steps_of(
    source: opened_lib.OpenSource, *, fewest: bool = False
) -> Optional[int]:
  """Estimates the number of steps of a source without reading; None if unknown.

  Args:
    source: the source.
    fewest: whether to return a lower bound. Otherwise integers count as small
      ones, which gives an upper bound.
  """
  if source.num_steps is not None:
    return source.num_steps
  leaves = list(saving.feature_leaves(source.features))
  sizes = [_bytes_of(feature, fewest) for _, feature in leaves]
  if None in sizes:
    return None
  # A feature in a record has six bytes besides its name and its values, and
  # four lengths, of 7 bits in a byte.
  values = source.num_bytes // source.num_episodes // len(leaves)
  per_episode = per_step = 0
  for (path, _), size in zip(leaves, sizes):
    per_episode += 6 + 4 * -(-values.bit_length() // 7) + len(path)
    if path.startswith(f'{rlds.STEPS}/'):
      per_step += size
    else:
      per_episode += size
  if not per_step:
    return None
  left = source.num_bytes - per_episode * source.num_episodes
  return max(round(left / per_step), source.num_episodes)


def steps_or_sample(source: opened_lib.OpenSource) -> Optional[Steps]:
  """Returns about how many steps the episodes of a source have.

  If the sizes of the files are not enough, it reads the first episodes of some
  files. The result is None if these cannot be read or are not enough either.

  Args:
    source: the source.
  """
  about = steps_of(source)
  if about is not None and about == steps_of(source, fewest=True):
    return Steps(about, 0)
  lengths, num_bytes = _sample(source)
  if not lengths:
    return None if about is None else Steps(about, 0)
  about = sum(lengths)
  if len(lengths) < source.num_episodes:
    about = round(about * source.num_bytes / num_bytes)
  return Steps(about, len(lengths))


def _sample(source: opened_lib.OpenSource) -> Tuple[List[int], int]:
  """Returns the numbers of steps of some episodes, and the bytes of these.

  They are the first of files that are evenly spread.
  """
  lengths: List[int] = []
  num_bytes = 0
  if rlds.IS_FIRST not in source.features[rlds.STEPS].feature:
    return lengths, num_bytes
  # TFDS stores one number of a scalar for each step.
  field = f'{rlds.STEPS}/{rlds.IS_FIRST}'
  parse = {field: tf.io.VarLenFeature(tf.int64)}
  paths = sorted(source.files())
  chosen = np.unique(np.linspace(0, len(paths) - 1, _SAMPLED_FILES).round())
  try:
    for index in chosen.astype(int):
      for record in tf.data.TFRecordDataset(paths[index]).take(
          _SAMPLED_EPISODES
      ):
        parsed = tf.io.parse_single_example(record, parse)[field]
        if not tf.size(parsed.values):
          continue
        lengths.append(int(tf.size(parsed.values)))
        num_bytes += len(record.numpy())
        if num_bytes > _SAMPLED_BYTES:
          return lengths, num_bytes
  except tf.errors.OpError:
    pass  # The job will report the error in the file.
  return lengths, num_bytes


def items_of(table: Any, num_episodes: int, num_steps: int) -> int:
  """Estimates the items of a table, as if all episodes had the same length.

  Args:
    table: the `TableItems`.
    num_episodes: the number of episodes.
    num_steps: the number of their steps.
  """
  lengths = np.array([max(round(num_steps / num_episodes), 1)])
  return int(table.count(lengths)[0]) * num_episodes


def fewest_items(plan: plan_lib.Plan, table: Any) -> int:
  """Returns how many items a table gets at least, if all episodes are valid.

  Args:
    plan: the plan.
    table: the `TableItems`.
  """
  if table.windows is None:
    return 1 if table.max_sequence_length else plan.num_episodes
  steps = [
      steps_of(sources_lib.open_source(source), fewest=True)
      for source in plan.sources
  ]
  if None in steps or len(steps) > 1:
    return plan.num_episodes if table.pads_episodes else 1
  # Frames at the end of an episode may make no item, and with a stride not
  # every frame makes one.
  share = plan.num_episodes / plan.data_sets[0].num_episodes
  items = steps[0] * share - plan.num_episodes * table.windows.length
  return max(int(items / table.windows.stride), 1)


def _bytes_of(feature: Any, widest: bool) -> Optional[int]:
  """Returns how many bytes a field takes on disk, if that is always the same.

  Args:
    feature: its feature.
    widest: whether integers take as many bytes as they can, rather than one.
  """
  # Subclasses, such as images, are encoded in other ways.
  if type(feature) not in (tfds.features.Tensor, tfds.features.Scalar):
    return None
  shape, dtype = feature.shape, np.dtype(feature.np_dtype)
  if None in shape or dtype.kind == 'O':
    return None
  encoding = private.encoding_of(feature)
  if encoding == 'zlib':
    return None
  if encoding == 'bytes':
    size = dtype.itemsize
  elif dtype.kind == 'f':
    size = 4  # TensorFlow's format has floats of 32 bits only.
  else:
    # Integers have 7 bits in a byte; negative ones are as long as there are.
    widths = {'b': 1, 'u': dtype.itemsize + 2}
    size = widths.get(dtype.kind, 10) if widest else 1
  return int(np.prod(shape, dtype=np.int64)) * size
