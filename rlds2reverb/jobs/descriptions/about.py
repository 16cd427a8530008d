"""What data says of itself: metadata that is known without an episode."""

import os
import sys
from typing import Any, Dict

import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
from rlds2reverb.replay.checkpoint import records

_CATALOG = 'tensorflow.org/datasets/catalog'  # where TFDS knows no homepage


def about_data_set(opened: Any) -> Dict[str, Any]:
  """Returns `Description.about` of an `OpenSource`."""
  info = opened.info
  if hasattr(info, 'splits'):
    splits = [
        _split(name, split.num_examples, map(str, split.filepaths))
        for name, split in sorted(info.splits.items())
    ]
  else:  # Other formats have one split.
    (part,) = opened.ranges
    splits = [_split(part.split, opened.num_episodes, opened.files(part))]
  form = getattr(info, 'file_format', None)
  features = dict(saving.feature_leaves(opened.features))
  return {
      'name': opened.name.partition('/')[0],
      'version': str(info.version),
      'description': info.description or '',
      'citation': info.citation or '',
      'homepage': '' if _CATALOG in info.homepage else info.homepage,
      'folder': opened.directory,
      'format': form.value if form else opened.source.format or '',
      'splits': splits,
      'class_names': {
          path: list(feature.names)
          for path, feature in features.items()
          if isinstance(feature, tfds.features.ClassLabel) and feature.names
      },
      'notes': {
          path: feature.doc.desc
          for path, feature in features.items()
          if feature.doc.desc
      },
  }


def about_folder(folder: str) -> Dict[str, Any]:
  """Returns `Description.about` of a checkpoint."""
  paths = [os.path.join(folder, name) for name in files.names_in(folder)]
  return {'folder': folder, 'splits': [_split('checkpoint', None, paths)]}


def _split(name, num_episodes, paths) -> Dict[str, Any]:
  paths = list(paths)
  return {
      'name': name,
      'episodes': num_episodes,
      'files': len(paths),
      'bytes': files.total_size(paths),
  }


def about_table(table: Any) -> Dict[str, Any]:
  """Returns the description of a table of a checkpoint."""
  limiter = table.rate_limiter
  signature = checkpoint_episodes.signature_of(table)
  leaves = {} if signature is None else paths_lib.leaves(signature)
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
          for name, spec in leaves.items()
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
