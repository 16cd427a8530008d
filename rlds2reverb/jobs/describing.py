"""Describes data: its fields, its statistics and what is odd."""

import functools
from typing import Any, Dict, Mapping, Optional, Union

import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.jobs.descriptions import reading as reading_lib
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
from rlds2reverb.replay.checkpoint import records

_MAX_RUNS = 16  # of consecutive episodes, in a sample


def describe(
    data: Union[tf.data.Dataset, sources_lib.Source, files.PathLike],
    *,
    name: Optional[str] = None,
    sample: Optional[int] = None,
    bounds: Union[None, str, Mapping[str, metadata.Bounds]] = None,
    num_excerpts: int = 40,
    seed: int = 0,
) -> description_lib.Description:
  """Describes a data set or a Reverb checkpoint, reading it once.

      description = describe(load_episodes('/data/cartpole'))
      print(views.to_text(description))

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
      are compared with -1 to 1.
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
  episodes: Any = data
  index, known_bounds = None, {}
  facts: Dict[str, Any] = {'source': 'episodes'}
  if isinstance(data, sources_lib.Source):
    opened = sources_lib.open_source(data)
    total, index = opened.num_episodes, opened_lib.EPISODE_INDEX
    count = min(sample or total, total)
    facts = {
        'source': f'{opened.name}, split {data.split}'
        + f', mapped by {data.config}' * bool(data.config),
        'about': metadata.about_data_set(opened),
        'num_available': total,
        'is_sample': count < total,
    }
    episodes = _read(opened, count)
    if not opened.transforms:  # These may change the bounds of actions.
      known_bounds = metadata.bounds_of_features(
          opened.features, opened.mapping
      )
  elif not isinstance(data, tf.data.Dataset):
    episodes, facts = _open_checkpoint(files.expand(data))
  facts['source'] = name or facts['source']
  if episodes is None:
    return description_lib.Description(**facts)
  if sample is not None and index is None:
    facts['is_sample'] = any(True for _ in episodes.skip(sample).take(1))
    episodes = episodes.take(sample)
  if isinstance(bounds, str):
    bounds = metadata.bounds_of_environment(bounds)
  reading = reading_lib.Reading(
      episodes,
      episode_index=index,
      bounds=known_bounds if bounds is None else bounds,
      with_frames=num_excerpts > 0,
      seed=seed,
  )
  return description_lib.make_description(reading, num_excerpts, **facts)


def _open_checkpoint(directory):
  """Returns the episodes to describe, or None, and what is known."""
  tables = records.read_tables(directory)
  facts = {
      'source': directory,
      'about': metadata.about_folder(directory),
      'tables': list(map(metadata.about_table, tables.values())),
  }
  sizes = {
      name: records.num_items(table)
      for name, table in tables.items()
      if getattr(checkpoint_episodes.signature_of(table), '_fields', None)
      == trajectory.Trajectory._fields
  }
  if not sizes:
    records.read_index(directory)
    return None, facts
  table = max(sizes, key=sizes.get)
  facts['source'] += f', table {table}'
  return checkpoint_episodes.read_checkpoint_episodes(directory, table), facts


def _read(opened: opened_lib.OpenSource, count: int) -> tf.data.Dataset:
  """Reads evenly spread runs of `count` episodes in all, or one run of all.

  Every episode has its index: in the split of a source that has one part, and
  else in all parts together.
  """
  total, key = opened.num_episodes, opened_lib.EPISODE_INDEX
  num_runs = min(_MAX_RUNS, count) if count < total else 1
  read = []
  for run in range(num_runs):
    begin = run * total // num_runs
    end = begin + (run + 1) * count // num_runs - run * count // num_runs
    start = 0  # of a part, in all parts together
    for part in opened.ranges:
      shift = part.begin - start
      start += part.num_episodes
      some = part._replace(
          begin=max(begin + shift, part.begin), end=min(end + shift, part.end)
      )
      if some.num_episodes > 0:
        episodes = opened.read(some, with_index=True)
        if len(opened.ranges) > 1:
          episodes = episodes.map(
              lambda one, shift=shift: {**one, key: one[key] - shift}
          )
        read.append(episodes)
  return functools.reduce(tf.data.Dataset.concatenate, read)
