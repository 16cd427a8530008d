"""Describes data: metadata, fields, statistics and oddities."""

from collections.abc import Mapping
import os
import sys
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.datasets import environments
from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.fields import step_mapping
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import reading as reading_lib
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.trajectories import report as report_lib

_MAX_RUNS = 16  # Of consecutive episodes, in a sample.
_CATALOG = 'tensorflow.org/datasets/catalog'  # TFDS's default homepage.
_FEATURES = "the data set's features"
_LIMITER = ('samples_per_insert', 'min_size_to_sample', 'min_diff', 'max_diff')


def describe(
    data: tf.data.Dataset | sources_lib.Source | files.PathLike,
    *,
    name: str | None = None,
    sample: int | None = None,
    bounds: None | str | Mapping[str, reading_lib.Bounds] = None,
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
      directory of a checkpoint. Fields of nested steps with a variable shape
      are skipped. Episodes are identified by their index: in the split of a
      source, or in all parts together, as in `train+test`; or in the order of a
      checkpoint's chunks.
    name: the name of the data, for the description. By default the name of the
      source or of the checkpoint.
    sample: how many episodes to read. By default all are read. For a source,
      they are spread over the data set in at most 16 runs of consecutive
      episodes, and otherwise they are the first ones.
    bounds: the bounds of fields, by their paths in a step; or the id of an
      environment, whose action space bounds the actions. By default the
      features of a source may bound fields. Floats of an action without bounds
      are compared with -1 to 1.
    num_excerpts: the maximum number of episodes to keep with steps and images:
      the best, the worst, the longest, the odd, and examples of the others.
    seed: the seed of the sample for quantiles and histograms of steps.

  Returns:
    The description.

  Raises:
    ValueError: as `compute_statistics` and `open_source` do; if the environment
      or a field of `bounds` does not exist, or bounds have another shape.
    OSError: as `open_source` does.
    FileNotFoundError: if a directory has no complete checkpoint.
    CheckpointError: if a file of the checkpoint is damaged.
    InvalidArgumentError, DataLossError, NotFoundError: if the data cannot be
      read. For a source the error names the file.
  """
  if sample is not None:
    checks.check_positive('sample', sample)
  episodes: Any = data
  report = report_lib.ConversionReport()
  opened: sources_lib.OpenSource | None = None
  index, feature_bounds = None, {}
  attributes: dict[str, Any] = {'source': 'episodes'}
  if isinstance(data, sources_lib.Source):
    opened = sources_lib.open_source(data)
    total, index = opened.num_episodes, sources_lib.EPISODE_INDEX
    count = min(sample or total, total)
    place = f'{opened.name}, split {data.split}'
    if data.config:
      place += f', mapped by {data.config}'
    attributes = {
        'source': place,
        'about': _describe_data_set(opened),
        'num_available': total,
        'is_sample': count < total,
    }
    episodes = _read(opened, count, report)
    if not opened.transforms:  # These may change the bounds of actions.
      feature_bounds = _get_feature_bounds(opened.features, opened.mapping)
  elif not isinstance(data, tf.data.Dataset):
    episodes, attributes = _open_checkpoint(files.expand(data))
  attributes['source'] = name or attributes['source']
  if episodes is None:
    return description_lib.Description(**attributes)
  if sample is not None and index is None:
    attributes['is_sample'] = any(True for _ in episodes.skip(sample).take(1))
    episodes = episodes.take(sample)
  elif index is None:
    episodes = episode_dataset.count_removed_steps(
        episodes, report.register_counter
    )
  if isinstance(bounds, str):
    bounds = get_environment_bounds(bounds)
  try:
    reading = reading_lib.Reading(
        episodes,
        episode_index=index,
        bounds=feature_bounds if bounds is None else bounds,
        with_frames=num_excerpts > 0,
        seed=seed,
    )
    return description_lib.make_description(
        reading, num_excerpts, removed_steps=report.removed_steps, **attributes
    )
  except tf.errors.OpError as e:
    if opened is None:
      raise
    kind, _ = errors.restore(e)
    problem = opened.describe_error(e, opened.ranges)
    raise kind(e.node_def, e.op, problem) from e


def _open_checkpoint(directory):
  """Returns the episodes to describe or None, and other attributes."""
  tables = records.read_tables(directory)
  names = files.names_in(directory)
  contents = [os.path.join(directory, name) for name in names]
  attributes = {
      'source': directory,
      'about': {
          'folder': directory,
          'splits': [_describe_split('checkpoint', None, contents)],
      },
      'tables': list(map(_describe_table, tables.values())),
  }
  sizes = {
      name: records.num_items(table)
      for name, table in tables.items()
      if getattr(checkpoint_episodes.signature_of(table), '_fields', None)
      == trajectory.Trajectory._fields
  }
  if not sizes:
    records.read_index(directory)
    return None, attributes
  table = max(sizes, key=sizes.get)
  attributes['source'] += f', table {table}'
  return (
      checkpoint_episodes.read_checkpoint_episodes(directory, table),
      attributes,
  )


def _read(
    opened: sources_lib.OpenSource,
    count: int,
    report: report_lib.ConversionReport,
) -> tf.data.Dataset:
  """Reads `count` episodes in evenly spread runs, or all episodes.

  Every episode has its index in the split if that has one part, and otherwise
  in all parts together.
  """
  total = opened.num_episodes
  num_runs = min(_MAX_RUNS, count) if count < total else 1
  read = []
  for run in range(num_runs):
    begin = run * total // num_runs
    end = begin + (run + 1) * count // num_runs - run * count // num_runs
    start = 0  # The index in all parts of the first episode of a part.
    for part in opened.ranges:
      shift = part.begin - start
      start += part.num_episodes
      overlap = part._replace(
          begin=max(begin + shift, part.begin), end=min(end + shift, part.end)
      )
      if overlap.num_episodes > 0:
        shift = shift if len(opened.ranges) > 1 else 0
        episodes = opened.read(overlap, with_index=True, index_shift=shift)
        read.append(
            episode_dataset.count_removed_steps(
                episodes, report.register_counter
            )
        )
  return sources_lib.concatenate(read)


def _get_feature_bounds(
    features: tfds.features.FeaturesDict,
    mapping: step_mapping.StepMapping | None,
) -> dict[str, reading_lib.Bounds]:
  """Returns the bounds of actions and class labels in features."""
  path = rlds.ACTION if mapping is None else mapping.action
  if not isinstance(path, str) or path.startswith('../'):
    return {}
  bounds = {}
  for name, feature in features_lib.feature_leaves(features[rlds.STEPS]):
    is_action = name == path or name.startswith(f'{path}/')
    if is_action:
      name = rlds.ACTION + name[len(path) :]
    elif mapping is not None:
      continue
    if isinstance(feature, tfds.features.ClassLabel):
      if feature.num_classes:
        names = tuple(feature.names or ())
        bounds[name] = reading_lib.Bounds(
            0, feature.num_classes - 1, _FEATURES, names
        )
    elif is_action and isinstance(feature, tfds.features.Tensor):
      spec = feature.get_tensor_info()
      low = -np.inf if spec.minimum is None else spec.minimum
      high = np.inf if spec.maximum is None else spec.maximum
      if spec.minimum is not None or spec.maximum is not None:
        bounds[name] = reading_lib.Bounds(low, high, _FEATURES)
  return bounds


def get_environment_bounds(environment: str) -> dict[str, reading_lib.Bounds]:
  """Returns the bounds of the action space of an environment."""
  env = environments.make_environment(environment)
  spaces = tree.flatten_with_path({rlds.ACTION: env.action_space})
  env.close()
  ends = {
      paths.name_of(keys): (space.low, space.high)
      if isinstance(space, gymnasium.spaces.Box)
      else (space.start, space.start + space.n - 1)
      for keys, space in spaces
      if isinstance(space, (gymnasium.spaces.Box, gymnasium.spaces.Discrete))
  }
  source = f'the environment {environment}'
  return {
      name: reading_lib.Bounds(*pair, source) for name, pair in ends.items()
  }


def _describe_data_set(opened: sources_lib.OpenSource) -> dict[str, Any]:
  """Returns `Description.about` of an `OpenSource`."""
  info = opened.info
  if hasattr(info, 'splits'):
    splits = [
        _describe_split(
            name, split.num_examples, list(map(str, split.filepaths))
        )
        for name, split in sorted(info.splits.items())
    ]
  else:  # Formats other than RLDS have one split.
    (part,) = opened.ranges
    splits = [
        _describe_split(part.split, opened.num_episodes, opened.files(part))
    ]
  file_format = getattr(info, 'file_format', None)
  features = dict(features_lib.feature_leaves(opened.features))
  labels = tfds.features.ClassLabel
  return {
      'name': opened.name.partition('/')[0],
      'version': str(info.version),
      'description': info.description or '',
      'citation': info.citation or '',
      'homepage': '' if _CATALOG in info.homepage else info.homepage,
      'folder': opened.directory,
      'format': (
          file_format.value if file_format else opened.source.format or ''
      ),
      'splits': splits,
      'class_names': {
          path: list(feature.names)
          for path, feature in features.items()
          if isinstance(feature, labels) and feature.names
      },
      'notes': {
          path: feature.doc.desc
          for path, feature in features.items()
          if feature.doc.desc
      },
  }


def _describe_split(name, num_episodes, filepaths) -> dict[str, Any]:
  return {
      'name': name,
      'episodes': num_episodes,
      'files': len(filepaths),
      'bytes': files.total_size(filepaths),
  }


def _describe_table(table: Any) -> dict[str, Any]:
  """Returns the description of a table of a checkpoint."""
  limiter = table.rate_limiter
  settings = []
  for name in _LIMITER:
    value = getattr(limiter, name)
    # Reverb represents no limit by the smallest and largest float.
    is_limit = abs(value) < sys.float_info.max
    settings.append(f'{name}={value:g}' if is_limit else f'{name}=none')
  signature = checkpoint_episodes.signature_of(table)
  leaves = {} if signature is None else paths.leaves(signature)
  return {
      'name': table.table_name,
      'num_items': records.num_items(table),
      'max_size': table.max_size,
      'max_times_sampled': table.max_times_sampled,
      'sampler': _describe_selector(table.sampler),
      'remover': _describe_selector(table.remover),
      'rate_limiter': ', '.join(settings),
      'signature': {
          name: f'{spec.dtype.name} {spec.shape}'
          for name, spec in leaves.items()
      },
  }


def _describe_selector(options: Any) -> str:
  """Returns the name of a Reverb selector, and its settings."""
  kind = options.WhichOneof('distribution')
  settings = getattr(options, kind)
  if isinstance(settings, bool):  # This kind has no settings.
    return kind
  return f'{kind} ({str(settings).strip()})'.replace('\n', ', ')
