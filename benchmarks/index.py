"""Measures how fast an index of transitions is built, and looked up.

    python -m benchmarks.index

The data is in memory, so that reading it does not count. Lookups are consumed
in the graph. The memory of the index is told beside that of the transitions.
"""

from absl import app
from absl import flags
import numpy as np
import tensorflow as tf

from benchmarks import data
from benchmarks import timing
from rlds2reverb import indexing

_TRANSITIONS = flags.DEFINE_integer(
    'transitions', 1_000_000, 'How many transitions are indexed.', lower_bound=1
)
_DISTINCT = flags.DEFINE_integer(
    'distinct',
    200_000,
    'How many distinct observations there are.',
    lower_bound=1,
)
_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size', 1024, 'Keys that are looked up at once.', lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'How many times each case is timed.', lower_bound=1
)


def _make_rows():
  """Returns the columns of random transitions, whose observations repeat."""
  rng = np.random.default_rng(0)
  count = _TRANSITIONS.value
  observations = rng.normal(
      size=(_DISTINCT.value, data.OBSERVATION_SIZE.value)
  ).astype(np.float32)
  place = rng.integers(0, _DISTINCT.value, count + 1)
  rows = {
      'observation': observations[place[:-1]],
      'next_observation': observations[place[1:]],
      'action': rng.integers(0, 4, (count, data.ACTION_SIZE.value)).astype(
          np.float32
      ),
      'reward': rng.normal(size=count).astype(np.float32),
      'is_terminal': np.zeros(count, bool),
  }
  return tf.nest.map_structure(tf.constant, rows)


def _looking_up(index, rows, duplicates):
  """Returns a function that looks all rows up, batch after batch."""
  batch_size = _BATCH_SIZE.value
  num_batches = _TRANSITIONS.value // batch_size
  order = tf.random.stateless_uniform(
      [num_batches, batch_size], (0, 1), 0, _TRANSITIONS.value, tf.int32
  )
  # Half of the keys are not there.
  keys = {key: tf.gather(rows[key], order) for key in ('observation', 'action')}
  keys['action'] += tf.cast(order[..., tf.newaxis] % 2, tf.float32) * 100.0

  @tf.function
  def look_up():
    total = tf.constant(0.0)
    for batch in tf.range(num_batches):
      found = index.lookup(
          tf.nest.map_structure(lambda leaf: leaf[batch], keys), duplicates
      )
      total += tf.reduce_sum(found.rows['reward'])
    return total

  return look_up, num_batches * batch_size


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  rows = _make_rows()
  count = _TRANSITIONS.value
  index = indexing.TransitionIndex(rows, [count])
  cases = [
      timing.Case(
          'build',
          count,
          lambda: indexing.TransitionIndex(rows, [count]) and None,
      ),
      timing.Case(
          'build with the graph',
          count,
          lambda: indexing.TransitionIndex(rows, [count]).graph and None,
      ),
  ]
  for duplicates in indexing.index.DUPLICATES:
    run, num_keys = _looking_up(index, rows, duplicates)
    cases.append(
        timing.Case(
            f'look up, {duplicates}',
            num_keys,
            lambda run=run: run().numpy() and None,
        )
    )
  timing.print_table(cases, timing.measure(cases, _REPEATS.value), [])
  transitions = sum(
      leaf.shape.num_elements() * leaf.dtype.size
      for leaf in tf.nest.flatten(rows)
  )
  graph = index.graph
  print(
      f'{index.num_keys:,} keys; {graph.num_states:,} states,'
      f' {graph.num_edges:,} edges. The index takes {index.num_bytes / 1e6:.1f}'
      f' MB and the graph {graph.num_bytes / 1e6:.1f} MB beside the'
      f' {transitions / 1e6:.1f} MB of the transitions.'
  )


if __name__ == '__main__':
  app.run(main)
