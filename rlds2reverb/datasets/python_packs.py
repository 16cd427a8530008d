"""Makes RLDS episodes of data that only Python can read.

Passing short episodes from Python to TensorFlow one by one is slow. So Python
passes the rows of several episodes at a time, and TensorFlow adds their flags
and discounts.
"""

from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import pack_streams
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import rlds

EPISODE_ID = 'episode_id'


class PythonPack(NamedTuple):
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
    python_packs: Callable[[], Iterator[PythonPack]],
    step_spec: Dict[str, Any],
    num_episodes: Optional[int],
    field_specs: Optional[Dict[str, tf.TensorSpec]] = None,
) -> tf.data.Dataset:
  """Makes an RLDS data set of the episodes in packs.

  The flags and discounts of an episode are made here:

      is_first    |  1     0    ...  0     0   |
      is_last     |  0     0         0     1   |
      is_terminal |  0     0         0     e   |   e: the episode is terminal
      discount    |  1     1        1-e   1-e  |

  Args:
    python_packs: a function that returns an iterator of packs of numpy arrays.
      It is called each time the data set is iterated.
    step_spec: the spec of one step of `PythonPack.steps`.
    num_episodes: the number of episodes in all packs, or None if it is not
      known before they are read.
    field_specs: the specs of the fields of an episode other than `episode_id`.

  Returns:
    A data set of episodes with stacked `steps`, and with `episode_id` and those
    fields. It has packs; see `data_sets.packs_of`.
  """
  stacked_spec = lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype)
  episode_id = {EPISODE_ID: tf.TensorSpec([], tf.int64)}
  signature = PythonPack(
      tf.nest.map_structure(stacked_spec, step_spec),
      tf.TensorSpec([None], tf.int64),
      tf.TensorSpec([None], tf.bool),
      tf.nest.map_structure(
          stacked_spec, {**episode_id, **(field_specs or {})}
      ),
  )
  packs = (
      tf.data.Dataset.from_generator(python_packs, output_signature=signature)
      .prefetch(1)
      .map(graphs.no_autograph(_to_pack))
  )
  episodes = pack_streams.unpack(packs)
  if num_episodes is not None:
    episodes = episodes.apply(
        tf.data.experimental.assert_cardinality(num_episodes)
    )
  return data_sets.Episodes(episodes, packs)


def _to_pack(python_pack: PythonPack) -> packs_lib.Pack:
  """Returns the pack, with flags and discounts."""
  row_splits = tf.concat([[0], tf.cumsum(python_pack.lengths)], 0)
  steps = dict(python_pack.steps)
  for name, flag in _flags(row_splits, python_pack.is_terminal).items():
    steps.setdefault(name, flag)
  return packs_lib.Pack(steps, row_splits, python_pack.fields)


def _flags(row_splits, is_terminal) -> Dict[str, tf.Tensor]:
  """Returns the flags and discounts `[N]` of a pack."""
  episode = packs_lib.episode_of_rows(row_splits)
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
