"""Normalises fields of batches by the statistics of a data set, with NumPy."""

import dataclasses
import json
import os
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.random_access import index as index_lib

_KINDS = ('mean_std', 'quantiles', 'bounds')


@dataclasses.dataclass(frozen=True)
class Normalize:
  """Says how a field is normalised.

  Attributes:
    kind: `'mean_std'`: to a mean of 0 and a standard deviation of 1.
      `'quantiles'`: the range between the quantiles 0.01 and 0.99 to [-1, 1],
      and clipped to it. `'bounds'`: the range between the least and the
      greatest number. As `normalize_by_statistics`.
    mask: bools, one for each number of the field: numbers where it is False,
      such as a gripper's, are left unchanged.
  """

  kind: str = 'mean_std'
  mask: Optional[Sequence[bool]] = None

  def __post_init__(self):
    checks.check_choice('kind', self.kind, _KINDS)


class Normalizer:
  """Normalises fields of batches, and undoes it for a policy's actions.

  It pickles, and needs no TensorFlow.

  Attributes:
    statistics: by the path of each field, its mean, standard deviation, least
      and greatest number and quantiles.
  """

  def __init__(
      self,
      fields: Mapping[str, Normalize],
      statistics: Mapping[str, Mapping[str, Any]],
  ):
    """Creates the normaliser.

    Args:
      fields: how each field is normalised, by its path.
      statistics: see the attribute.
    """
    self.statistics = dict(statistics)
    self._fields = dict(fields)

  def __call__(self, batch: Any) -> Any:
    """Returns a batch whose fields are normalised."""
    for path, normalize in self._fields.items():
      offset, scale, low, high = self._constants(path)

      def change(leaf, offset=offset, scale=scale, low=low, high=high):
        return np.clip((leaf - offset) / scale, low, high)

      batch = self._replace(batch, path, normalize, change)
    return batch

  def invert(self, batch: Any) -> Any:
    """Undoes the normalisation of fields, except for clipping.

    Args:
      batch: a nest of some of the fields, such as `{'action': ...}`: arrays,
        lists, or tensors that are in the memory of the CPU.

    Returns:
      The same nest, with NumPy arrays in place of these fields.
    """
    for path, normalize in self._fields.items():
      offset, scale, _, _ = self._constants(path)

      def change(leaf, offset=offset, scale=scale):
        return leaf * scale + offset

      batch = self._replace(batch, path, normalize, change)
    return batch

  def _constants(self, path):
    known = self.statistics[path]
    kind = self._fields[path].kind
    found = {name: np.asarray(known[name], np.float64) for name in known}
    low, high = -np.inf, np.inf
    if kind == 'mean_std':
      offset, scale = found['mean'], found['std']
    else:
      names = ('min', 'max') if kind == 'bounds' else ('low', 'high')
      begin, end = (found[name] for name in names)
      offset, scale = (begin + end) / 2, (end - begin) / 2
      low, high = -1.0, 1.0
    offset, scale = offset.astype(np.float32), scale.astype(np.float32)
    with np.errstate(divide='ignore', over='ignore'):
      is_zero = ~np.isfinite(np.float32(1) / scale)
    return offset, np.where(is_zero, np.float32(1), scale), low, high

  def _replace(self, batch, path, normalize, change):
    return _replace(batch, path.split('/'), normalize.mask, change)

  def __repr__(self):
    return f'Normalizer({self._fields!r}, {self.statistics!r})'


def open_normalizer(
    index: index_lib.Index, fields: Mapping[str, Normalize], path: str
) -> Normalizer:
  """Returns the normaliser of an index.

  The statistics are computed once, with TensorFlow, and kept in a file.

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
  known: Dict[str, Any] = {'fingerprint': index.fingerprint, 'fields': {}}
  if os.path.exists(path):
    with open(path, encoding='utf-8') as f:
      found = json.load(f)
    if found['fingerprint'] == index.fingerprint:
      known = found
  missing = sorted(set(fields) - set(known['fields']))
  if missing:
    with index_lib.made_once(
        f'{path} has no statistics of {", ".join(missing)} yet, and computing'
        ' them'
    ):
      # pylint: disable-next=g-import-not-at-top
      from rlds2reverb.random_access import indexed_statistics

    known['fields'].update(indexed_statistics.compute(index, missing))
    with open(f'{path}.unfinished', 'w', encoding='utf-8') as f:
      json.dump(known, f)
    os.replace(f.name, path)
  return Normalizer(fields, {name: known['fields'][name] for name in fields})


def _replace(nest, keys, mask, change):
  """Returns a nest in which one leaf is changed, if it is there."""
  if not keys:
    nest = np.asarray(nest)  # A tensor of PyTorch's or TensorFlow's, too.
    changed = change(nest).astype(nest.dtype)
    if mask is None:
      return changed
    return np.where(np.asarray(mask, bool), changed, nest)
  if keys[0] not in nest:
    return nest
  return {**nest, keys[0]: _replace(nest[keys[0]], keys[1:], mask, change)}
