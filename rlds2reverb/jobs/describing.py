"""Describes data: its fields, its statistics and its oddities."""

import functools
import sys
from typing import (
    Any,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

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


class _Content(NamedTuple):
  """What is read, and what `make_description` takes besides."""

  episodes: Optional[tf.data.Dataset]
  is_sample: bool
  name: str
  bounds: Mapping[str, one_pass.Bounds] = {}
  episode_index: Optional[str] = None
  facts: Mapping[str, Any] = {}


def describe(
    data: Union[tf.data.Dataset, sources_lib.Source, files.PathLike],
    *,
    name: Optional[str] = None,
    sample: Optional[int] = None,
    bounds: Union[None, str, Mapping[str, one_pass.Bounds]] = None,
    num_excerpts: int = 40,
    seed: int = 0,
) -> description_lib.Description:
  """Describes a data set or a Reverb checkpoint, reading it once.

      description = describe(load_episodes('/data/cartpole'))
      print(text.to_text(description))

  Of a checkpoint, the tables are described, and the episodes in that table of
  trajectories that has the most items, if there is one.

  Args:
    data: an RLDS data set, with nested or stacked steps, which must be finite;
      a `Source`, with the mapping and the transforms of its config; or the
      directory of a checkpoint. Fields of nested steps whose shape may differ
      from step to step are left out. An episode is named by its index: in the
      split of a source, or in all parts together, as in `train+test`; or in
      the order of a checkpoint's chunks.
    name: the name of the data, for the description. By default that of the
      source or of the checkpoint.
    sample: how many episodes to read, if not all. They are the first ones; of a
      source, they are spread over the data set, in at most 16 runs of
      consecutive ones.
    bounds: the bounds of fields, by their paths in a step; or the id of a gym
      environment, whose action space bounds the actions. By default the
      features of a source may bound them. Floats of an action without bounds
      are held against -1 to 1.
    num_excerpts: how many episodes are kept, at most, with steps and images:
      the best, the worst, the longest, the odd, and examples of the rest.
    seed: the seed of the sample that quantiles and histograms of steps are
      taken from.

  Returns:
    The description.

  Raises:
    ValueError: as `compute_statistics` and `open_source` do; if there is no
      such environment, or no field that `bounds` name; or if they do not fit
      its shape.
    OSError: as `open_source` does.
    FileNotFoundError: if there is no whole checkpoint in a directory.
    CheckpointError: if a file of it is damaged.
    InvalidArgumentError: if the data cannot be read.
  """
  if sample is not None:
    checks.check_positive('sample', sample)
  if isinstance(data, tf.data.Dataset):
    content = _Content(*_first(data, sample), 'episodes')
  elif isinstance(data, sources_lib.Source):
    content = _of_source(data, sample)
  else:
    content = _of_checkpoint(files.expand(data), sample)
  name = name or content.name
  if content.episodes is None:
    return description_lib.Description(source=name, **content.facts)
  if isinstance(bounds, str):
    bounds = about.bounds_of_environment(bounds)
  collected = one_pass.read_once(
      content.episodes,
      episode_index=content.episode_index,
      bounds=content.bounds if bounds is None else bounds,
      with_frames=num_excerpts > 0,
      seed=seed,
  )
  return description_lib.make_description(
      collected,
      name,
      num_excerpts,
      is_sample=content.is_sample,
      **content.facts,
  )


def _first(
    episodes: tf.data.Dataset, sample: Optional[int]
) -> Tuple[tf.data.Dataset, bool]:
  """Returns the first episodes, and whether there are others."""
  if sample is None or not any(True for _ in episodes.skip(sample).take(1)):
    return episodes, False
  return episodes.take(sample), True


def _of_source(source, sample) -> _Content:
  """Returns the episodes of a source, with their indices."""
  opened = sources_lib.open_source(source)
  is_sample = sample is not None and sample < opened.num_episodes
  parts = _spread(opened.ranges, sample) if is_sample else opened.ranges
  name = f'{opened.name}, split {source.split}'
  if source.config:
    name += f', mapped by {source.config}'
  return _Content(
      functools.reduce(
          tf.data.Dataset.concatenate,
          [_read(opened, part) for part in parts],
      ),
      is_sample,
      name,
      # Transforms may change the bounds of actions.
      {}
      if opened.transforms
      else about.bounds_of_features(opened.features, opened.mapping),
      opened_lib.EPISODE_INDEX,
      {
          'about': about.about_data_set(opened),
          'num_available': opened.num_episodes,
      },
  )


def _of_checkpoint(directory, sample) -> _Content:
  """Returns the episodes of the largest table of trajectories, if any."""
  tables = records.read_tables(directory)
  facts = {
      'about': about.about_folder(directory),
      'tables': [_describe_table(table) for table in tables.values()],
  }
  with_frames = [
      name
      for name, table in tables.items()
      if getattr(checkpoint_episodes.signature_of(table), '_fields', None)
      == trajectory.Trajectory._fields
  ]
  if not with_frames:
    records.read_index(directory)
    return _Content(None, False, directory, facts=facts)
  table = max(with_frames, key=lambda name: records.num_items(tables[name]))
  episodes = checkpoint_episodes.read_checkpoint_episodes(directory, table)
  return _Content(
      *_first(episodes, sample), f'{directory}, table {table}', facts=facts
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
  """Reads a part, with an index for each episode; see `describe`."""
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
