"""`Episodes`, a data set of episodes that is read in batches, and the door.

The user sees a `tf.data.Dataset` of RLDS episodes, and this library its
batches, which `batches_of` returns. A data set of type `Episodes` is made of
batches. The episodes of any other are put into batches there.
"""

from typing import Any, Dict, Iterable, Optional

import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import private
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

_UNUSED_BYTES = 4096  # At most this much of a nested step is read without use.


class Episodes(private.WrappedDataset):
  """A data set of the episodes in batches, one by one.

  `take`, `skip`, `shard`, `repeat`, `concatenate`, `prefetch` and
  `with_options` return one again. Other methods, such as `map`, return plain
  data sets of episodes.

  Attributes:
    batches: the data set of `EpisodeBatch`s.
  """

  def __init__(self, batches: tf.data.Dataset, num_episodes: Any = None):
    """Creates the data set.

    Args:
      batches: a data set of `EpisodeBatch`s.
      num_episodes: the number of their episodes, as `cardinality` returns it,
        if it is known.
    """
    self.batches = batches
    if tf.is_tensor(num_episodes):
      num_episodes = tf.get_static_value(num_episodes)
    numbers: Optional[tf.data.Dataset] = None
    if num_episodes == tf.data.INFINITE_CARDINALITY:
      numbers = tf.data.Dataset.range(1).repeat()
    elif num_episodes not in (None, tf.data.UNKNOWN_CARDINALITY):
      numbers = tf.data.Dataset.range(num_episodes)
    self._numbers, self._num_episodes = numbers, num_episodes

    def make(batches):
      episodes = batching.unbatch(batches)
      if numbers is None:
        return episodes
      return episodes.apply(
          tf.data.experimental.assert_cardinality(num_episodes)
      )

    spec = batching.episode_spec(batches.element_spec)
    super().__init__(batches, spec, make)

  def cardinality(self):
    if self._numbers is None:
      return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
    return self._numbers.cardinality()

  def take(self, count, name=None):
    limit = tf.cast(count, tf.int64)
    is_among = lambda batch: (batch.episode < limit) | (limit < 0)
    # The first episode tells; a batch may have none.
    begins_among = lambda batch: tf.reduce_all(is_among(batch)[:1])
    batches = batching.numbered(self.batches).take_while(begins_among)
    return self._kept(batches, is_among, 'take', count)

  def skip(self, count, name=None):
    limit = tf.cast(count, tf.int64)
    is_left = lambda batch: (batch.episode >= limit) & (limit >= 0)
    return self._kept(batching.numbered(self.batches), is_left, 'skip', count)

  def shard(self, num_shards, index, name=None):
    count, place = tf.cast(num_shards, tf.int64), tf.cast(index, tf.int64)
    is_in = lambda batch: batch.episode % count == place
    batches = batching.numbered(self.batches)
    return self._kept(batches, is_in, 'shard', num_shards, index)

  def repeat(self, count=None, name=None):
    return self._made(self.batches.repeat(count), 'repeat', count)

  def prefetch(self, buffer_size, name=None):
    return Episodes(self.batches.prefetch(1), self._num_episodes)

  def with_options(self, options, name=None):
    return Episodes(self.batches.with_options(options), self._num_episodes)

  def concatenate(self, dataset, name=None):
    if not isinstance(dataset, Episodes):
      return super().concatenate(dataset)
    batches, others = self.batches, dataset.batches
    if batches.element_spec != others.element_spec:
      batches, others = map(batching.without_faults, (batches, others))
    try:
      batches = batches.concatenate(others)
    except (TypeError, ValueError):  # Their shapes differ too much.
      return super().concatenate(dataset)
    if dataset._numbers is None:
      return Episodes(batches)
    return self._made(batches, 'concatenate', dataset._numbers)

  def _kept(self, batches, which, method, *args) -> 'Episodes':
    """Returns the episodes of numbered batches of which a function says so."""

    def some(batch):
      batch = episode_batches.keep_episodes(batch, which(batch))
      return batch._replace(episode=())

    batches = batching.not_empty(graphs.map_elements(batches, some))
    return self._made(batches, method, *args)

  def _made(self, batches, method, *args) -> 'Episodes':
    """Returns the episodes of batches that a method makes of these."""
    if self._numbers is None:
      return Episodes(batches)
    numbers = getattr(self._numbers, method)(*args)
    return Episodes(batches, numbers.cardinality())


def batches_of(
    rlds_data: tf.data.Dataset,
    *,
    fields: Optional[Iterable[str]] = None,
    episode_fields: Optional[Iterable[str]] = None,
    with_faults: bool = False,
) -> tf.data.Dataset:
  """Returns the data set of the `EpisodeBatch`s of any data set of episodes.

  This is the door of the library: nested steps are stacked here, an episode at
  a time, and short episodes of known shape share a batch.

  Args:
    rlds_data: a data set of episodes, whose steps may be nested; or of batches.
    fields: the names of the step fields that are needed; by default all.
    episode_fields: the names of the other fields that are needed; by default
      all.
    with_faults: whether an episode that could not be read comes as a batch with
      a fault; otherwise it raises an InvalidArgumentError in its place.
  """
  batches = None
  if isinstance(rlds_data.element_spec, episode_batches.EpisodeBatch):
    batches = rlds_data
  elif isinstance(rlds_data, Episodes):
    batches = rlds_data.batches
  if batches is not None:
    return batches if with_faults else batching.without_faults(batches)
  spec = rlds_data.element_spec[rlds.STEPS]
  is_nested = isinstance(spec, tf.data.DatasetSpec)
  if is_nested and fields is not None:
    fields = _fields_to_read(spec.element_spec, fields)

  def stack(episode):
    steps = episode[rlds.STEPS]
    if is_nested and fields is not None:
      steps = stacked_steps.stacked_fields(steps, fields)
    elif is_nested:
      steps = stacked_steps.stack_steps(steps)
    if episode_fields is not None:
      episode = {name: episode[name] for name in episode_fields}
    return {**episode, rlds.STEPS: steps}

  return batching.batch_together(rlds_data, stack)


def _fields_to_read(
    step_spec: Dict[str, Any], fields: Iterable[str]
) -> Optional[Iterable[str]]:
  """Returns the names of the fields that are read of nested steps, or None.

  Small fields that nobody needs are read, too: leaving them out takes an
  operation for every step, which costs more than copying a few bytes.
  """
  unused = {
      name: spec for name, spec in step_spec.items() if name not in fields
  }
  is_small = (
      all(map(steps_lib.has_one_shape, tf.nest.flatten(unused)))
      and blocks.step_bytes(unused) <= _UNUSED_BYTES
  )
  return None if is_small else fields
