"""Data sets of episodes, whose episodes travel in packs.

The user sees a `tf.data.Dataset` of RLDS episodes, and this library the packs
that `packs_of` returns for any of them. A data set of type `Episodes` knows its
packs. Of any other each episode is a pack by itself.
"""

import functools
from typing import Any, Callable, Dict, Iterable, Optional, Union

import tensorflow as tf

# What `iter(dataset)` returns has no public name; as in TensorFlow 2.15.
from tensorflow.python.data.ops import iterator_ops

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import grouping
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_MAX_SHUFFLED = 32  # More episodes in a pack gain little.


class Episodes(tf.data.Dataset):
  """A data set of episodes that has their packs, too.

  `take`, `skip`, `shard`, `repeat`, `concatenate`, `prefetch`, `shuffle` and
  `with_options` return one again, and so do `map` and `filter`, if what they
  return are episodes of a known shape. The function of the user's is called
  with single episodes, which are packed again. What other methods return has
  single episodes only.
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
    self._episodes = episodes
    self._packs = packs
    # pylint: disable-next=protected-access
    super().__init__(episodes._variant_tensor)

  def _inputs(self):
    return [self._episodes]

  @property
  def element_spec(self):
    return self._episodes.element_spec

  @property
  def packs(self) -> Optional[tf.data.Dataset]:
    """The packs, which are made when they are first asked for; or None."""
    if callable(self._packs):
      # What is made for later calls too must not be part of a function's graph.
      with tf.init_scope():
        self._packs = self._packs()
    return self._packs

  def __iter__(self):
    if not tf.executing_eagerly():
      return super().__iter__()
    return _Iterator(self)

  def take(self, count, name=None):
    return self._with_packs(super().take(count, name), _take, count)

  def skip(self, count, name=None):
    return self._with_packs(super().skip(count, name), _skip, count)

  def shard(self, num_shards, index, name=None):
    sharded = super().shard(num_shards, index, name)
    return self._with_packs(sharded, _shard, num_shards, index)

  def repeat(self, count=None, name=None):
    return self._with_packs(
        super().repeat(count, name), tf.data.Dataset.repeat, count
    )

  def prefetch(self, buffer_size, name=None):
    return self._with_packs(
        super().prefetch(buffer_size, name), tf.data.Dataset.prefetch, 1
    )

  def with_options(self, options, name=None):
    return self._with_packs(
        super().with_options(options, name),
        tf.data.Dataset.with_options,
        options,
    )

  def concatenate(self, dataset, name=None):
    joined = super().concatenate(dataset, name)
    if not isinstance(dataset, Episodes):
      return joined
    return self._with_packs(joined, _concatenate, dataset)

  def map(self, map_func, *args, **kwargs):
    return self._by_episode(
        super().map(map_func, *args, **kwargs),
        lambda episodes: episodes.map(map_func),
    )

  def filter(self, predicate, name=None):
    return self._by_episode(
        super().filter(predicate, name),
        lambda episodes: episodes.filter(predicate),
    )

  def shuffle(self, buffer_size, *args, **kwargs):
    shuffled = super().shuffle(buffer_size, *args, **kwargs)
    if not _can_be_packed(self.element_spec) or tf.is_tensor(buffer_size):
      return shuffled
    # So many more episodes are in memory.
    count = min(buffer_size, _MAX_SHUFFLED)
    plain = shuffled.map(graphs.no_autograph(_separate))
    row_bytes = _row_bytes(self.element_spec)
    return Episodes(
        shuffled,
        lambda: grouping.group(plain, count, row_bytes).map(_to_pack),
    )

  def _by_episode(self, made, change):
    """Returns what a method made, with the packs of changed episodes."""
    if not _can_be_packed(made.element_spec):
      return made
    row_bytes = _row_bytes(made.element_spec)
    return with_packs_of(
        made, self, lambda packs: _change(packs, change, row_bytes)
    )

  def _with_packs(self, episodes, method, *args):
    """Returns what a method made, with what `method` makes of the packs."""
    if any(map(tf.is_symbolic_tensor, args)):
      return episodes  # Packs are made outside of the graph of a function.
    return with_packs_of(episodes, self, lambda packs: method(packs, *args))


class _Iterator(iterator_ops.OwnedIterator):
  """Iterates over episodes, and says which one cannot be read, and where."""

  def __init__(self, episodes: Episodes):
    super().__init__(episodes)
    # A plain attribute, which a checkpoint of the iterator leaves out.
    object.__setattr__(self, '_source', [episodes, 0])

  def __next__(self):
    episodes, index = self._source
    try:
      episode = super().__next__()
    # TensorFlow raises the second where its message holds bytes of the record.
    except (tf.errors.OpError, UnicodeDecodeError) as e:
      sentence = _find_fault(episodes, index)
      if sentence is None:
        raise
      raise tf.errors.InvalidArgumentError(None, None, sentence) from e
    self._source[1] += 1
    return episode


def _find_fault(episodes: Episodes, index: int) -> Optional[str]:
  """Reads packs up to an episode, and returns what is wrong with it, if known.

  The packs are built here, after an error, because that takes longer than to
  read a small data set.
  """
  packs = episodes.packs
  if packs is None or packs.element_spec.fault == ():
    return None
  first = 0
  try:
    for pack in packs:
      if first == index and packs_lib.has_fault(pack):
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
    with_faults: bool = False,
) -> tf.data.Dataset:
  """Returns the data set of the `packs.Pack`s of any data set of episodes.

  Args:
    rlds_data: a data set of episodes, whose steps may be nested; or of packs.
      An episode of a data set that is not of type `Episodes` is a pack by
      itself.
    fields: the names of the fields that are read of nested steps; by default
      all.
    with_faults: whether an episode that could not be read comes as a pack with
      a fault; otherwise it raises an InvalidArgumentError in its place.
  """
  packs = None
  if isinstance(rlds_data.element_spec, packs_lib.Pack):
    packs = rlds_data
  elif isinstance(rlds_data, Episodes):
    packs = rlds_data.packs
  if packs is None:
    return rlds_data.map(
        graphs.no_autograph(functools.partial(_pack_of_one, fields=fields)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
  return packs if with_faults else _without_faults(packs)


def _pack_of_one(episode: Dict[str, Any], fields=None) -> packs_lib.Pack:
  # What holds data sets cannot be in a pack, and nobody asks for it.
  others = {
      name: field
      for name, field in episode.items()
      if name != rlds.STEPS
      and not any(
          isinstance(leaf, tf.data.Dataset) for leaf in tf.nest.flatten(field)
      )
  }
  steps = episode[rlds.STEPS]
  if isinstance(steps, tf.data.Dataset):
    if fields is None:
      steps = steps_lib.stack_steps(steps)
    else:
      steps = steps_lib.stacked_fields(steps, fields)
  return packs_lib.of_one(steps, others)


def _without_faults(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns packs without `fault`, which raises it."""
  if packs.element_spec.fault == ():
    return packs

  @graphs.no_autograph
  def check(index, pack):
    is_fine = ~packs_lib.has_fault(pack)
    message = tf.cond(
        is_fine,
        lambda: tf.constant(''),
        lambda: faults.sentence(pack.fault, index),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_fine, [message])]):
      return index + packs_lib.num_episodes(pack), pack._replace(fault=())

  return packs.scan(tf.constant(0, tf.int64), check)


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


def _change(packs, change, row_bytes):
  """Returns the packs of changed episodes.

  Args:
    packs: the packs of the episodes.
    change: a function of the data set of the episodes of one pack.
    row_bytes: the bytes of a row of the changed ones.
  """

  # The functions of a user need AutoGraph, so this one has it, too.
  def changed(pack):
    return grouping.batches(change(_episodes_of(pack)).map(_separate))

  batches = _without_faults(packs).flat_map(changed)
  return grouping.of_batches(batches, row_bytes).map(_to_pack)


@graphs.no_autograph
def _episodes_of(pack):
  return tf.data.Dataset.range(packs_lib.num_episodes(pack)).map(
      graphs.no_autograph(lambda index: _episode(index, pack))
  )


@graphs.no_autograph
def _separate(episode):
  """Returns the rows of an episode, and its other fields."""
  fields = dict(episode)
  return fields.pop(rlds.STEPS), fields


@graphs.no_autograph
def _to_pack(group):
  # An episode whose fields differ in length is alone.
  return packs_lib.Pack(
      group.columns, tf.reduce_max(group.splits, 0), group.fields
  )


def _can_be_packed(spec) -> bool:
  """Returns whether elements are episodes of stacked steps of known shapes."""
  if not isinstance(spec, dict) or not isinstance(spec.get(rlds.STEPS), dict):
    return False
  leaves = tf.nest.flatten(spec[rlds.STEPS])
  if not leaves or not all(
      isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves
  ):
    return False
  others = {**spec, rlds.STEPS: steps_lib.without_time(spec[rlds.STEPS])}
  return all(map(steps_lib.has_one_shape, tf.nest.flatten(others)))


def _row_bytes(spec) -> int:
  return blocks.step_bytes(steps_lib.without_time(spec[rlds.STEPS]))


def _numbered(packs):
  """Returns pairs of a pack and of the index of its first episode."""

  def number(index, pack):
    return index + packs_lib.num_episodes(pack), (index, pack)

  return packs.scan(tf.constant(0, tf.int64), graphs.no_autograph(number))


def _select(packs, keep):
  """Keeps the episodes for whose index a function returns True."""

  def some(index, pack):
    return packs_lib.keep_episodes(
        pack, keep(index + tf.range(packs_lib.num_episodes(pack)))
    )

  return _of_some(_numbered(packs).map(graphs.no_autograph(some)))


def _skip(packs, count):
  """Leaves out the first `count` episodes, or all if that is negative."""
  count = tf.cast(count, tf.int64)
  return _select(packs, lambda index: (index >= count) & (count >= 0))


def _shard(packs, num_shards, index):
  num_shards, index = tf.cast(num_shards, tf.int64), tf.cast(index, tf.int64)
  return _select(packs, lambda place: place % num_shards == index)


def _take(packs, count):
  """Keeps the first `count` episodes, or all if that is negative."""
  count = tf.cast(count, tf.int64)

  def some(index, pack):
    is_among = index + tf.range(packs_lib.num_episodes(pack)) < count
    return packs_lib.keep_episodes(pack, is_among | (count < 0))

  is_among = lambda index, pack: (index < count) | (count < 0)
  numbered = _numbered(packs).take_while(graphs.no_autograph(is_among))
  return _of_some(numbered.map(graphs.no_autograph(some)))


def _of_some(packs):
  """Leaves out packs of no episodes."""
  return packs.filter(
      graphs.no_autograph(lambda pack: packs_lib.num_episodes(pack) > 0)
  )


def _concatenate(packs, episodes):
  """Returns packs and then those of other episodes, or None."""
  others = episodes.packs
  if others is None:
    return None
  if packs.element_spec != others.element_spec:
    packs, others = _without_faults(packs), _without_faults(others)
  try:
    return packs.concatenate(others)
  except (TypeError, ValueError):  # Their shapes differ too much.
    return None


def unpack(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes in packs, one by one.

  Args:
    packs: a data set of `packs.Pack`s.

  Returns:
    A data set of episodes: dicts of `Pack.fields`, and of the stacked `steps`.
  """

  @graphs.no_autograph
  def separate(pack):
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.range(tf.size(pack.row_splits, tf.int64) - 1),
            tf.data.Dataset.from_tensors(pack).repeat(),
        )
    )

  # The episodes are cut out here, and not by a map in the function of
  # `flat_map`, which would be built again for every pack.
  packs = _without_faults(packs)
  return packs.flat_map(separate).map(graphs.no_autograph(_episode))


def _episode(index: tf.Tensor, pack: packs_lib.Pack):
  """Returns the episode at a position of a pack."""

  def some_rows():
    # The rows are copied, so that an episode does not keep its pack in memory.
    return steps_lib.own_rows(
        pack.steps, pack.row_splits[index], pack.row_splits[index + 1]
    )

  steps = tf.cond(tf.size(pack.row_splits) == 2, lambda: pack.steps, some_rows)
  fields = tf.nest.map_structure(lambda leaf: leaf[index], pack.fields)
  return {**fields, rlds.STEPS: steps}
