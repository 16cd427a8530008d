"""The episodes of an index as a `tf.data.Dataset`, and their statistics."""

from typing import Any, Dict, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.statistics import compute as compute_lib

_QUANTILES = (0.01, 0.99)
# The fields that statistics need besides their own.
_FLAGS = (
    rlds.IS_FIRST,
    rlds.IS_LAST,
    rlds.IS_TERMINAL,
    rlds.REWARD,
    rlds.DISCOUNT,
    'has_action',
)


def compute(
    index: index_lib.Index, fields: Sequence[str]
) -> Dict[str, Dict[str, Any]]:
  """Returns the statistics of fields, as lists of numbers.

  Args:
    index: an index of steps.
    fields: the paths of leaves of floats.
  """
  found = compute_lib.compute_statistics(
      _episodes(index, [*fields, *_FLAGS]),
      list(fields),
      quantiles=_QUANTILES,
  )
  return {
      field: {
          'mean': one.mean.tolist(),
          'std': one.std.tolist(),
          'min': one.min.tolist(),
          'max': one.max.tolist(),
          'low': one.quantile(_QUANTILES[0]).tolist(),
          'high': one.quantile(_QUANTILES[1]).tolist(),
      }
      for field, one in found.fields.items()
  }


def _episodes(index, names) -> tf.data.Dataset:
  """Returns a data set of episodes that have some of the columns."""
  columns = index.layout.columns
  chosen = [
      number for number, column in enumerate(columns) if column.name in names
  ]
  first = np.cumsum(index.lengths) - index.lengths

  def generate():
    for begin, length in zip(first, index.lengths):
      leaves = index.read(np.arange(begin, begin + length), chosen)
      yield {rlds.STEPS: _nest(columns, chosen, leaves)}

  specs = [
      tf.TensorSpec(
          [None, *columns[number].shape], tf.as_dtype(columns[number].dtype)
      )
      for number in chosen
  ]
  return tf.data.Dataset.from_generator(
      generate,
      output_signature={rlds.STEPS: _nest(columns, chosen, specs)},
  )


def _nest(columns, chosen, leaves) -> Dict[str, Any]:
  nest: Dict[str, Any] = {}
  for number, leaf in zip(chosen, leaves):
    nest = paths.insert(nest, columns[number].keys, leaf)
  for name in (rlds.OBSERVATION, rlds.ACTION):
    # Every RLDS step has both, even if the statistics do not use them.
    nest.setdefault(name, nest[rlds.IS_FIRST])
  return nest
