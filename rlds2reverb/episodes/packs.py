"""Makes RLDS episodes of data that only Python can read.

Passing episodes from Python to TensorFlow one by one is slow if they are short.
So Python passes *packs*: the steps of several episodes, one after the other.
TensorFlow then splits each pack into its episodes.
"""

from typing import Any, Callable, Dict, Iterator, NamedTuple

import rlds
import tensorflow as tf

EPISODE_ID = 'episode_id'


class Pack(NamedTuple):
  """The steps of `E` episodes, `S` steps in all, without flags and discounts.

  Attributes:
    steps: a dict of step fields, every leaf `[S, ...]`.
    lengths: int64 `[E]`: the number of steps in each episode.
    is_terminal: bool `[E]`: whether the last step of each episode is terminal.
    episode_id: int64 `[E]`: the number that identifies each episode.
  """

  steps: Any
  lengths: Any
  is_terminal: Any
  episode_id: Any


def to_episodes(
    packs: Callable[[], Iterator[Pack]],
    step_spec: Dict[str, Any],
    num_episodes: int,
) -> tf.data.Dataset:
  """Makes an RLDS data set of the episodes in packs.

  The flags and discounts of an episode are made here:

      is_first    |  1     0    ...  0     0   |
      is_last     |  0     0         0     1   |
      is_terminal |  0     0         0     e   |   e: the episode is terminal
      discount    |  1     1        1-e   1-e  |

  Args:
    packs: a function that returns an iterator of packs of numpy arrays. It is
      called each time the data set is iterated.
    step_spec: the spec of one step of `Pack.steps`.
    num_episodes: the number of episodes in all packs.

  Returns:
    A data set of episodes with stacked `steps`, and with `episode_id`.
  """
  signature = Pack(
      tf.nest.map_structure(
          lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), step_spec
      ),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None], tf.bool),
      tf.TensorSpec([None], tf.int64),
  )
  return (
      tf.data.Dataset.from_generator(packs, output_signature=signature)
      .prefetch(1)
      .flat_map(_unpack)
      .apply(tf.data.experimental.assert_cardinality(num_episodes))
  )


def _unpack(pack: Pack) -> tf.data.Dataset:
  ends = tf.cumsum(pack.lengths)

  def episode(index):
    end, length = ends[index], pack.lengths[index]
    steps = tf.nest.map_structure(
        lambda leaf: leaf[end - length : end], pack.steps
    )
    return {
        EPISODE_ID: pack.episode_id[index],
        rlds.STEPS: {**steps, **_flags(length, pack.is_terminal[index])},
    }

  return tf.data.Dataset.range(tf.size(ends, tf.int64)).map(episode)


def _flags(length, is_terminal) -> Dict[str, tf.Tensor]:
  step = tf.range(length)
  is_last = tf.equal(step, length - 1)
  return {
      rlds.IS_FIRST: tf.equal(step, 0),
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_last & is_terminal,
      rlds.DISCOUNT: tf.where((step >= length - 2) & is_terminal, 0.0, 1.0),
  }
