"""Computes statistics of data sets in one pass, and caches them on disk."""

from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
from typing import Any, NamedTuple

from absl import logging
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import loading
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import results
from rlds2reverb.store import damage


class MixtureStatistics(NamedTuple):
  """Statistics of several data sets.

  Attributes:
    combined: the statistics of all episodes. Each data set counts by its number
      of steps, not by its weight in a mixture.
    by_dataset: a dict from the name of each data set to its statistics.
  """

  combined: results.Statistics
  by_dataset: dict[str, results.Statistics]


def compute_statistics(
    rlds_data: tf.data.Dataset | Mapping[str, tf.data.Dataset],
    fields: Sequence[paths.Path] | None = None,
    *,
    quantiles: Sequence[float] = accumulation_lib.QUANTILES,
    sample_size: int = 10_000,
    seed: int = 0,
    acting_only: bool = False,
) -> Any:
  """Computes the statistics of a data set, or of several, in one pass.

  Mean and standard deviation are accumulated in float64, for all dtypes.
  Quantiles are computed from a uniform sample of the steps or, for returns and
  lengths, of the episodes. They are exact if the sample has all of them.
  Otherwise, the value returned for the quantile `q` is the quantile of a rank
  near `q` in the data, with a standard error of `sqrt(q * (1 - q) /
  sample_size)`: with 10,000 steps 0.005 for `q = 0.5`, 0.001 for `q = 0.01`.

  Fields of strings are skipped, so no image is decoded.

  For several data sets, the combined counts, minima and maxima equal the
  results of one pass over all of them; means and deviations differ by rounding.
  The combined quantiles are computed from a uniform sample of all steps.

  Args:
    rlds_data: a finite RLDS data set, with nested or stacked steps; or a dict
      of several, by their names. One episode, or one batch, must fit in memory.
    fields: the paths of the fields. A path may lead to several leaves. By
      default all fields except flags, strings, leaves of more than 1024
      numbers, and leaves of unknown shape. Several data sets must have the same
      fields.
    quantiles: the quantiles to compute, in [0, 1].
    sample_size: the number of steps, and of episodes, in the sample for the
      quantiles. It is reduced if the sample would exceed 64 MiB.
    seed: the seed of the sample, an int.
    acting_only: whether to exclude steps without an action from the statistics
      of all fields, including observations. Octo and OpenVLA have only steps
      with an action. By default the last observation is included.

  Returns:
    The `Statistics`; of several data sets, `MixtureStatistics`.

  Raises:
    ValueError: if `rlds_data` is not a data set of RLDS episodes; a field does
      not exist, or does not have numbers of a known shape; the reward is not
      one number per step; an argument is out of range; or the fields of several
      data sets differ in name, dtype or shape.
  """
  if not isinstance(rlds_data, Mapping):
    accumulation = _make_accumulation(
        rlds_data, fields, quantiles, sample_size, seed, acting_only
    )
    return accumulation.statistics(accumulation.accumulate(rlds_data))
  if not rlds_data:
    raise ValueError('There are no data sets to compute the statistics of.')
  # With different seeds, because merged samples must be independent.
  accumulations = {
      name: _make_accumulation(
          dataset, fields, quantiles, sample_size, seed + i, acting_only
      )
      for i, (name, dataset) in enumerate(rlds_data.items())
  }
  results.check_same_fields(
      {
          name: {
              paths.name_of(keys): f'{spec.dtype.name} {spec.shape}'
              for keys, spec in accumulation.leaves
          }
          for name, accumulation in accumulations.items()
      }
  )
  by_dataset: dict[str, results.Statistics] = {}
  combined: Any = None
  for i, (name, accumulation) in enumerate(accumulations.items()):
    state = accumulation.accumulate(rlds_data[name])
    by_dataset[name] = accumulation.statistics(state)
    combined = state if i == 0 else combined.merge(state, [seed, i])
  return MixtureStatistics(accumulation.statistics(combined), by_dataset)


def _make_accumulation(
    rlds_data, fields, quantiles, sample_size, seed, acting_only
) -> accumulation_lib.Accumulation:
  return accumulation_lib.Accumulation(
      steps_lib.get_steps_spec(rlds_data.element_spec).step,
      fields,
      quantiles=quantiles,
      sample_size=sample_size,
      seed=seed,
      acting_only=acting_only,
  )


def cached_statistics(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    identity: Sequence[Any] = (),
    **kwargs: Any,
) -> results.Statistics:
  """Loads the statistics of a data set from a cache, or computes them.

      statistics = cached_statistics(episodes, directory)

  The cache is a file `statistics-<hash>.json` in `directory`. The hash is
  computed from the version of the data set, the graph of the pipeline
  `rlds_data`, `identity` and `kwargs`: another split, mapping or transform, or
  another constant in one, results in another file.

  Some pipelines may have different elements each time, with the same graph:
  `from_generator`, `formats.load`, or a shuffle without a seed. Their
  statistics are computed each time, and a warning names the cause. If several
  processes need the same statistics, one process computes them.

  Args:
    rlds_data: an RLDS data set; see `compute_statistics`.
    directory: the folder of the version of the data set; or the folder of its
      versions, of which the newest is used, as by `load_episodes`. If it is not
      writable, the statistics are computed each time, with a warning.
    identity: anything else that identifies the data: strings, numbers, arrays,
      mappings and transforms, in lists and dicts. By default nothing, as the
      pipeline is part of the hash.
    **kwargs: arguments of `compute_statistics`.

  Returns:
    The statistics.

  Raises:
    FileNotFoundError: if there is no such directory.
    ValueError: as `compute_statistics` does; or if `identity` has a function.
  """
  directory = files.expand(directory)
  if not files.is_folder(directory):
    raise FileNotFoundError(f'There is no directory {directory}.')
  # Statistics of episodes in memory may be cached without a data set.
  with contextlib.suppress(FileNotFoundError):
    directory = loading.find_folder(directory)
  pipeline, problem = fingerprints.fingerprint_pipeline(rlds_data)
  fingerprint = fingerprints.fingerprint(
      loading.fingerprint_folder(directory),
      str(rlds_data.element_spec),
      pipeline,
      identity,
      kwargs,
  )
  path = os.path.join(directory, f'statistics-{fingerprint}.json')
  if pipeline is None:
    logging.warning(
        'The statistics are computed, and not cached in %s, because the data'
        ' may differ the next time: %s.',
        directory,
        problem,
    )
    return compute_statistics(rlds_data, **kwargs)
  if files.exists(path):
    return load_statistics(path)
  with contextlib.ExitStack() as stack:
    if not files.is_url(path):
      with contextlib.suppress(OSError):  # The directory is not writable.
        stack.enter_context(files.one_at_a_time(path))
        if files.exists(path):  # Another process computed them first.
          return load_statistics(path)
    statistics = compute_statistics(rlds_data, **kwargs)
    try:
      files.write_text(path, results.to_json(statistics))
    except OSError as e:
      logging.warning('The statistics cannot be cached: %s', e)
  return statistics


def load_statistics(path: files.PathLike) -> results.Statistics:
  """Loads statistics from a JSON file, such as the output of a job.

  Raises:
    FileNotFoundError: if there is no such file.
    OSError: if the file is damaged, or has other content.
  """
  path, remedy = files.expand(path), 'Remove it and compute it again.'
  with damage.naming_damage(path, remedy):
    with files.open_text(path) as f:
      text = f.read()
    damage.parse_json(text, path, remedy)
    return results.from_json(text)
