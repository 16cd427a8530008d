"""Makes RLDS episodes of data that only Python can read.

Passing short episodes from Python to TensorFlow one by one is slow. So Python
passes the rows of several episodes at a time, and TensorFlow adds their flags
and discounts.
"""

from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds

EPISODE_ID = 'episode_id'


class PythonBatch(NamedTuple):
  """The steps of `E` episodes, `N` steps in all, without flags and discounts.

  Attributes:
    steps: a dict of step fields, every leaf `[N, ...]`. Flags and discounts
      among them replace those made here.
    lengths: int64 `[E]`: the number of steps in each episode.
    is_terminal: bool `[E]`: whether the last step of each episode is terminal.
    fields: a dict of the other fields of the episodes, every leaf `[E, ...]`;
      `episode_id`, int64 `[E]`, which identifies each episode, among them.
  """

  steps: Any
  lengths: Any
  is_terminal: Any
  fields: Any


def to_episodes(
    python_batches: Callable[[], Iterator[PythonBatch]],
    step_spec: Dict[str, Any],
    num_episodes: Optional[int],
    field_specs: Optional[Dict[str, tf.TensorSpec]] = None,
) -> tf.data.Dataset:
  """Makes an RLDS data set of the episodes in batches.

  The flags and discounts of an episode are made here:

      is_first    |  1     0    ...  0     0   |
      is_last     |  0     0         0     1   |
      is_terminal |  0     0         0     e   |   e: the episode is terminal
      discount    |  1     1        1-e   1-e  |

  Args:
    python_batches: a function that returns an iterator of batches of numpy
      arrays. It is called each time the data set is iterated.
    step_spec: the spec of one step of `PythonBatch.steps`.
    num_episodes: the number of episodes in all batches, or None if it is not
      known before they are read.
    field_specs: the specs of the fields of an episode other than `episode_id`.

  Returns:
    A data set of episodes with stacked `steps`, and with `episode_id` and those
    fields. It has batches; see `data_sets.batches_of`.
  """
  stacked_spec = lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype)
  episode_id = {EPISODE_ID: tf.TensorSpec([], tf.int64)}
  signature = PythonBatch(
      tf.nest.map_structure(stacked_spec, step_spec),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None], tf.bool),
      tf.nest.map_structure(
          stacked_spec, {**episode_id, **(field_specs or {})}
      ),
  )
  batches = (
      tf.data.Dataset.from_generator(python_batches, output_signature=signature)
      .prefetch(1)
      .map(graphs.no_autograph(_to_batch))
  )
  episodes = batching.unbatch(batches)
  if num_episodes is not None:
    episodes = episodes.apply(
        tf.data.experimental.assert_cardinality(num_episodes)
    )
  return data_sets.Episodes(episodes, batches)


def _to_batch(python_batch: PythonBatch) -> episode_batches.EpisodeBatch:
  """Returns the batch, with flags and discounts."""
  row_splits = tf.concat([[0], tf.cumsum(python_batch.lengths)], 0)
  steps = dict(python_batch.steps)
  for name, flag in _flags(row_splits, python_batch.is_terminal).items():
    steps.setdefault(name, flag)
  return episode_batches.EpisodeBatch(steps, row_splits, python_batch.fields)


def _flags(row_splits, is_terminal) -> Dict[str, tf.Tensor]:
  """Returns the flags and discounts `[N]` of a batch."""
  episode = episode_batches.episode_of_rows(row_splits)
  row = tf.range(row_splits[-1])
  # The number of steps that follow each step in its episode.
  rest = tf.gather(row_splits[1:], episode) - 1 - row
  is_terminal = tf.gather(is_terminal, episode)
  return {
      rlds.IS_FIRST: tf.equal(row, tf.gather(row_splits, episode)),
      rlds.IS_LAST: tf.equal(rest, 0),
      rlds.IS_TERMINAL: tf.equal(rest, 0) & is_terminal,
      rlds.DISCOUNT: tf.where((rest <= 1) & is_terminal, 0.0, 1.0),
  }
