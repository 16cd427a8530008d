"""Keeps statistics in a JSON file beside the data set."""

import contextlib
import os
from typing import Any, Sequence

from absl import logging
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import pipelines
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.statistics import compute
from rlds2reverb.statistics import results


def cached_statistics(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    identity: Sequence[Any] = (),
    **kwargs: Any,
) -> results.Statistics:
  """Reads the statistics of a data set, or computes and keeps them.

      statistics = cached_statistics(episodes, directory)

  The statistics are kept in `directory`, in a file `statistics-<hash>.json`.
  The hash is made of the version of the data set, the pipeline `rlds_data`,
  `identity` and `kwargs`. The whole graph of the pipeline counts: another
  split, another mapping or transform, or another constant in one of them leads
  to another file.

  Some pipelines may give other elements the next time, although their graph is
  the same: `from_generator`, `formats.load`, or a shuffle without a seed. Their
  statistics are computed each time, and a warning names the cause.

  Args:
    rlds_data: an RLDS data set; see `compute_statistics`.
    directory: the directory of the data set's version; or the one that holds
      its versions, of which the newest is taken, as `load_episodes` does. Where
      it cannot be written to, the statistics are computed each time, with a
      warning.
    identity: anything else that identifies the data, by default
      nothing, as the pipeline counts, too: strings, numbers, arrays, mappings
      and transforms, in lists and dicts.
    **kwargs: arguments of `compute_statistics`.

  Returns:
    The statistics.

  Raises:
    FileNotFoundError: if there is no such directory.
    ValueError: as `compute_statistics` does; and if `identity` holds a
      function.
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
  path = os.path.join(directory, f'statistics-{name}.json')
  if pipeline is None:
    logging.warning(
        'The statistics are computed, and not kept in %s, because it cannot be'
        ' known whether the data will be the same the next time: %s.',
        directory,
        problem,
    )
  elif files.exists(path):
    return load_statistics(path)
  statistics = compute.compute_statistics(rlds_data, **kwargs)
  try:
    if pipeline is not None:
      whole.write_text(path, results.to_json(statistics))
  except OSError as e:
    logging.warning('The statistics cannot be kept: %s', e)
  return statistics


def load_statistics(path: files.PathLike) -> results.Statistics:
  """Reads the statistics in a JSON file, such as a job has written.

  Raises:
    FileNotFoundError: if there is no such file.
  """
  with files.open_text(files.expand(path)) as f:
    return results.from_json(f.read())
