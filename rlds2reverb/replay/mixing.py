"""Batches that are mixed from several data sets of batches."""

from typing import Any, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import seeds as seeds_lib

_LEVELS = ('exact', 'subbatch', 'element')


def mix_batches(
    datasets: Sequence[tf.data.Dataset],
    weights: Sequence[float],
    batch_size: int,
    *,
    level: str = 'exact',
    subbatch_size: Optional[int] = None,
    seed: int = 0,
    first_batch: int = 0,
) -> tf.data.Dataset:
  """Mixes batches from several data sets, such as recorded and own experience.

  With data sets `a` and `b`, weights `[1, 3]` and `batch_size=4`, batches are:

      level="exact"       a b b b   a b b b   a b b b     exactly, in this order
      level="subbatch", subbatch_size=2
                          b b a a   b b b b   a a b b     two of one are drawn
      level="element"     b b a b   b b b b   a b b a     each one is drawn

  `"exact"` with equal weights is the symmetric sampling of RLPD ("Efficient
  Online Reinforcement Learning with Offline Data", Ball et al., 2023): half of
  each batch recorded, half the agent's own. `"subbatch"` is what TorchRL's
  `ReplayBufferEnsemble` does.

  `mix_datasets` mixes single elements, such as episodes of different fields.

  Args:
    datasets: data sets of batches, nests of `[N, ...]` in which `N` may be
      anything. They come from replay buffers, from `sample_reverb_servers`, or
      from anywhere else, and are of equal structure, dtypes and shapes. Each is
      taken in its own order.
    weights: how much there is to be of each data set; a number from 0 up each.
    batch_size: the number of elements of a mixed batch.
    level: what is drawn, see above.
    subbatch_size: the number of elements that are drawn together. The default
      is `batch_size`: each batch comes whole from one data set.
    seed: the seed of the draws. They are a function of the seed and of the
      number of the batch alone.
    first_batch: the number of the first batch. A trainer that starts again
      after step n passes n, and the same draws go on.

  Returns:
    A data set of batches `[batch_size, ...]`. It ends when one of the data sets
    has ended and is drawn again; `repeat()` those that are to go on.

  Raises:
    ValueError: if the data sets differ or an argument is not valid.
  """
  checks.check_choice('level', level, _LEVELS)
  checks.check_positive('batch_size', batch_size)
  datasets = list(datasets)
  _check_equal(datasets)
  weights = _check_weights(weights, len(datasets))
  if subbatch_size is not None and level != 'subbatch':
    raise ValueError(
        f'subbatch_size is for level="subbatch", but level is {level!r}.'
    )
  if level == 'exact':
    sizes = _shares(weights, batch_size)
    parts = [
        dataset.rebatch(size, drop_remainder=True)
        for dataset, size in zip(datasets, sizes)
        if size
    ]
    return tf.data.Dataset.zip(tuple(parts)).map(
        lambda *parts: tf.nest.map_structure(
            lambda *leaves: tf.concat(leaves, 0), *parts
        )
    )
  size = 1 if level == 'element' else subbatch_size or batch_size
  checks.check_positive('subbatch_size', size)
  if batch_size % size:
    raise ValueError(
        f'batch_size must be a multiple of subbatch_size, but {batch_size} is'
        f' not one of {size}.'
    )
  choices = tf.data.Dataset.counter(first_batch).map(
      lambda step: draw_sources(weights, batch_size // size, (seed, step))
  )
  return tf.data.Dataset.choose_from_datasets(
      [dataset.rebatch(size, drop_remainder=True) for dataset in datasets],
      choices.unbatch(),
  ).rebatch(batch_size, drop_remainder=True)


def draw_sources(
    weights: Any, num_draws: int, seed: seeds_lib.Seed
) -> tf.Tensor:
  """Draws indices in proportion to weights.

  Args:
    weights: numbers from 0 up, not all 0, float64 `[S]`.
    num_draws: how many indices to draw.
    seed: the seed of all of them, see `seeds.to_pair`.

  Returns:
    The indices, int64 `[num_draws]`. One of weight 0 is never drawn.
  """
  edges = tf.cumsum(tf.convert_to_tensor(weights, tf.float64))
  places = tf.random.stateless_uniform(
      [num_draws], seeds_lib.to_pair(seed), maxval=edges[-1], dtype=tf.float64
  )
  return tf.searchsorted(edges, places, side='right', out_type=tf.int64)


def _check_equal(datasets):
  """Raises a ValueError if data sets are not of batches of one kind."""
  if not datasets:
    raise ValueError('There are no data sets to mix.')
  first = datasets[0].element_spec
  for number, dataset in enumerate(datasets):
    spec = dataset.element_spec
    try:
      tf.nest.assert_same_structure(first, spec)
    except (TypeError, ValueError) as error:
      raise ValueError(
          f'Data set {number} has another structure than the first: {error}'
      ) from error
    expected = paths.leaves(first)
    for path, leaf in paths.leaves(spec).items():
      if leaf.shape.rank == 0:
        raise ValueError(
            f'Data sets of batches are mixed, but {path!r} of data set'
            f' {number} is a scalar. Call batch() on the data set.'
        )
      if leaf.dtype != expected[path].dtype or not leaf.shape[
          1:
      ].is_compatible_with(expected[path].shape[1:]):
        raise ValueError(
            f'Data set {number} differs from the first: its {path!r} is'
            f' {leaf.dtype.name} {leaf.shape}, and the first has'
            f' {expected[path].dtype.name} {expected[path].shape}.'
        )


def _check_weights(weights, num_datasets):
  weights = np.array(weights, np.float64)
  checks.check_count(weights, num_datasets)
  checks.check_weights(weights)
  return weights


def _shares(weights, batch_size):
  """Returns how many elements of a batch come from each data set."""
  shares = batch_size * weights / weights.sum()
  sizes = np.rint(shares).astype(int)
  if not np.allclose(shares, sizes, rtol=0, atol=1e-6):
    raise ValueError(
        f'A batch of {batch_size} cannot be shared as {weights.tolist()}: that'
        f' makes {shares.tolist()} elements. Choose another batch_size, or'
        ' level="element", where the shares are right on average.'
    )
  return sizes.tolist()
