"""The items of several data sets, as if they were those of one."""

from typing import Any, Dict, Mapping

import numpy as np
import tree

from rlds2reverb.random_access import items as items_lib
from rlds2reverb.store import rows as rows_lib


class MixedItems(items_lib.SequenceOfItems):
  """The items of several data sets, one after the other.

  Fields that only some data sets have are zeros, or empty strings, in the
  others. All else must be the same.

  Attributes:
    sources: the items of each data set, by its name.
    counts: int64 `[D]`: how many items each data set has.
    spec: the nest of one item, with `Spec` leaves.
  """

  first = 0  # The number of the first item, for samplers.

  def __init__(self, sources: Mapping[str, items_lib.Items]):
    """Mixes items.

    Args:
      sources: the items of each data set, by its name.

    Raises:
      ValueError: if there are none, or if a field differs between them.
    """
    if not sources:
      raise ValueError('There are no data sets to mix.')
    self.sources = dict(sources)
    self.counts = np.array([len(each) for each in sources.values()], np.int64)
    self.num_items = int(self.counts.sum())
    self._first = np.cumsum(self.counts) - self.counts
    self._specs: Dict[Any, items_lib.Spec] = {}
    for name, items in self.sources.items():
      for keys, spec in tree.flatten_with_path(items.spec):
        known = self._specs.setdefault(keys, spec)
        if known != spec:
          raise ValueError(
              f'Field {"/".join(map(str, keys))} is {spec} in {name}, but'
              f' {known} in data sets before it. Make them the same in the'
              ' function prepare of build_index (PadField), or by images.'
          )
    self.spec = rows_lib.nest_of(self._specs)

  def batch(self, items: Any) -> Any:
    """Returns items, stacked; see `Items.batch`."""
    items = self.check_numbers(items)
    if len(self.sources) == 1:
      return next(iter(self.sources.values())).batch(items)
    # A data set without items begins where the next one does.
    source = np.searchsorted(self._first, items, 'right') - 1
    leaves = {
        keys: np.full(
            [len(items), *spec.shape],
            b'' if spec.dtype == 'string' else 0,
            spec.numpy_dtype,
        )
        for keys, spec in self._specs.items()
    }
    for number, each in enumerate(self.sources.values()):
      places = np.flatnonzero(source == number)
      if len(places):
        part = each.batch(items[places] - self._first[number])
        for keys, leaf in tree.flatten_with_path(part):
          shape = np.shape(leaf)[1:]
          if shape != leaves[keys].shape[1:]:  # It would be broadcast.
            raise ValueError(
                f'Field {"/".join(map(str, keys))} has items of the shape'
                f' {list(shape)}, but the first one had'
                f' {list(leaves[keys].shape[1:])}. The transform of mixed items'
                ' must return one shape.'
            )
          leaves[keys][places] = leaf
    return rows_lib.nest_of(leaves)

  def identity(self) -> Any:
    """Returns a value that differs for other items, for `fingerprint`."""
    return [[name, each.identity()] for name, each in self.sources.items()]
