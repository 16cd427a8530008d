"""Gives the elements of several data sets one structure."""

import itertools
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib


class Mixed(NamedTuple):
  """An element of one of several data sets, or `N` with one dimension more.

  Attributes:
    element: the element, with zeros in the fields that its data set lacks.
    source: int32 `[]` or `[N]`: the index of its data set, in the order in
      which the data sets were given.
    mask: a dict with an entry for each field that some data set lacks. Its key
      is the name of the field's path; its value says whether this element's
      data set has the field: bool `[]` or `[N]`.
  """

  element: Any
  source: tf.Tensor
  mask: Dict[str, tf.Tensor]


def align(
    datasets: Mapping[str, tf.data.Dataset], *, of_batches: bool = False
) -> Dict[str, tf.data.Dataset]:
  """Gives the elements of several data sets one structure.

  A field that some data sets lack is filled with zeros there, and the mask says
  so. Where a dimension is known in some data sets and open in others, it is
  open in the result. If the first dimension of a filled field is open, such as
  the time of an episode, the field gets the length of that field of the element
  whose path has the most in common with its own.

  Args:
    datasets: a dict from names to data sets of episodes, of trajectories, or
      of other nests of tensors. The steps of episodes are stacked.
    of_batches: whether the elements are batches `[N, ...]`, of any size.

  Returns:
    A dict from the same names to data sets of `Mixed` elements, all of one
    structure.

  Raises:
    ValueError: if the data sets differ in anything but keys of dicts. The
      message lists each difference by its path, and what each data set has.
  """
  datasets = {
      name: steps_lib.stack_episodes(dataset)
      if _has_steps(dataset.element_spec)
      else dataset
      for name, dataset in datasets.items()
  }
  specs = {name: dataset.element_spec for name, dataset in datasets.items()}
  owned = [_fields_of(spec) for spec in specs.values()]
  if of_batches:
    specs = {name: _of_any_size(name, spec) for name, spec in specs.items()}
  differences: List[str] = []
  spec = _merge(specs, (), differences)
  if differences:
    raise ValueError(
        'The data sets cannot be mixed. Map them to the same fields first:\n'
        + '\n'.join(differences)
    )
  everywhere = set.intersection(*map(set, owned))
  partial = [keys for keys in _fields_of(spec) if keys not in everywhere]

  def aligned(source: int, dataset: tf.data.Dataset) -> tf.data.Dataset:
    def fill(*element):
      # `map` passes the parts of a plain tuple one by one.
      if type(spec) is not tuple:  # pylint: disable=unidiomatic-typecheck
        [element] = element
      filled = _fill(element, owned[source], spec)
      facts = tf.constant(source), {
          paths.name_of(keys): tf.constant(keys in owned[source])
          for keys in partial
      }
      if of_batches:
        count = tf.shape(tf.nest.flatten(filled)[0])[0]
        facts = tf.nest.map_structure(
            lambda fact: tf.fill([count], fact), facts
        )
      return Mixed(filled, *facts)

    return dataset.map(fill)

  return {
      name: aligned(source, dataset)
      for source, (name, dataset) in enumerate(datasets.items())
  }


def _has_steps(spec: Any) -> bool:
  return isinstance(spec, dict) and rlds.STEPS in spec


def _fields_of(spec: Any) -> List[paths.KeyPath]:
  return [keys for keys, _ in tree.flatten_with_path(spec)]


def _of_any_size(name: str, spec: Any) -> Any:
  """Returns the spec of batches, with an open first dimension."""
  if _has_steps(spec):
    raise ValueError(
        f'With batch_size, data sets of batches are mixed, but {name} has'
        ' episodes. Cut them into windows first, and batch those; or leave'
        ' batch_size out.'
    )

  def of_any_size(keys, leaf):
    if leaf.shape.rank == 0:
      raise ValueError(
          'With batch_size, data sets of batches are mixed, but'
          f' {paths.name_of(keys) or "the element"} of {name} is a'
          ' scalar. Call batch() on the data set.'
      )
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)

  return tree.map_structure_with_path(of_any_size, spec)


def _merge(
    specs: Mapping[str, Any], keys: paths.KeyPath, differences: List[str]
) -> Any:
  """Returns the common spec of the data sets at `keys`."""
  found = list(specs.values())
  make = type(found[0])
  are_dicts = all(isinstance(spec, Mapping) for spec in found)
  if are_dicts or _are_tuples(found):
    parts = {name: _parts(spec) for name, spec in specs.items()}
    merged = {
        key: _merge(
            {name: one[key] for name, one in parts.items() if key in one},
            (*keys, key),
            differences,
        )
        for key in dict.fromkeys(itertools.chain(*parts.values()))
    }
    if are_dicts:
      return merged
    return make(**merged) if hasattr(make, '_fields') else make(merged.values())
  if all(isinstance(spec, tf.TensorSpec) for spec in found):
    common = found[0].most_specific_common_supertype(found[1:])
    pairs = itertools.combinations(found, 2)
    if all(one.is_compatible_with(other) for one, other in pairs):
      if common.shape.rank is not None:
        return common
  described = ', '.join(
      f'{name} has {_describe(spec)}' for name, spec in specs.items()
  )
  differences.append(f'{paths.name_of(keys) or "element"}: {described}')
  return found[0]


def _are_tuples(specs: Sequence[Any]) -> bool:
  """Returns whether specs are tuples or lists of one type and one length."""
  return isinstance(specs[0], (tuple, list)) and all(
      type(spec) is type(specs[0]) and len(spec) == len(specs[0])
      for spec in specs
  )


def _parts(spec: Any) -> Mapping[Any, Any]:
  """Returns the parts of a dict, a tuple or a list by their keys."""
  if isinstance(spec, Mapping):
    return spec
  return dict(zip(getattr(spec, '_fields', range(len(spec))), spec))


def _describe(spec) -> str:
  if isinstance(spec, tf.TensorSpec):
    return f'{spec.dtype.name} {spec.shape}'
  if isinstance(spec, Mapping):
    return f'a dict of {sorted(map(str, spec))}'
  if isinstance(spec, (tuple, list)):
    return f'a {type(spec).__name__} of {len(spec)}'
  return str(spec)


def _fill(element, own, spec) -> Any:
  """Fills the leaves that `element` lacks with zeros; it has those in `own`."""

  def fill(keys, leaf_spec):
    if keys in own:
      return tf.ensure_shape(paths.get(element, keys), leaf_spec.shape)
    shape = [dim or 0 for dim in leaf_spec.shape]
    if shape and leaf_spec.shape[0] is None:
      shape[0] = _nearest_length(element, own, spec, keys)
    zeros = tf.zeros(shape, leaf_spec.dtype)
    return tf.ensure_shape(zeros, leaf_spec.shape)

  return tree.map_structure_with_path(fill, spec)


def _nearest_length(element, own, spec, keys) -> tf.Tensor:
  """Returns the length of the field whose path shares the most with `keys`."""
  like = [other for other in own if paths.get(spec, other).shape[:1] == [None]]
  if not like:
    raise ValueError(
        f'{paths.name_of(keys)} is of no known length, and the data set'
        ' without it has no other field whose length it could take.'
    )
  shared = lambda other: len(os.path.commonprefix([keys, other]))
  nearest = max(sorted(like, key=str), key=shared)
  return tf.shape(paths.get(element, nearest))[0]
