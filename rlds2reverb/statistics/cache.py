"""Statistics kept in a JSON file beside the data set."""

import contextlib
import dataclasses
import json
import os
from typing import Any, Sequence

from absl import logging
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import pipelines
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.statistics import statistics as statistics_lib


def cached_statistics(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    identity: Sequence[Any] = (),
    **kwargs: Any,
) -> statistics_lib.Statistics:
  """Reads the statistics of a data set, or computes and keeps them.

  They are in `directory`, in the file `statistics-<hash>.json`. The hash is
  that of the data set's version, of the pipeline `rlds_data`, of `identity` and
  of `kwargs`. The pipeline is all that is done in its graph, so another split,
  mapping, transform or constant in one has another file.

      statistics = cached_statistics(episodes, directory)

  Where other elements may come out of the same graph, as of `from_generator`,
  `load_hdf5` or a shuffle without a seed, the statistics are computed
  each time, with a warning that names what it is.

  Args:
    rlds_data: see `compute_statistics`.
    directory: the directory of the data set's version; or the one that holds
      its versions, of which the newest is taken, as `load_episodes` does. Where
      it cannot be written into, the statistics are computed each time, with a
      warning.
    identity: what else tells this data from other data: strings, numbers,
      arrays, mappings and transforms, in lists and dicts.
    **kwargs: passed to `compute_statistics`.

  Returns:
    The statistics.

  Raises:
    FileNotFoundError: if there is no such directory.
    ValueError: see `compute_statistics`; and if `identity` holds a function.
  """
  directory = files.expand(directory)
  if not files.is_folder(directory):
    raise FileNotFoundError(f'There is no directory {directory}.')
  # Episodes in memory may have their statistics in a folder without a data set.
  with contextlib.suppress(FileNotFoundError):
    directory = versions.find_folder(directory)
  pipeline, problem = pipelines.fingerprint(rlds_data)
  name = identity_lib.fingerprint(
      versions.fingerprint(directory),
      str(rlds_data.element_spec),
      pipeline,
      identity,
      kwargs,
  )
  if pipeline is None:
    logging.warning(
        'The statistics are computed and not kept in %s, as it cannot be known'
        ' whether the data would be the same the next time: %s.',
        directory,
        problem,
    )
    return statistics_lib.compute_statistics(rlds_data, **kwargs)
  path = os.path.join(directory, f'statistics-{name}.json')
  if files.exists(path):
    with files.open_text(path) as f:
      return from_json(f.read())
  statistics = statistics_lib.compute_statistics(rlds_data, **kwargs)
  try:
    whole.write_text(path, to_json(statistics))
  except OSError as e:
    logging.warning('The statistics are not kept: %s', e)
  return statistics


def to_json(statistics: statistics_lib.Statistics) -> str:
  """Returns statistics as text; NaN is written as `NaN`."""
  return json.dumps(
      dataclasses.asdict(statistics),
      default=lambda array: array.tolist(),
      indent=1,
  )


def from_json(text: str) -> statistics_lib.Statistics:
  """Returns the statistics of which `to_json` made the text."""
  plain = json.loads(text)

  def field(values):
    arrays = {
        name: np.array(values[name], np.float64)
        for name in ('mean', 'std', 'min', 'max')
    }
    arrays.update(
        (name, np.array(values[name], np.int64))
        for name in ('count', 'not_finite')
    )
    quantiles = {
        float(level): np.array(numbers, np.float64)
        for level, numbers in values['quantiles'].items()
    }
    return statistics_lib.FieldStatistics(
        dtype=values['dtype'], quantiles=quantiles, **arrays
    )

  for name in ('returns', 'lengths'):
    plain[name] = field(plain[name])
  plain['fields'] = {
      name: field(values) for name, values in plain['fields'].items()
  }
  return statistics_lib.Statistics(**plain)
