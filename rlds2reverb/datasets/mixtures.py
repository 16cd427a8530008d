"""Mixtures: data sets whose elements are drawn from several data sets.

The elements get one structure first: `align` fills the fields that some data
sets lack with zeros.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import os
from typing import Any, NamedTuple

import gin
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_STOPS = ('never', 'first', 'all')
# The number of draws that are computed together.
_DRAWS = 256


class Mixed(NamedTuple):
  """An element of one of several data sets, or `N` with one dimension more.

  Attributes:
    element: the element, with zeros in the fields that its data set lacks.
    source: int32 `[]` or `[N]`: the index of its data set, in the order in
      which the data sets were given.
    mask: a dict with an entry for each field that some data set lacks. Its key
      is the name of the field's path. Its value, bool `[]` or `[N]`, is True if
      the data set of the element has the field.
  """

  element: Any
  source: tf.Tensor
  mask: dict[str, tf.Tensor]


@pipelines.do_not_convert
@gin.configurable(module='rlds2reverb')
def mix_datasets(
    datasets: Mapping[str, tf.data.Dataset],
    weights: Mapping[str, float] | None = None,
    *,
    batch_size: int | None = None,
    subbatch_size: int | None = None,
    stop_when: str = 'never',
    seed: int = 0,
    start: int = 0,
) -> tf.data.Dataset:
  """Mixes elements, or batches, of several data sets in proportion to weights.

  The elements may be episodes, trajectories, windows or anything else. Shuffle
  the data sets before, because each one yields its elements in its own order.
  If `a` has 2 elements and `b` has 4, and the data sets that are drawn are
  a b b a b a b ..., then:

      (by default)         a0 b0 b1 a1 b2 a0 b3 ...    each data set is repeated
      stop_when="first"    a0 b0 b1 a1 b2              a is drawn after its end
      stop_when="all"      a0 b0 b1 a1 b2 b3           all of them have ended
      subbatch_size=2      [a0 a1] [b0 b1] [b2 b3] [a0 a1] ...

  With `batch_size`, the data sets must yield batches, as replay buffers and
  `sample_reverb_servers` do. Their elements are mixed into new batches. With
  weights of 1 and 3, and `batch_size=4`:

      (by default)         a b b b   a b b b   a b b b     exactly, in order
      subbatch_size=2      b b a a   b b b b   a a b b     two of one are drawn
      subbatch_size=1      b b a b   b b b b   a b b a     each one is drawn

  Equal weights are then the symmetric sampling of RLPD ("Efficient Online
  Reinforcement Learning with Offline Data", Ball et al., 2023): half of each
  batch recorded, half the agent's own. Sub-batches are drawn as by TorchRL's
  `ReplayBufferEnsemble`, where each one comes from one buffer.

  Args:
    datasets: a dict from names to data sets. Fields that only some of them have
      are filled with zeros in the others; the steps of episodes are stacked.
    weights: a dict from the same names to weights. Each data set is drawn in
      proportion to its weight; a data set of weight 0 is never drawn. By
      default all weights are equal.
    batch_size: the number of elements of a batch, if the data sets are of
      batches; these may be of any size.
    subbatch_size: how many elements are drawn together from one data set. By
      default it is one element; or every batch has the same number of each data
      set.
    stop_when: when the mixture ends, as drawn above. With `"all"` the last
      sub-batch of a data set may be shorter; with `"first"`, and in batches, a
      shorter one is dropped.
    seed: the seed of the draws, an int. They are a function of the seed and of
      the number of the element, sub-batch or batch alone.
    start: the index of the first element, sub-batch or batch. A trainer that
      resumes after `n` of them passes `n`, and the same draws continue.

  Returns:
    A data set of `Mixed` elements, sub-batches or batches.

  Raises:
    ValueError: if there are no data sets, if they differ in anything but keys
      of dicts, if the weights have other names, are negative or are all 0, or
      if another argument is not valid.
    InvalidArgumentError: while iterating, if a data set that should be repeated
      is empty.
  """
  checks.check_choice('stop_when', stop_when, _STOPS)
  if not datasets:
    raise ValueError('There are no data sets to mix.')
  sizes = {'batch_size': batch_size, 'subbatch_size': subbatch_size}
  for name, size in sizes.items():
    if size is not None:
      checks.check_positive(name, size)
  checks.check_not_negative('start', start)
  weights = dict.fromkeys(datasets, 1.0) if weights is None else weights
  checks.check_weights(weights, datasets)
  scaled = random_lib.scale_weights(list(weights.values())).tolist()
  total = sum(scaled)
  chance_of = {name: weight / total for name, weight in zip(weights, scaled)}
  parts, chances = [], []
  aligned = align(datasets, of_batches=batch_size is not None)
  for name, part in aligned.items():
    # A data set that is never drawn would be waited for at the end.
    if weights[name]:
      if stop_when == 'never':
        # The error is reached only if there is nothing to repeat.
        part = part.repeat().concatenate(_error(part.element_spec, name))
      parts.append(part)
      chances.append(chance_of[name])
  if batch_size is None:
    if subbatch_size is not None:
      parts = [_stacked(part, subbatch_size, stop_when) for part in parts]
    return _drawn(parts, chances, stop_when, seed, start)
  if subbatch_size is None:
    if stop_when == 'all':
      raise ValueError(
          'Every batch has elements of all data sets, so they cannot stop when'
          ' stop_when="all". Choose a subbatch_size, or stop_when="first".'
      )
    return _exact(parts, chances, batch_size)
  if batch_size % subbatch_size:
    raise ValueError(
        f'batch_size must be a multiple of subbatch_size, but {batch_size} is'
        f' not one of {subbatch_size}.'
    )
  subbatches = _drawn(
      [part.rebatch(subbatch_size, drop_remainder=True) for part in parts],
      chances,
      stop_when,
      seed,
      start * (batch_size // subbatch_size),
  )
  return subbatches.rebatch(batch_size, drop_remainder=True)


def draw_sources(
    weights: Any, num_draws: int, seed: random_lib.Seed
) -> tf.Tensor:
  """Draws indices in proportion to weights.

  Args:
    weights: numbers from 0 up, not all 0, float64 `[S]`.
    num_draws: how many indices to draw.
    seed: the seed of all of them, see `random.to_seed_pair`.

  Returns:
    The indices, int64 `[num_draws]`. One of weight 0 is never drawn.
  """
  edges = tf.cumsum(tf.convert_to_tensor(weights, tf.float64))
  places = tf.random.stateless_uniform(
      [num_draws],
      random_lib.to_seed_pair(seed),
      maxval=edges[-1],
      dtype=tf.float64,
  )
  return tf.searchsorted(edges, places, side='right', out_type=tf.int64)


def _stacked(dataset, size: int, stop_when: str) -> tf.data.Dataset:
  """Returns sub-batches of a data set of `Mixed` elements."""
  for path, spec in paths.leaves(dataset.element_spec.element).items():
    if not spec.shape.is_fully_defined():
      raise ValueError(
          'A sub-batch stacks elements of one shape, but'
          f' {path or "the element"} is of'
          f' {spec.shape}. Cut episodes into windows first, or leave'
          ' subbatch_size out.'
      )
  return dataset.batch(size, drop_remainder=stop_when != 'all')


def _drawn(
    parts: list[tf.data.Dataset],
    probabilities: list[float],
    stop_when: str,
    seed: int,
    start: int,
) -> tf.data.Dataset:
  """Draws a data set for each element, from draw number `start` on."""
  choices = (
      tf.data.Dataset.counter(start // _DRAWS)
      .map(lambda step: draw_sources(probabilities, _DRAWS, (seed, step)))
      .unbatch()
      .skip(start % _DRAWS)
  )
  return tf.data.Dataset.choose_from_datasets(
      parts, choices, stop_on_empty_dataset=stop_when == 'first'
  )


def _exact(
    parts: list[tf.data.Dataset], probabilities: list[float], batch_size: int
) -> tf.data.Dataset:
  """Returns batches with the same number of elements of each data set."""
  shares = batch_size * np.array(probabilities)
  sizes = np.rint(shares).astype(int)
  if not np.allclose(shares, sizes, rtol=0, atol=1e-6) or not sizes.all():
    raise ValueError(
        f'A batch of {batch_size} cannot be shared exactly: that makes'
        f' {shares.tolist()} elements. Choose another batch_size, or'
        ' subbatch_size=1, where the shares are right on average.'
    )
  shares = [
      part.rebatch(size, drop_remainder=True)
      for part, size in zip(parts, sizes.tolist())
  ]
  join = lambda *leaves: tf.concat(leaves, 0)
  return tf.data.Dataset.zip(tuple(shares)).map(
      lambda *batches: tf.nest.map_structure(join, *batches)
  )


def _error(spec, name):
  def fail(_):
    message = f'The data set {name} is empty and cannot be repeated.'
    return errors.assert_true(steps_lib.zeros(spec), False, message)

  return tf.data.Dataset.range(1).map(fail)


def align(
    datasets: Mapping[str, tf.data.Dataset], *, of_batches: bool = False
) -> dict[str, tf.data.Dataset]:
  """Gives the elements of several data sets one structure.

  A field that some data sets lack is filled with zeros there, and masked. A
  dimension that is known in some data sets and open in others is open in the
  result. If the first dimension of a filled field is open, such as the time of
  an episode, the field gets the length of the field of the element whose path
  shares the most with its path.

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
  fields = [_fields_of(spec) for spec in specs.values()]
  if of_batches:
    specs = {name: _of_any_size(name, spec) for name, spec in specs.items()}
  differences: list[str] = []
  spec = _merge(specs, (), differences)
  if differences:
    raise ValueError(
        'The data sets cannot be mixed. Map them to the same fields first:\n'
        + '\n'.join(differences)
    )
  everywhere = set.intersection(*map(set, fields))
  partial = [keys for keys in _fields_of(spec) if keys not in everywhere]

  def aligned(source: int, dataset: tf.data.Dataset) -> tf.data.Dataset:
    def fill(*element):
      # `map` passes the parts of a plain tuple one by one.
      if type(spec) is not tuple:
        [element] = element
      filled = _fill(element, fields[source], spec)
      facts = tf.constant(source), {
          paths.name_of(keys): tf.constant(keys in fields[source])
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


def _fields_of(spec: Any) -> list[paths.KeyPath]:
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
    specs: Mapping[str, Any], keys: paths.KeyPath, differences: list[str]
) -> Any:
  """Returns the common spec of the data sets at `keys`."""
  all_specs = list(specs.values())
  make = type(all_specs[0])
  are_dicts = all(isinstance(spec, Mapping) for spec in all_specs)
  if are_dicts or _are_tuples(all_specs):
    parts = {name: _parts(spec) for name, spec in specs.items()}
    merged = {
        key: _merge(
            {name: part[key] for name, part in parts.items() if key in part},
            (*keys, key),
            differences,
        )
        for key in dict.fromkeys(itertools.chain(*parts.values()))
    }
    if are_dicts:
      return merged
    return make(**merged) if hasattr(make, '_fields') else make(merged.values())
  if all(isinstance(spec, tf.TensorSpec) for spec in all_specs):
    common = all_specs[0].most_specific_common_supertype(all_specs[1:])
    pairs = itertools.combinations(all_specs, 2)
    if all(first.is_compatible_with(second) for first, second in pairs):
      if common.shape.rank is not None:
        return common
  described = ', '.join(
      f'{name} has {_describe(spec)}' for name, spec in specs.items()
  )
  differences.append(f'{paths.name_of(keys) or "element"}: {described}')
  return all_specs[0]


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


def _fill(element, fields, spec) -> Any:
  """Fills the leaves that `element` lacks, except `fields`, with zeros."""

  def fill(keys, leaf_spec):
    if keys in fields:
      return tf.ensure_shape(paths.get(element, keys), leaf_spec.shape)
    shape = [dim or 0 for dim in leaf_spec.shape]
    if shape and leaf_spec.shape[0] is None:
      shape[0] = _nearest_length(element, fields, spec, keys)
    zeros = tf.zeros(shape, leaf_spec.dtype)
    return tf.ensure_shape(zeros, leaf_spec.shape)

  return tree.map_structure_with_path(fill, spec)


def _nearest_length(element, fields, spec, keys) -> tf.Tensor:
  """Returns the length of the field whose path shares the most with `keys`."""
  open_fields = [
      other for other in fields if paths.get(spec, other).shape[:1] == [None]
  ]
  if not open_fields:
    raise ValueError(
        f'{paths.name_of(keys)} is of no known length, and the data set'
        ' without it has no other field whose length it could take.'
    )
  shared = lambda other: len(os.path.commonprefix([keys, other]))
  nearest = max(sorted(open_fields, key=str), key=shared)
  return tf.shape(paths.get(element, nearest))[0]
