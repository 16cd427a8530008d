"""Mixtures: one data set drawn from several, with weights."""

from typing import Any, Dict, Mapping, NamedTuple, Optional

import gin
import tensorflow as tf

from rlds2reverb.datasets import alignment
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib

_LEVELS = ('element', 'subbatch')
_ENDS = ('never', 'first', 'all')


class Mixed(NamedTuple):
  """An element of a mixture; or a sub-batch, with one dimension more.

  Attributes:
    element: the element, with zeros in the fields that its data set lacks.
    source: int32 `[]`: the index of its data set, in the order in which they
      were given.
    mask: for each field that some data set lacks, by the name of its path,
      whether this element's has it: bool `[]`. Empty where none lacks any.
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
    end: str = 'never',
    seed: int = 0,
) -> tf.data.Dataset:
  """Draws from several data sets, each with its probability.

  Elements may be episodes, trajectories or windows: what a data set has. They
  come in its order, so shuffle each one before. With `a` and `b` of 2 and 4
  elements, where the draws are a b b a b a b ...

      level="element"                     a0 b0 b1 a1 b2 ...
      level="subbatch", subbatch_size=2   [a0 a1] [b0 b1] [b2 b3] [a0 a1] ...
      end="never"    a0 b0 b1 a1 b2 a0 b3 ...    each begins anew
      end="first"    a0 b0 b1 a1 b2              a is drawn, and has ended
      end="all"      a0 b0 b1 a1 b2 b3           until every one has ended

  The levels are those of TorchRL's `ReplayBufferEnsemble`, where each sub-batch
  comes whole from one buffer, and of `tf.data.Dataset.sample_from_datasets`.

  Args:
    datasets: the data sets by name. Keys of dicts that only some have are
      filled in (see `Mixed`); the steps of episodes are stacked.
    weights: by the same names, how often each is drawn, in proportion. By
      default all are equal. One of weight 0 is never drawn.
    level: `"element"`: each element is drawn; `"subbatch"`: so many elements of
      one data set are drawn together, and stacked.
    subbatch_size: the number of elements of a sub-batch.
    end: see above. With `"all"` the last sub-batch of a data set may be
      shorter; with `"first"` it is left out.
    seed: of the draws. The same seed gives the same draws, each time that the
      mixture is iterated.

  Returns:
    A data set of `Mixed` elements.

  Raises:
    ValueError: if there are no data sets, if they differ in anything but keys
      of dicts, if weights are not theirs or negative or all 0, or another
      argument is not valid.
    InvalidArgumentError: while iterating, if a data set that is to be repeated
      is empty.
  """
  checks.check_choice('level', level, _LEVELS)
  checks.check_choice('end', end, _ENDS)
  if (level == 'subbatch') != (subbatch_size is not None) or (
      subbatch_size is not None and subbatch_size < 1
  ):
    raise ValueError(
        'level="subbatch" needs a positive subbatch_size, and level="element"'
        f' none, but level={level!r} has subbatch_size={subbatch_size}.'
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
    mixed.append(_prepare(dataset, name, subbatch_size, end))
  return tf.data.Dataset.sample_from_datasets(
      mixed,
      probabilities,
      seed=seed,
      stop_on_empty_dataset=end == 'first',
      rerandomize_each_iteration=False,
  )


def _normalize(datasets, weights):
  if weights is None:
    return [1 / len(datasets)] * len(datasets)
  if set(weights) != set(datasets):
    raise ValueError(
        f'weights must be of the data sets {sorted(datasets)}, but are of'
        f' {sorted(weights)}.'
    )
  total = sum(weights.values())
  if min(weights.values()) < 0 or not 0 < total < float('inf'):
    raise ValueError(
        'weights must be 0 or more, finite, and not all 0, but are'
        f' {dict(weights)}.'
    )
  return [weights[name] / total for name in datasets]


def _prepare(dataset, name, subbatch_size, end):
  """Repeats a data set and stacks its sub-batches."""
  if end == 'never':
    # Reached only where there is nothing to repeat.
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
  return dataset.batch(subbatch_size, drop_remainder=end != 'all')


def _error(spec, name):
  def fail(_):
    message = f'The data set {name} is empty and cannot be repeated.'
    with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
      return tf.nest.map_structure(tf.identity, steps_lib.zeros(spec))

  return tf.data.Dataset.range(1).map(fail)
