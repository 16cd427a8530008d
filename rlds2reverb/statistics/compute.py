"""Computes the statistics of data sets, reading each of them once."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Union

import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import results


class MixtureStatistics(NamedTuple):
  """The statistics of several data sets."""

  whole: results.Statistics
  by_dataset: Dict[str, results.Statistics]


def compute_statistics(
    rlds_data: Union[tf.data.Dataset, Mapping[str, tf.data.Dataset]],
    fields: Optional[Sequence[paths.Path]] = None,
    *,
    quantiles: Sequence[float] = accumulation_lib.QUANTILES,
    sample_size: int = 10_000,
    seed: int = 0,
    acting_only: bool = False,
) -> Any:
  """Computes the statistics of a data set, or of several, in one pass.

  The mean and the standard deviation are accumulated in float64, whatever the
  dtype of the field. The quantiles are those of a uniform sample of the steps
  or, for returns and lengths, of the episodes. They are exact where the sample
  holds all of them. Otherwise the number that is returned for the quantile `q`
  is the quantile of a rank near `q` in the data, with a standard error of
  `sqrt(q * (1 - q) / sample_size)`: with 10,000 steps that is 0.005 for
  `q = 0.5`, and 0.001 for `q = 0.01`.

  Fields of strings are left out, so no image is decoded.

  For several data sets, counts, minima and maxima of the whole are those of one
  pass over all of them, and means and deviations differ by rounding. The
  quantiles come from a uniform sample of all steps.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps. It must be
      finite. The numbers of one episode, or of one batch, must fit in memory.
      Or a dict of several, by their names.
    fields: the paths of the fields. A path may lead to several leaves. By
      default all fields are taken except for the flags, strings, and leaves
      that have more than 1024 numbers or a shape that is not known. Several
      data sets must have the same.
    quantiles: the quantiles to compute, in [0, 1].
    sample_size: the number of steps, and of episodes, of the sample for the
      quantiles. It is reduced where the sample would take more than 64 MiB.
    seed: the seed of the sample, an int.
    acting_only: whether steps whose action does not count are left out of the
      statistics of all fields, observations too. Octo and OpenVLA have only
      steps with an action. By default the last observation counts.

  Returns:
    The `Statistics`. Of several data sets, a named tuple of two: `whole`, those
    of all episodes together, where a data set counts by its steps and not by
    the weight with which it is drawn; and `by_dataset`, those of each, by its
    name.

  Raises:
    ValueError: if `rlds_data` has no RLDS steps or no such field, is no data
      set at all, or several whose fields differ in name, dtype or shape; if one
      of `fields` is not of numbers or its shape is not known, if the reward is
      not one number for every step, or if an argument is out of its range.
  """
  is_one = not isinstance(rlds_data, Mapping)
  datasets = {'': rlds_data} if is_one else rlds_data
  if not datasets:
    raise ValueError('There are no data sets to compute the statistics of.')
  # Each has its own draws, because merged samples must be independent.
  accumulations = {
      name: accumulation_lib.Accumulation(
          steps_lib.steps_spec(dataset.element_spec).step,
          fields,
          quantiles=quantiles,
          sample_size=sample_size,
          seed=seed + number,
          acting_only=acting_only,
      )
      for number, (name, dataset) in enumerate(datasets.items())
  }
  results.check_same(
      {
          name: {
              paths.name_of(keys): f'{spec.dtype.name} {spec.shape}'
              for keys, spec in accumulation.leaves
          }
          for name, accumulation in accumulations.items()
      }
  )
  by_dataset: Dict[str, results.Statistics] = {}
  state: Any = None
  for number, (name, accumulation) in enumerate(accumulations.items()):
    own = accumulation.state_of(datasets[name])
    by_dataset[name] = accumulation.statistics(own)
    state = own if number == 0 else state.merge(own, [seed, number])
  if is_one:
    return by_dataset['']
  return MixtureStatistics(accumulation.statistics(state), by_dataset)
