"""Makes the normaliser of an index, whose statistics are kept in a file."""

import json
import os
from typing import Any, Dict, Mapping, Sequence

import numpy as np

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import checks
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.store import json_files
from rlds2reverb.store import rows as rows_lib

_STATISTICS = ('mean', 'std', 'min', 'max')
_QUANTILES = (0.01, 0.99)


def open_normalizer(
    index: index_lib.Index,
    fields: Mapping[str, normalization.Normalize],
    path: str,
) -> normalization.Normalizer:
  """Returns the normaliser of an index.

  The statistics are computed once, with TensorFlow, and kept in a file. Of
  several processes that need them at once, one computes them.

  Args:
    index: the index.
    fields: how each field is normalised, by its path.
    path: the file.

  Raises:
    ModuleNotFoundError: if statistics are missing, and TensorFlow is, too.
    ValueError: if there is no such field of floats.
  """
  columns = index.layout.columns
  floats = [one.name for one in columns if one.dtype.startswith('float')]
  for field in fields:
    checks.check_known(index.folder, 'field of floats', field, floats)
  known = _stored(index, path)
  missing = sorted(set(fields) - set(known))
  if missing:
    index_lib.need_tensorflow(
        f'{path} has no statistics of {", ".join(missing)} yet, and computing'
        ' them'
    )
    from rlds2reverb.datasets import whole  # pylint: disable=g-import-not-at-top

    with whole.one_at_a_time(path):
      # Another process may have computed them meanwhile.
      known = _stored(index, path)
      missing = sorted(set(fields) - set(known))
      if missing:
        known = {**known, **_compute(index, missing)}
        whole.write_text(path, json.dumps({index.fingerprint: known}))
  return normalization.Normalizer(
      fields, {name: known[name] for name in fields}
  )


def _stored(index: index_lib.Index, path: str) -> Dict[str, Any]:
  """Returns the statistics of an index that a file has."""
  if not os.path.exists(path):
    return {}
  stored = json_files.read(path, 'Remove it: it is computed again.')
  return stored.get(index.fingerprint, {})


def _compute(
    index: index_lib.Index, fields: Sequence[str]
) -> Dict[str, Dict[str, Any]]:
  """Returns the statistics of fields, as lists of numbers."""
  # pylint: disable=g-import-not-at-top
  import tensorflow as tf

  from rlds2reverb.episodes import rlds
  from rlds2reverb.statistics import compute

  # Statistics also need the flags.
  flags = rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL
  used = {*fields, *flags, rlds.REWARD, rlds.DISCOUNT, 'has_action'}
  columns = index.layout.columns
  chosen = [k for k, column in enumerate(columns) if column.name in used]

  def episode_of(leaves):
    steps = rows_lib.nest_of(
        {columns[k].keys: leaf for k, leaf in zip(chosen, leaves)}
    )
    # Every RLDS step has both, even if the statistics do not use them.
    first = steps[rlds.IS_FIRST]
    return {rlds.STEPS: {rlds.OBSERVATION: first, rlds.ACTION: first, **steps}}

  def generate():
    begin = 0
    for length in index.lengths.tolist():
      yield episode_of(index.take(np.arange(begin, begin + length), chosen))
      begin += length

  specs = [
      tf.TensorSpec([None, *columns[k].shape], columns[k].dtype) for k in chosen
  ]
  episodes = tf.data.Dataset.from_generator(
      generate, output_signature=episode_of(specs)
  )
  found = compute.compute_statistics(
      episodes, list(fields), quantiles=_QUANTILES
  ).fields
  return {
      field: {
          **{name: getattr(one, name).tolist() for name in _STATISTICS},
          'low': one.quantile(_QUANTILES[0]).tolist(),
          'high': one.quantile(_QUANTILES[1]).tolist(),
      }
      for field, one in found.items()
  }
