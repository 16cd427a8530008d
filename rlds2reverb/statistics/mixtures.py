"""Merges the statistics of several data sets into those of all."""

from typing import Mapping

import numpy as np

from rlds2reverb.statistics import results


def merge_statistics(
    statistics: Mapping[str, results.Statistics],
) -> results.Statistics:
  """Merges statistics that were computed for several data sets.

  Counts, minima and maxima are those of all data, and means and deviations
  differ by rounding. Quantiles cannot be merged, and are left out; call
  `compute_statistics` with all data sets for them.

  Args:
    statistics: the statistics of each data set, by its name.

  Returns:
    The statistics of all of them, without quantiles.

  Raises:
    ValueError: if there are none, or their fields differ in name, dtype or
      shape.
  """
  if not statistics:
    raise ValueError('There are no statistics to merge.')
  described = [
      (
          name,
          {
              path: f'{found.dtype} {found.count.shape}'
              for path, found in one.fields.items()
          },
      )
      for name, one in statistics.items()
  ]
  for one in described:
    check_same(described[0], one)
  parts = list(statistics.values())
  counts = {
      name: sum(getattr(part, name) for part in parts)
      for name in (
          'num_episodes',
          'num_steps',
          'num_transitions',
          'num_terminal',
          'num_truncated',
      )
  }
  return results.Statistics(
      returns=_merge_field([part.returns for part in parts]),
      lengths=_merge_field([part.lengths for part in parts]),
      fields={
          path: _merge_field([part.fields[path] for part in parts])
          for path in parts[0].fields
      },
      **counts,
  )


def _merge_field(parts) -> results.FieldStatistics:
  """Merges the statistics of one field.

  With n numbers in a part, of mean m and deviation s, and N in all, of mean M,
  the variance is the sum of n * (s**2 + (m - M)**2), divided by N.
  """
  counts = np.stack([part.count for part in parts])
  total = counts.sum(0)
  # A part without numbers has NaN for its statistics, and is left out.
  share = counts / np.maximum(total, 1)
  is_empty = counts == 0

  def stack(name, instead):
    values = np.stack([getattr(part, name) for part in parts])
    return np.where(is_empty, instead, values)

  means = stack('mean', 0.0)
  mean = np.sum(share * means, 0)
  variance = np.sum(share * (stack('std', 0.0) ** 2 + (means - mean) ** 2), 0)

  def or_nan(values):
    return np.where(total == 0, np.nan, values)

  return results.FieldStatistics(
      dtype=parts[0].dtype,
      mean=or_nan(mean),
      std=or_nan(np.sqrt(variance)),
      min=or_nan(stack('min', np.inf).min(0)),
      max=or_nan(stack('max', -np.inf).max(0)),
      quantiles={},
      count=total,
      not_finite=np.sum([part.not_finite for part in parts], 0),
  )


def check_same(one, other) -> None:
  """Raises a ValueError if two data sets differ in the fields that count.

  Args:
    one: the name of a data set, and a description of each of its fields.
    other: the same of another data set.
  """
  (name, fields), (other_name, other_fields) = one, other
  differences = [
      f'{path}: {fields.get(path, "missing")} in {name}, but'
      f' {other_fields.get(path, "missing")} in {other_name}'
      for path in sorted({*fields, *other_fields})
      if fields.get(path) != other_fields.get(path)
  ]
  if differences:
    raise ValueError(
        'Statistics of data sets with other fields cannot be merged. Map them'
        ' to the same fields first, or name the fields that they have in'
        ' common:\n' + '\n'.join(differences)
    )
