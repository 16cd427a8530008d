"""`Episodes`, a data set of episodes that also gives them in packs.

The user sees a `tf.data.Dataset` of RLDS episodes, and this library its packs,
which `packs_of` returns. A data set of type `Episodes` knows its packs. In any
other, each episode is a pack by itself.
"""

from typing import Any, Callable, Dict, Iterable, Optional, Union

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import pack_streams
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import private
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

_MAX_SHUFFLED = 32  # More episodes in a pack gain little.
# Nested episodes that are in memory together before they are packed.
_MAX_STACKED = 8
_UNUSED_BYTES = 4096  # At most this much of a nested step is read without use.


class _OfEpisodes(private.WrappedDataset):
  """A data set whose elements are each made of one episode.

  While the elements are no episodes, as after `enumerate`, `of_pack` makes them
  from a pack. If `map` makes episodes of them, these are packed again, even
  after `take` and `skip`.
  """

  def __init__(
      self,
      elements: tf.data.Dataset,
      source: Optional[tf.data.Dataset],
      of_pack: pack_streams.OfPack,
      is_whole: bool = True,
  ):
    """Creates the data set.

    Args:
      elements: the data set of the elements.
      source: the data set of the original episodes; by default this one.
      of_pack: makes the elements of the episodes in one pack.
      is_whole: whether there is an element for every episode.
    """
    super().__init__(elements)
    self._source = source
    self._of_pack = of_pack
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
    return _OfEpisodes(made, self._source.take(count), self._of_pack)

  def skip(self, count, name=None):
    made = super().skip(count, name)
    if self._source is None or not self._is_whole:
      return made
    of_pack = self._of_pack
    return _OfEpisodes(
        made,
        self._source.skip(count),
        lambda index, pack: of_pack(index + count, pack),
    )

  def _made(self, made, change, is_whole):
    """Returns the data set that a method made by `change` of the elements."""
    source = self if self._source is None else self._source
    spec = made.element_spec

    def of_pack(index, pack):
      return change(self._of_pack(index, pack))

    if not pack_streams.can_be_packed(spec):
      return _OfEpisodes(made, source, of_pack, is_whole)
    return with_packs_of(
        made,
        source,
        lambda packs: pack_streams.pack_each(packs, of_pack, spec),
    )


class Episodes(_OfEpisodes):
  """A data set of episodes that has their packs, too.

  `take`, `skip`, `shard`, `repeat`, `concatenate`, `prefetch`, `shuffle` and
  `with_options` return one again, and so do `map` and `filter`, if their
  results are episodes of a known shape. The user's function is called with
  single episodes, and its results are packed again, even if `map` follows
  `enumerate`. Other methods return single episodes without packs.
  """

  def __init__(
      self,
      episodes: tf.data.Dataset,
      packs: Union[tf.data.Dataset, Callable[[], Optional[tf.data.Dataset]]],
  ):
    """Creates the data set.

    Args:
      episodes: a data set of episodes with stacked steps.
      packs: the data set of `packs.Pack`s that hold the same episodes in the
        same order; or a function that makes it, or returns None if there is
        none. It is called when the packs are first asked for, and only once.
    """
    super().__init__(episodes, None, _episodes_of)
    self._packs = packs

  @property
  def packs(self) -> Optional[tf.data.Dataset]:
    """The packs, which are made when they are first asked for; or None."""
    if callable(self._packs):
      # Packs that are kept for later calls must not be part of a function's
      # graph.
      with tf.init_scope():
        self._packs = self._packs()
    return self._packs

  def _eager_iterator(self):
    return _Iterator(self)

  def take(self, count, name=None):
    made = super().take(count, name)
    return self._with_packs(made, pack_streams.take, count)

  def skip(self, count, name=None):
    made = super().skip(count, name)
    return self._with_packs(made, pack_streams.skip, count)

  def shard(self, num_shards, index, name=None):
    made = super().shard(num_shards, index, name)
    return self._with_packs(made, pack_streams.shard, num_shards, index)

  def repeat(self, count=None, name=None):
    made = super().repeat(count, name)
    return self._with_packs(made, tf.data.Dataset.repeat, count)

  def prefetch(self, buffer_size, name=None):
    made = super().prefetch(buffer_size, name)
    return self._with_packs(made, tf.data.Dataset.prefetch, 1)

  def with_options(self, options, name=None):
    made = super().with_options(options, name)
    return self._with_packs(made, tf.data.Dataset.with_options, options)

  def concatenate(self, dataset, name=None):
    made = super().concatenate(dataset, name)
    if not isinstance(dataset, Episodes):
      return made
    return with_packs_of(
        made,
        self,
        lambda packs: pack_streams.concatenate(packs, dataset.packs),
    )

  def enumerate(self, start=0, name=None):
    return _OfEpisodes(
        super().enumerate(start, name),
        self,
        lambda index, pack: pack_streams.episodes_of(pack).enumerate(
            start + index
        ),
    )

  def shuffle(self, buffer_size, *args, **kwargs):
    made = super().shuffle(buffer_size, *args, **kwargs)
    if not pack_streams.can_be_packed(self.element_spec) or tf.is_tensor(
        buffer_size
    ):
      return made
    # This many more episodes are in memory.
    count = min(buffer_size, _MAX_SHUFFLED)
    return Episodes(made, lambda: pack_streams.pack_together(made, count))

  def _with_packs(self, episodes, method, *args):
    """Returns `episodes`, with packs that `method` makes of these packs."""
    if any(map(tf.is_symbolic_tensor, args)):
      return episodes  # Packs are made outside of function graphs.
    return with_packs_of(episodes, self, lambda packs: method(packs, *args))


def _episodes_of(unused_index, pack):
  return pack_streams.episodes_of(pack)


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
  """Reads packs up to an episode, and returns its fault, if it is known.

  The packs are built only here, after an error, because that takes longer than
  reading a small data set.
  """
  packs = episodes.packs
  if packs is None or packs.element_spec.fault == ():
    return None
  first = 0
  try:
    for pack in packs:
      if first == index and faults.is_fault(pack.fault):
        return faults.sentence(pack.fault, index).numpy().decode()
      first += int(packs_lib.num_episodes(pack))
      if first > index:
        return None
  except (tf.errors.OpError, UnicodeDecodeError):
    return None
  return None


def packs_of(
    rlds_data: tf.data.Dataset,
    *,
    fields: Optional[Iterable[str]] = None,
    episode_fields: Optional[Iterable[str]] = None,
    with_faults: bool = False,
) -> tf.data.Dataset:
  """Returns the data set of the `packs.Pack`s of any data set of episodes.

  This is the door of the library: nested steps are stacked here, an episode at
  a time, and short ones of known shape share a pack.

  Args:
    rlds_data: a data set of episodes, whose steps may be nested; or of packs.
      A stacked episode of a data set that is not of type `Episodes` is a pack
      by itself.
    fields: the names of the step fields that are needed; by default all.
    episode_fields: the names of the other fields that are needed; by default
      all.
    with_faults: whether an episode that could not be read comes as a pack with
      a fault; otherwise it raises an InvalidArgumentError in its place.
  """
  packs = None
  if isinstance(rlds_data.element_spec, packs_lib.Pack):
    packs = rlds_data
  elif isinstance(rlds_data, Episodes):
    packs = rlds_data.packs
  if packs is not None:
    return packs if with_faults else pack_streams.without_faults(packs)
  spec = rlds_data.element_spec[rlds.STEPS]
  is_nested = isinstance(spec, tf.data.DatasetSpec)
  if is_nested and fields is not None:
    fields = _fields_to_read(spec.element_spec, fields)

  @graphs.no_autograph
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
    stacked = rlds_data.map(stack, num_parallel_calls=tf.data.AUTOTUNE)
    if pack_streams.can_be_packed(stacked.element_spec):
      return pack_streams.pack_together(stacked, _MAX_STACKED)
    return stacked.map(graphs.no_autograph(packs_lib.of_episode))
  return rlds_data.map(
      graphs.no_autograph(lambda episode: packs_lib.of_episode(stack(episode))),
      num_parallel_calls=tf.data.AUTOTUNE,
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


def with_packs_of(
    episodes: tf.data.Dataset,
    source: tf.data.Dataset,
    function: Callable[[tf.data.Dataset], Optional[tf.data.Dataset]],
) -> tf.data.Dataset:
  """Adds the packs to a data set that was made of another one.

  Args:
    episodes: the data set that was made.
    source: the data set of episodes that it was made of.
    function: makes the packs of `episodes` of those of `source`, or returns
      None. It is not called if `source` has no packs.

  Returns:
    A data set of the same episodes, with packs if `source` has packs.
  """
  if not isinstance(source, Episodes):
    return episodes

  def make():
    return None if source.packs is None else function(source.packs)

  return Episodes(episodes, make)
