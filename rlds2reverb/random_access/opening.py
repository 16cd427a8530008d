"""`open_batches`: one call from data sets on disk to batches for a trainer."""

from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
from typing import Any

import numpy as np

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.random_access import batches as batches_lib
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import items as items_lib
from rlds2reverb.store import damage
from rlds2reverb.store import rows as store_rows

_STATISTICS = ('mean', 'std', 'min', 'max')
_QUANTILES = (0.01, 0.99)


def open_batches(
    sources: Mapping[str, index_lib.PathLike | index_lib.IndexedData],
    folder: index_lib.PathLike,
    batch_size: int,
    windows: Any,
    *,
    images: items_lib.Images | None = None,
    normalize: Mapping[str, normalization.Normalize] | None = None,
    num_processes: int = 1,
    **kwargs: Any,
) -> batches_lib.Batches:
  """Opens batches of data sets, and builds missing indexes and statistics.

      batches = open_batches(
          {'bridge': IndexedData('/data/bridge', 'bridge', weight=2.0),
           'kuka': IndexedData('/data/kuka', 'kuka', weight=1.0)},
          '/data/indexes', 256, ActionChunks(2, 4),
          images={'observation/image': (224, 224)},
          normalize={'action': Normalize('quantiles', [True] * 6 + [False])})

  The first call needs TensorFlow, for the index, and for the statistics of each
  field of `normalize`. Both are stored in `folder`, for later calls. Every data
  set is normalized by its own statistics.

  Args:
    sources: the data sets by their names: directories, or `IndexedData`.
    folder: a folder on the local disk for the indexes and statistics.
    batch_size: the number of items of a batch, of all processes together.
    windows: the windows of steps that are items, `ActionChunks` or `Windows`.
    images: the images to decode; see `Items`. Images that a data set does not
      have are black.
    normalize: how fields are normalized, by their paths.
    num_processes: the number of processes that build an index; see
      `build_index`.
    **kwargs: further arguments of `Batches`, such as `augment`.

  Returns:
    The batches.

  Several processes may make the same first call, such as the ranks of a job:
  one process builds, and the others wait for it.

  Raises:
    FileNotFoundError: if there is no such data set, or it has moved; give its
      new directory in `sources` then.
    OSError: if a data set has changed since it was indexed: it has other files
      or sizes. Remove its index then. Or if a file is damaged.
    FileExistsError: if another process builds the index on a file system that
      has no locks, so that nobody can wait for it.
    ModuleNotFoundError: if an index or statistics are missing, and TensorFlow
      is not installed.
    ValueError: if `folder` has indexes of other data, or of other configs; and
      as `build_index`, `formats.load`, `Items` and `Batches` do.
  """
  folder = index_lib.expand_folder(folder)
  images = images or {}
  opened = {
      name: source
      if isinstance(source, index_lib.IndexedData)
      else index_lib.IndexedData(source)
      for name, source in sources.items()
  }
  items, missing = {}, set(images)
  for name, source in opened.items():
    path = os.path.join(folder, name)
    index = index_lib.open_index(path, source, num_processes)
    fields = {column.name for column in index.layout.columns}
    missing -= fields
    items[name] = items_lib.Items(
        index,
        windows,
        images={field: images[field] for field in fields & set(images)},
        transform=_open_normalizer(index, normalize, f'{path}.statistics.json')
        if normalize
        else None,
    )
  if missing:
    raise ValueError(f'No data set has the images {sorted(missing)}.')
  weights = _compute_weights(opened, items, kwargs.get('replacement', True))
  return batches_lib.Batches(items, batch_size, weights=weights, **kwargs)


def _compute_weights(sources, items, replacement) -> dict[str, Any] | None:
  """Returns the weights of data sets, or masks of items, for `Batches`."""
  weights: dict[str, Any] = {
      name: source.weight
      for name, source in sources.items()
      if source.weight is not None
  }
  functions = {
      name: source.item_weights
      for name, source in sources.items()
      if source.item_weights is not None
  }
  if functions and not weights:
    weights = {name: len(items[name]) if replacement else 1.0 for name in items}
  for name in weights:
    if name in functions:
      item_weights = np.asarray(functions[name](items[name]), np.float64)
      if replacement:
        checks.check_weights(
            item_weights, name=f'item_weights of {name}', of='item'
        )
        item_weights = random_lib.scale_weights(item_weights)
        item_weights = item_weights / item_weights.sum()
      weights[name] = weights[name] * item_weights
  return weights or None


def _open_normalizer(
    index: index_lib.Index,
    fields: Mapping[str, normalization.Normalize],
    path: str,
) -> normalization.Normalizer:
  """Returns the normalizer of an index, whose statistics are in a file.

  Missing statistics are computed with TensorFlow. If several processes need
  them at the same time, one computes them.

  Args:
    index: the index.
    fields: how each field is normalized, by its path.
    path: the file.

  Raises:
    ModuleNotFoundError: if statistics are missing, and TensorFlow is, too.
    ValueError: if there is no such field of floats.
  """
  columns = index.layout.columns
  floats = [c.name for c in columns if c.dtype.startswith('float')]
  for field in fields:
    checks.check_known(index.folder, 'field of floats', field, floats)
  statistics = _read_statistics(index, path)
  missing = sorted(set(fields) - set(statistics))
  if missing:
    index_lib.require_tensorflow(
        f'{path} has no statistics of {", ".join(missing)} yet, and computing'
        ' them'
    )
    from rlds2reverb.datasets import files

    with files.one_at_a_time(path):
      # Another process may have computed them in the meantime.
      statistics = _read_statistics(index, path)
      missing = sorted(set(fields) - set(statistics))
      if missing:
        statistics = {**statistics, **_compute_statistics(index, missing)}
        files.write_text(path, json.dumps({index.fingerprint: statistics}))
  return normalization.Normalizer(
      fields, {field: statistics[field] for field in fields}
  )


def _read_statistics(index: index_lib.Index, path: str) -> dict[str, Any]:
  """Returns the statistics of the fields of an index that are in a file."""
  if not os.path.exists(path):
    return {}
  content = damage.read_json(path, 'Remove it: it is computed again.')
  return content.get(index.fingerprint, {})


def _compute_statistics(
    index: index_lib.Index, fields: Sequence[str]
) -> dict[str, dict[str, Any]]:
  """Returns the statistics of fields, as lists of numbers."""
  import tensorflow as tf

  from rlds2reverb.episodes import rlds
  from rlds2reverb.statistics import compute

  # Statistics also need the flags.
  flags = rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL
  used = {*fields, *flags, rlds.REWARD, rlds.DISCOUNT, 'has_action'}
  columns = index.layout.columns
  numbers = [k for k, column in enumerate(columns) if column.name in used]

  def make_episode(leaves):
    steps = store_rows.nest_of(
        {columns[k].keys: leaf for k, leaf in zip(numbers, leaves)}
    )
    # Every RLDS step has both, even if the statistics do not use them.
    first = steps[rlds.IS_FIRST]
    return {rlds.STEPS: {rlds.OBSERVATION: first, rlds.ACTION: first, **steps}}

  def generate():
    ends = np.cumsum(index.lengths)
    for rows in np.split(np.arange(index.num_rows), ends)[:-1]:
      yield make_episode(index.take(rows, numbers))

  specs = [
      tf.TensorSpec([None, *columns[k].shape], columns[k].dtype)
      for k in numbers
  ]
  episodes = tf.data.Dataset.from_generator(
      generate, output_signature=make_episode(specs)
  )
  statistics = compute.compute_statistics(
      episodes, list(fields), quantiles=_QUANTILES
  )
  return {
      field: {
          **{name: getattr(result, name).tolist() for name in _STATISTICS},
          'low': result.quantile(_QUANTILES[0]).tolist(),
          'high': result.quantile(_QUANTILES[1]).tolist(),
      }
      for field, result in statistics.fields.items()
  }
