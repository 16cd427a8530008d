"""Mixtures: data sets whose elements are drawn from several others."""

from typing import Any, Dict, Mapping, NamedTuple, Optional

import gin
import tensorflow as tf

from rlds2reverb.datasets import alignment
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib

_LEVELS = ('element', 'subbatch')
_STOPS = ('never', 'first', 'all')


class Mixed(NamedTuple):
  """An element of a mixture, or a sub-batch of them with one dimension more.

  Attributes:
    element: the element, with zeros in the fields that its data set lacks.
    source: int32 `[]`: the index of its data set, in the order in which the
      data sets were given.
    mask: a dict with an entry for each field that some data set lacks. Its key
      is the name of the field's path; its value says whether this element's
      data set has the field: bool `[]`.
  """

  element: Any
  source: tf.Tensor
  mask: Dict[str, tf.Tensor]


@gin.configurable(module='rlds2reverb')
def mix_datasets(
    datasets: Mapping[str, tf.data.Dataset],
    weights: Optional[Mapping[str, float]] = None,
    *,
    level: str = 'element',
    subbatch_size: Optional[int] = None,
    stop_when: str = 'never',
    seed: int = 0,
) -> tf.data.Dataset:
  """Draws elements from several data sets, each with its own probability.

  The elements may be episodes, trajectories, windows or anything else. Each
  data set gives them in its own order, so shuffle it before. If `a` has 2
  elements and `b` has 4, and the data sets drawn are a b b a b a b ..., then:

      level="element"                     a0 b0 b1 a1 b2 ...
      level="subbatch", subbatch_size=2   [a0 a1] [b0 b1] [b2 b3] [a0 a1] ...
      stop_when="never"    a0 b0 b1 a1 b2 a0 b3 ...    each one is repeated
      stop_when="first"    a0 b0 b1 a1 b2              a is drawn after its end
      stop_when="all"      a0 b0 b1 a1 b2 b3           all of them have ended

  Single elements are drawn as by `tf.data.Dataset.sample_from_datasets`.
  Sub-batches are drawn as by TorchRL's `ReplayBufferEnsemble`, where each one
  comes from one buffer.

  The elements keep their data set's name. `replay.mix_batches` makes batches of
  those of replay buffers, with an exact number from each.

  Args:
    datasets: a dict from names to data sets. Fields that only some of them have
      are filled with zeros in the others; the steps of episodes are stacked.
    weights: a dict from the same names to weights. Each data set is drawn in
      proportion to its weight; a data set of weight 0 is never drawn. By
      default all weights are equal.
    level: `"element"` draws each element by itself. `"subbatch"` takes
      `subbatch_size` elements from the data set that is drawn, and stacks them.
    subbatch_size: the number of elements in a sub-batch.
    stop_when: when the mixture ends, as drawn above. With `"all"` the last
      sub-batch of a data set may be shorter; with `"first"` a shorter one is
      left out.
    seed: the seed of the draws, an int. The same seed gives the same draws each
      time that the mixture is iterated.

  Returns:
    A data set of `Mixed` elements.

  Raises:
    ValueError: if there are no data sets, if they differ in anything but keys
      of dicts, if the weights have other names, are negative or are all 0, or
      if another argument is not valid.
    InvalidArgumentError: while iterating, if a data set that should be repeated
      is empty.
  """
  checks.check_choice('level', level, _LEVELS)
  checks.check_choice('stop_when', stop_when, _STOPS)
  if (level == 'subbatch') != (subbatch_size is not None) or (
      subbatch_size is not None and subbatch_size < 1
  ):
    raise ValueError(
        'level="subbatch" needs a positive subbatch_size, and level="element"'
        f' needs none, but level={level!r} has subbatch_size={subbatch_size}.'
    )
  if not datasets:
    raise ValueError('There are no data sets to mix.')
  probabilities = _normalize(datasets, weights)
  mixed = []
  for source, (name, dataset) in enumerate(alignment.align(datasets).items()):
    dataset = dataset.map(
        lambda aligned, source=source: Mixed(
            aligned.element, tf.constant(source), aligned.mask
        )
    )
    mixed.append(_prepare(dataset, name, subbatch_size, stop_when))
  return tf.data.Dataset.sample_from_datasets(
      mixed,
      probabilities,
      seed=seed,
      stop_on_empty_dataset=stop_when == 'first',
      rerandomize_each_iteration=False,
  )


def _normalize(datasets, weights):
  if weights is None:
    return [1 / len(datasets)] * len(datasets)
  checks.check_weights(weights, datasets)
  total = sum(weights.values())
  return [weights[name] / total for name in datasets]


def _prepare(dataset, name, subbatch_size, stop_when):
  """Repeats a data set and stacks its sub-batches."""
  if stop_when == 'never':
    # This is reached only if there is nothing to repeat.
    dataset = dataset.repeat().concatenate(_error(dataset.element_spec, name))
  if subbatch_size is None:
    return dataset
  for path, spec in paths.leaves(dataset.element_spec.element).items():
    if not spec.shape.is_fully_defined():
      raise ValueError(
          'A sub-batch stacks elements of one shape, but'
          f' {path or "the element"} is of'
          f' {spec.shape}. Cut episodes into windows first, or use'
          ' level="element".'
      )
  return dataset.batch(subbatch_size, drop_remainder=stop_when != 'all')


def _error(spec, name):
  def fail(_):
    message = f'The data set {name} is empty and cannot be repeated.'
    return graphs.asserted(steps_lib.zeros(spec), False, message)

  return tf.data.Dataset.range(1).map(fail)
