"""Mixtures: data sets whose elements are drawn from several others."""

from typing import Any, List, Mapping, Optional

import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import alignment
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import steps as steps_lib

_STOPS = ('never', 'first', 'all')
# This many draws are made at once.
_DRAWS = 256


@gin.configurable(module='rlds2reverb')
def mix_datasets(
    datasets: Mapping[str, tf.data.Dataset],
    weights: Optional[Mapping[str, float]] = None,
    *,
    batch_size: Optional[int] = None,
    subbatch_size: Optional[int] = None,
    stop_when: str = 'never',
    seed: int = 0,
    start: int = 0,
) -> tf.data.Dataset:
  """Mixes elements, or batches, of several data sets in proportion to weights.

  The elements may be episodes, trajectories, windows or anything else. Each
  data set gives them in its own order, so shuffle it before. If `a` has 2
  elements and `b` has 4, and the data sets drawn are a b b a b a b ..., then:

      (by default)         a0 b0 b1 a1 b2 a0 b3 ...    each data set is repeated
      stop_when="first"    a0 b0 b1 a1 b2              a is drawn after its end
      stop_when="all"      a0 b0 b1 a1 b2 b3           all of them have ended
      subbatch_size=2      [a0 a1] [b0 b1] [b2 b3] [a0 a1] ...

  With `batch_size`, the data sets are of batches already, as those of replay
  buffers and of `sample_reverb_servers` are, and make batches of that size.
  With weights of 1 and 3, and `batch_size=4`:

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
      shorter one is left out.
    seed: the seed of the draws, an int. They are a function of the seed and of
      the number of the element, sub-batch or batch alone.
    start: the number of the first one. A trainer that starts again after
      `n` of them passes `n`, and the same draws go on.

  Returns:
    A data set of `alignment.Mixed` elements, sub-batches or batches.

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
  chance_of = {name: one / sum(scaled) for name, one in zip(weights, scaled)}
  parts, chances = [], []
  aligned = alignment.align(datasets, of_batches=batch_size is not None)
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
    parts: List[tf.data.Dataset],
    probabilities: List[float],
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
    parts: List[tf.data.Dataset], probabilities: List[float], batch_size: int
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
