"""`Episodes`, a data set of episodes that also gives them in batches.

The user sees a `tf.data.Dataset` of RLDS episodes, and this library its
batches, which `batches_of` returns. A data set of type `Episodes` knows its
batches. In any other, each episode is a batch by itself.
"""

from typing import Any, Callable, Dict, Iterable, Optional, Union

import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import private
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

_MAX_SHUFFLED = 32  # More episodes in a batch gain little.
_MAX_STACKED = 8  # Nested episodes in memory before they are batched.
_UNUSED_BYTES = 4096  # At most this much of a nested step is read without use.


class _EpisodeDerivedDataset(private.WrappedDataset):
  """A data set whose elements are each made of one episode.

  While the elements are no episodes, as after `enumerate`, `of_batch` makes
  them from a batch. If `map` makes episodes of them, these are batched again,
  even after `take` and `skip`.
  """

  def __init__(
      self,
      elements: tf.data.Dataset,
      source: Optional[tf.data.Dataset],
      of_batch: batching.OfBatch,
      is_whole: bool = True,
  ):
    """Creates the data set.

    Args:
      elements: the data set of the elements.
      source: the data set of the original episodes; by default this one.
      of_batch: makes the elements of the episodes in one batch.
      is_whole: whether there is an element for every episode.
    """
    super().__init__(elements)
    self._source = source
    self._of_batch = of_batch
    self._is_whole = is_whole

  def map(self, map_func, *args, **kwargs):
    return self._made(
        super().map(map_func, *args, **kwargs),
        lambda elements: elements.map(map_func, *args, **kwargs),
        self._is_whole,
    )

  def filter(self, predicate, name=None):
    return self._made(
        super().filter(predicate, name),
        lambda elements: elements.filter(predicate),
        is_whole=False,
    )

  def take(self, count, name=None):
    made = super().take(count, name)
    if self._source is None or not self._is_whole:
      return made
    return _EpisodeDerivedDataset(
        made, self._source.take(count), self._of_batch
    )

  def skip(self, count, name=None):
    made = super().skip(count, name)
    if self._source is None or not self._is_whole:
      return made
    of_batch = self._of_batch
    return _EpisodeDerivedDataset(
        made,
        self._source.skip(count),
        lambda index, batch: of_batch(index + count, batch),
    )

  def _made(self, made, change, is_whole):
    """Returns the data set that a method made by `change` of the elements."""
    source = self if self._source is None else self._source
    spec = made.element_spec

    def of_batch(index, batch):
      return change(self._of_batch(index, batch))

    if not batching.can_be_batched(spec):
      return _EpisodeDerivedDataset(made, source, of_batch, is_whole)
    return with_batches_of(
        made,
        source,
        lambda batches: batching.batch_each(batches, of_batch, spec),
    )


class Episodes(_EpisodeDerivedDataset):
  """A data set of episodes that has their batches, too.

  `take`, `skip`, `shard`, `repeat`, `concatenate`, `prefetch`, `shuffle` and
  `with_options` return one again, and so do `map` and `filter`, if their
  results are episodes of a known shape. The user's function is called with
  single episodes, and its results are batched again, even if `map` follows
  `enumerate`. Other methods return single episodes without batches.
  """

  def __init__(
      self,
      episodes: tf.data.Dataset,
      batches: Union[tf.data.Dataset, Callable[[], Optional[tf.data.Dataset]]],
  ):
    """Creates the data set.

    Args:
      episodes: a data set of episodes with stacked steps.
      batches: the data set of `EpisodeBatch`s that hold the same episodes in
        the same order; or a function that makes it, or returns None if there is
        none. It is called when the batches are first asked for, and only once.
    """
    super().__init__(episodes, None, _episodes_of)
    self._batches = batches

  @property
  def batches(self) -> Optional[tf.data.Dataset]:
    """The batches, which are made when they are first asked for; or None."""
    if callable(self._batches):
      # Batches that are kept for later calls must not be part of a function's
      # graph.
      with tf.init_scope():
        self._batches = self._batches()
    return self._batches

  def _eager_iterator(self):
    return _Iterator(self)

  def take(self, count, name=None):
    made = super().take(count, name)
    return self._with_batches(made, batching.take, count)

  def skip(self, count, name=None):
    made = super().skip(count, name)
    return self._with_batches(made, batching.skip, count)

  def shard(self, num_shards, index, name=None):
    made = super().shard(num_shards, index, name)
    return self._with_batches(made, batching.shard, num_shards, index)

  def repeat(self, count=None, name=None):
    made = super().repeat(count, name)
    return self._with_batches(made, tf.data.Dataset.repeat, count)

  def prefetch(self, buffer_size, name=None):
    made = super().prefetch(buffer_size, name)
    return self._with_batches(made, tf.data.Dataset.prefetch, 1)

  def with_options(self, options, name=None):
    made = super().with_options(options, name)
    return self._with_batches(made, tf.data.Dataset.with_options, options)

  def concatenate(self, dataset, name=None):
    made = super().concatenate(dataset, name)
    if not isinstance(dataset, Episodes):
      return made
    return with_batches_of(
        made,
        self,
        lambda batches: batching.concatenate(batches, dataset.batches),
    )

  def enumerate(self, start=0, name=None):
    return _EpisodeDerivedDataset(
        super().enumerate(start, name),
        self,
        lambda index, batch: batching.episodes_of(batch).enumerate(
            start + index
        ),
    )

  def shuffle(self, buffer_size, *args, **kwargs):
    made = super().shuffle(buffer_size, *args, **kwargs)
    if not batching.can_be_batched(self.element_spec) or tf.is_tensor(
        buffer_size
    ):
      return made
    # This many more episodes are in memory.
    count = min(buffer_size, _MAX_SHUFFLED)
    return Episodes(made, lambda: batching.batch_together(made, count))

  def _with_batches(self, episodes, method, *args):
    """Returns `episodes`, with batches that `method` makes of these batches."""
    if any(map(tf.is_symbolic_tensor, args)):
      return episodes  # Batches are made outside of function graphs.
    return with_batches_of(
        episodes, self, lambda batches: method(batches, *args)
    )


def _episodes_of(unused_index, batch):
  return batching.episodes_of(batch)


class _Iterator(private.PlainIterator):
  """Iterates over episodes; errors name the episode and its place."""

  def __init__(self, episodes: Episodes):
    super().__init__(episodes)
    # A plain attribute, which a checkpoint of the iterator leaves out.
    object.__setattr__(self, '_source', [episodes, 0])

  def __next__(self):
    episodes, index = self._source
    try:
      episode = super().__next__()
    # TensorFlow raises the second if its message holds bytes of the record.
    except (tf.errors.OpError, UnicodeDecodeError) as e:
      sentence = _find_fault(episodes, index)
      if sentence is None:
        raise
      raise tf.errors.InvalidArgumentError(None, None, sentence) from e
    self._source[1] += 1
    return episode


def _find_fault(episodes: Episodes, index: int) -> Optional[str]:
  """Reads batches up to an episode, and returns its fault, if it is known.

  The batches are built only here, after an error, because that takes longer
  than reading a small data set.
  """
  batches = episodes.batches
  if batches is None or batches.element_spec.fault == ():
    return None
  first = 0
  try:
    for batch in batches:
      if first == index and faults.is_fault(batch.fault):
        return faults.sentence(batch.fault, index).numpy().decode()
      first += int(episode_batches.num_episodes(batch))
      if first > index:
        return None
  except (tf.errors.OpError, UnicodeDecodeError):
    return None
  return None


def batches_of(
    rlds_data: tf.data.Dataset,
    *,
    fields: Optional[Iterable[str]] = None,
    episode_fields: Optional[Iterable[str]] = None,
    with_faults: bool = False,
) -> tf.data.Dataset:
  """Returns the data set of the `EpisodeBatch`s of any data set of episodes.

  This is the door of the library: nested steps are stacked here, an episode at
  a time, and short ones of known shape share a batch.

  Args:
    rlds_data: a data set of episodes, whose steps may be nested; or of batches.
      A stacked episode of a data set that is not of type `Episodes` is a batch
      by itself.
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

  if is_nested:
    stacked = graphs.map_elements(rlds_data, stack, tf.data.AUTOTUNE)
    if batching.can_be_batched(stacked.element_spec):
      return batching.batch_together(stacked, _MAX_STACKED)
    return graphs.map_elements(stacked, episode_batches.of_episode)
  return graphs.map_elements(
      rlds_data,
      lambda episode: episode_batches.of_episode(stack(episode)),
      tf.data.AUTOTUNE,
  )


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


def with_batches_of(
    episodes: tf.data.Dataset,
    source: tf.data.Dataset,
    function: Callable[[tf.data.Dataset], Optional[tf.data.Dataset]],
) -> tf.data.Dataset:
  """Adds the batches to a data set that was made of another one.

  Args:
    episodes: the data set that was made.
    source: the data set of episodes that it was made of.
    function: makes the batches of `episodes` of those of `source`, or returns
      None. It is not called if `source` has no batches.

  Returns:
    A data set of the same episodes, with batches if `source` has batches.
  """
  if not isinstance(source, Episodes):
    return episodes

  def make():
    return None if source.batches is None else function(source.batches)

  return Episodes(episodes, make)
