"""Statistics of parts of a data set, merged into those of the whole.

A sketch is the state of an `Accumulation` after some episodes: moments and
samples, whose size does not grow with the data. Different processes make the
sketches of different episodes, and any process can merge two:

    episodes    0 to 9     10 to 19    20 to 29
    sketches       a           b           c
    merged         a + b            ...    c     = that of episodes 0 to 29

Counts, minima and maxima are those of one pass over all episodes. Means and
deviations differ by rounding. Quantiles come from a uniform sample of all steps
of the same size, so they have the error that `compute_statistics` states, and
are exact where the sample holds all of them.
"""

from typing import Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.statistics import accumulation
from rlds2reverb.statistics import moments as moments_lib
from rlds2reverb.statistics import reservoir as reservoir_lib


def save(path: str, state: accumulation.State) -> None:
  """Writes a sketch to a local file."""
  arrays = {
      f'moments_{name}': leaf.numpy()
      for name, leaf in state.moments._asdict().items()
  }
  for name in ('steps', 'outcomes'):
    rows, seen = getattr(state, name)
    arrays[f'{name}_size'] = np.int64(rows.shape[0])
    arrays[f'{name}_seen'] = seen.numpy()
    arrays[f'{name}_rows'] = rows.numpy()[: int(seen)]
  with open(path, 'wb') as f:
    np.savez(f, **arrays)


def load(path: str) -> accumulation.State:
  """Reads a sketch that `save` has written.

  Raises:
    OSError: if it cannot be read.
  """
  with files.open_binary(path) as f, np.load(f) as arrays:
    arrays = dict(arrays)

  def sample(name):
    rows = arrays[f'{name}_rows']
    missing = arrays[f'{name}_size'] - len(rows)
    return reservoir_lib.Reservoir(
        tf.constant(np.pad(rows, [(0, missing), (0, 0)])),
        tf.constant(arrays[f'{name}_seen']),
    )

  moments = moments_lib.Moments(
      *(
          tf.constant(arrays[f'moments_{name}'])
          for name in moments_lib.Moments._fields
      )
  )
  return accumulation.State(moments, sample('steps'), sample('outcomes'))


def merge(
    one: accumulation.State, other: accumulation.State, seed: Sequence[int]
) -> accumulation.State:
  """Returns the sketch of all episodes of two sketches.

  Args:
    one: the sketch of some episodes.
    other: the sketch of other episodes, made by an equal `Accumulation`, but
      with a seed of its own.
    seed: the seed of the sample, non-negative ints, other ones for each merge.
  """
  return accumulation.State(
      moments_lib.merge(one.moments, other.moments),
      reservoir_lib.merge(one.steps, other.steps, [*seed, 0]),
      reservoir_lib.merge(one.outcomes, other.outcomes, [*seed, 1]),
  )
