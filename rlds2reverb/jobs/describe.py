"""Describes data: its fields, its statistics and its oddities."""

import functools
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs.descriptions import about
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import one_pass
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
from rlds2reverb.replay.checkpoint import records


def describe_episodes(
    rlds_data: tf.data.Dataset,
    *,
    name: str = 'episodes',
    bounds: Optional[Mapping[str, one_pass.Bounds]] = None,
    num_excerpts: int = 40,
    seed: int = 0,
) -> description_lib.Description:
  """Describes a data set of episodes, reading it once.

      description = describe_episodes(load_episodes('/data/cartpole'))
      print(text.to_text(description))

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps. It must be
      finite. Fields of nested steps whose shape may differ from step to step
      are left out.
    name: the name of the data, for the description.
    bounds: the bounds of fields, by their paths in a step. Floats of an action
      without bounds are held against -1 to 1.
    num_excerpts: how many episodes are kept, at most, with steps and images:
      the best, the worst, the longest, the odd, and examples of the rest.
    seed: the seed of the sample that quantiles and histograms of steps are
      taken from.

  Returns:
    The description.

  Raises:
    ValueError: as `compute_statistics` does; or if there is no field that
      `bounds` name, or they do not fit its shape.
    InvalidArgumentError: if the data cannot be read.
  """
  collected = one_pass.read_once(
      rlds_data,
      bounds=bounds,
      with_frames=num_excerpts > 0,
      seed=seed,
  )
  return description_lib.make_description(collected, name, num_excerpts)


def describe_source(
    source: sources_lib.Source,
    *,
    sample: Optional[int] = None,
    environment: Optional[str] = None,
    num_excerpts: int = 40,
    seed: int = 0,
) -> description_lib.Description:
  """Describes the data set of a source, reading it once.

  An episode is named by its index in its split; where the source has several
  parts, as in `train+test`, by its place in all of them together.

  Args:
    source: the source, with the mapping and the transforms of its config.
    sample: how many episodes to read, if not all. They are spread over the data
      set, in at most 16 runs of consecutive ones.
    environment: the id of a gym environment whose action space bounds the
      actions. By default the features of the data set may bound them.
    num_excerpts: see `describe_episodes`.
    seed: see `describe_episodes`.

  Returns:
    The description.

  Raises:
    ValueError: as `open_source` and `describe_episodes` do, or if there is no
      such environment.
    OSError: as `open_source` does.
    InvalidArgumentError: if the data cannot be read.
  """
  if sample is not None:
    checks.check_positive('sample', sample)
  opened = sources_lib.open_source(source)
  is_sample = sample is not None and sample < opened.num_episodes
  parts = _spread(opened.ranges, sample) if is_sample else opened.ranges
  rlds_data = functools.reduce(
      tf.data.Dataset.concatenate,
      [_read(opened, part) for part in parts],
  )
  bounds = {}
  if environment is not None:
    bounds = about.bounds_of_environment(environment)
  elif not opened.transforms:  # Transforms may change the bounds of actions.
    bounds = about.bounds_of_features(opened.features, opened.mapping)
  collected = one_pass.read_once(
      rlds_data,
      episode_index=opened_lib.EPISODE_INDEX,
      bounds=bounds,
      with_frames=num_excerpts > 0,
      seed=seed,
  )
  name = f'{opened.name}, split {source.split}'
  if source.config:
    name += f', mapped by {source.config}'
  return description_lib.make_description(
      collected,
      name,
      num_excerpts,
      about=about.about_data_set(opened),
      num_available=opened.num_episodes,
      is_sample=is_sample,
  )


def describe_checkpoint(
    directory: files.PathLike,
    *,
    sample: Optional[int] = None,
    num_excerpts: int = 40,
    seed: int = 0,
) -> description_lib.Description:
  """Describes a Reverb checkpoint: its tables, and the episodes in them.

  The episodes are those of the table of trajectories that has the most items.
  They are counted in the order of the checkpoint's chunks. Without a table of
  trajectories, only the tables are described.

  Args:
    directory: the checkpoint.
    sample: how many episodes to read, the first ones, if not all.
    num_excerpts: see `describe_episodes`.
    seed: see `describe_episodes`.

  Returns:
    The description.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if a file of it is damaged.
  """
  if sample is not None:
    checks.check_positive('sample', sample)
  directory = files.expand(directory)
  tables = records.read_tables(directory)
  described = [_describe_table(table) for table in tables.values()]
  with_frames = [
      name
      for name, table in tables.items()
      if getattr(checkpoint_episodes.signature_of(table), '_fields', None)
      == trajectory.Trajectory._fields
  ]
  if not with_frames:
    records.read_index(directory)
    return description_lib.Description(
        source=directory, about=about.about_folder(directory), tables=described
    )
  name = max(with_frames, key=lambda name: records.num_items(tables[name]))
  episodes = checkpoint_episodes.read_checkpoint_episodes(directory, name)
  is_sample = sample is not None and any(
      True for _ in episodes.skip(sample).take(1)
  )
  collected = one_pass.read_once(
      episodes.take(sample) if is_sample else episodes,
      with_frames=num_excerpts > 0,
      seed=seed,
  )
  return description_lib.make_description(
      collected,
      f'{directory}, table {name}',
      num_excerpts,
      about=about.about_folder(directory),
      is_sample=is_sample,
      tables=described,
  )


def _describe_table(table: Any) -> Dict[str, Any]:
  """Returns the description of a table of a checkpoint."""
  limiter = table.rate_limiter
  signature = checkpoint_episodes.signature_of(table)
  return {
      'name': table.table_name,
      'num_items': records.num_items(table),
      'max_size': table.max_size,
      'max_times_sampled': table.max_times_sampled,
      'sampler': _selector(table.sampler),
      'remover': _selector(table.remover),
      'rate_limiter': (
          f'samples_per_insert={limiter.samples_per_insert:g},'
          f' min_size_to_sample={limiter.min_size_to_sample},'
          f' min_diff={_bound(limiter.min_diff)},'
          f' max_diff={_bound(limiter.max_diff)}'
      ),
      'signature': {
          name: f'{spec.dtype.name} {spec.shape}'
          for name, spec in (
              {} if signature is None else paths.leaves(signature)
          ).items()
      },
  }


def _bound(value: float) -> str:
  # Reverb has the least and the greatest number where there is no limit.
  return 'none' if abs(value) >= sys.float_info.max else f'{value:g}'


def _selector(options: Any) -> str:
  """Returns the name of a Reverb selector, and its settings."""
  kind = options.WhichOneof('distribution')
  settings = getattr(options, kind)
  if isinstance(settings, bool):  # This kind has no settings.
    return kind
  return f'{kind} ({str(settings).strip()})'.replace('\n', ', ')


def _read(opened, part) -> tf.data.Dataset:
  """Reads a part, with an index for each episode; see `describe_source`."""
  episodes = opened.read(part, with_index=True)
  if len(opened.ranges) == 1:
    return episodes
  before = 0
  for whole in opened.ranges:
    if whole.split == part.split and whole.begin <= part.begin < whole.end:
      break
    before += whole.num_episodes
  key, shift = opened_lib.EPISODE_INDEX, before - whole.begin
  return episodes.map(lambda one: {**one, key: one[key] + shift})


def _spread(
    ranges: Sequence[ranges_lib.Range], sample: int
) -> List[ranges_lib.Range]:
  """Returns parts of `ranges`, evenly spread, of `sample` episodes in all."""
  total = sum(part.num_episodes for part in ranges)
  num_runs = min(description_lib.MAX_RUNS, sample)
  parts = []
  for run in range(num_runs):
    begin = run * total // num_runs
    end = begin + (run + 1) * sample // num_runs - run * sample // num_runs
    start = 0
    for part in ranges:
      low, high = max(begin, start), min(end, start + part.num_episodes)
      if low < high:
        shift = part.begin - start
        parts.append(ranges_lib.Range(part.split, low + shift, high + shift))
      start += part.num_episodes
  return parts
