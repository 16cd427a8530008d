"""A `Pack` holds the stacked steps of several whole episodes.

An episode costs an element of a data set, and some operations, whatever it
holds. Where episodes are short, that is most of the work. So several episodes
travel together as one pack, and an episode that is long is a pack of its own.

A data set of episodes is what the user sees. One of type `Episodes` has its
packs beside it, which the functions of this library that read all of its
episodes find with `packs_of`.
"""

from typing import Any, Callable, NamedTuple, Optional, Union

import tensorflow as tf

from rlds2reverb.episodes import faults
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# AutoGraph would take most of a second to find that nothing here needs it.
_no_autograph = tf.autograph.experimental.do_not_convert


class Pack(NamedTuple):
  """The steps of `E` whole episodes, one after the other, `N` steps in all.

  If the fields of an episode differ in length, it is in a pack of its own,
  `E=1`, whose leaves keep their lengths. `N` is then the longest of them. An
  episode that could not be read is in a pack of its own, too, without steps,
  and with its fault.

  Attributes:
    steps: a dict of the step fields, every leaf `[N, ...]`.
    row_splits: int64 `[E + 1]`: episode `e` has the rows from `row_splits[e]`
      until `row_splits[e + 1]`. There are none if the two are the same.
    fields: a dict of the other fields of the episodes, every leaf `[E, ...]`.
    fault: a `faults.Fault`, which says what is wrong with the episode that
      could not be read, and has no rule in other packs; or `()`, if what the
      packs are made of can always be read.
  """

  steps: Any
  row_splits: Any
  fields: Any
  fault: Any = ()


class Episodes(tf.data.Dataset):
  """A data set of episodes that has their packs, too.

  `take`, `skip`, `shard`, `repeat`, `concatenate`, `prefetch` and
  `with_options` return one again. What other methods return has single episodes
  only: nothing is known about a function of the user's.
  """

  def __init__(
      self,
      episodes: tf.data.Dataset,
      packs: Union[tf.data.Dataset, Callable[[], Optional[tf.data.Dataset]]],
  ):
    """Creates the data set; see `with_packs`."""
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

  def _with_packs(self, episodes, method, *args):
    """Returns what a method made, with what `method` makes of the packs."""
    if any(map(tf.is_symbolic_tensor, args)):
      return episodes  # Packs are made outside of the graph of a function.
    return with_packs_of(episodes, self, lambda packs: method(packs, *args))


def with_packs(
    episodes: tf.data.Dataset,
    packs: Union[tf.data.Dataset, Callable[[], Optional[tf.data.Dataset]]],
) -> Episodes:
  """Returns a data set of episodes that has their packs, for `packs_of`.

  Args:
    episodes: a data set of episodes with stacked steps.
    packs: the data set of `Pack`s that hold the same episodes in the same
      order; or a function that makes it, or returns None if there is none. It
      is called when the packs are first asked for, and only once.
  """
  return Episodes(episodes, packs)


def packs_of(
    rlds_data: tf.data.Dataset, *, with_faults: bool = False
) -> Optional[tf.data.Dataset]:
  """Returns the data set of `Pack`s of a data set of episodes, or None.

  Args:
    rlds_data: a data set of episodes.
    with_faults: whether an episode that could not be read comes as a pack with
      a fault; otherwise it raises an InvalidArgumentError in its place.
  """
  packs = rlds_data.packs if isinstance(rlds_data, Episodes) else None
  return packs if packs is None or with_faults else _without_faults(packs)


def _without_faults(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns packs without `fault`, which raises it."""
  if packs.element_spec.fault == ():
    return packs

  @_no_autograph
  def check(index, pack):
    is_fine = ~has_fault(pack)
    message = tf.cond(
        is_fine,
        lambda: tf.constant(''),
        lambda: faults.sentence(pack.fault, index),
    )
    with tf.control_dependencies([tf.debugging.Assert(is_fine, [message])]):
      return index + num_episodes(pack), pack._replace(fault=())

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

  return with_packs(episodes, make)


def _numbered(packs):
  """Returns pairs of a pack and of the index of its first episode."""

  def number(index, pack):
    return index + num_episodes(pack), (index, pack)

  return packs.scan(tf.constant(0, tf.int64), _no_autograph(number))


def _select(packs, keep):
  """Keeps the episodes for whose index a function returns True."""

  def some(index, pack):
    return keep_episodes(pack, keep(index + tf.range(num_episodes(pack))))

  return _of_some(_numbered(packs).map(_no_autograph(some)))


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
    is_among = index + tf.range(num_episodes(pack)) < count
    return keep_episodes(pack, is_among | (count < 0))

  is_among = lambda index, pack: (index < count) | (count < 0)
  numbered = _numbered(packs).take_while(_no_autograph(is_among))
  return _of_some(numbered.map(_no_autograph(some)))


def _of_some(packs):
  """Leaves out packs of no episodes."""
  return packs.filter(_no_autograph(lambda pack: num_episodes(pack) > 0))


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


def num_episodes(pack: Pack) -> tf.Tensor:
  """Returns the number of episodes in a pack, int64 `[]`."""
  return tf.size(pack.row_splits, tf.int64) - 1


def has_fault(pack: Pack) -> tf.Tensor:
  """Returns whether a pack is of an episode that could not be read."""
  return tf.constant(False) if pack.fault == () else pack.fault.rule != ''


def unpack(packs: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the episodes in packs, one by one.

  Args:
    packs: a data set of `Pack`s.

  Returns:
    A data set of episodes: dicts of `Pack.fields`, and of the stacked `steps`.
  """

  @_no_autograph
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
  return packs.flat_map(separate).map(_no_autograph(_episode))


def keep_episodes(pack: Pack, keep: tf.Tensor) -> Pack:
  """Returns a pack of some episodes of a pack.

  Args:
    pack: a pack.
    keep: bool `[E]`: which episodes are kept.
  """

  def kept():
    rows = tf.gather(keep, episode_of_rows(pack.row_splits))
    lengths = pack.row_splits[1:] - pack.row_splits[:-1]
    return Pack(
        tf.nest.map_structure(
            lambda leaf: tf.boolean_mask(leaf, rows), pack.steps
        ),
        tf.concat([[0], tf.cumsum(tf.boolean_mask(lengths, keep))], 0),
        fault=pack.fault,
        fields=tf.nest.map_structure(
            lambda leaf: tf.boolean_mask(leaf, keep), pack.fields
        ),
    )

  return tf.cond(tf.reduce_all(keep), lambda: pack, kept)


def episode_of_rows(row_splits: tf.Tensor) -> tf.Tensor:
  """Returns the position in its pack of the episode of each row.

  Args:
    row_splits: int64 `[E + 1]`, as in `Pack`.

  Returns:
    int64 `[N]`: `[0, 0, 2]` for the row splits `[0, 2, 2, 3]`.
  """
  num_rows = row_splits[-1]
  return tf.cumsum(count_begins(row_splits, num_rows + 1))[:num_rows] - 1


def count_begins(row_splits: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
  """Returns how many episodes begin at each row.

  An episode without steps begins where the next one does. After the last row,
  one that is not there is counted.

  Args:
    row_splits: int64 `[E + 1]`, as in `Pack`.
    num_rows: an integer `[]`, `R`: for how many rows, more than the pack has.

  Returns:
    int64 `[R]`: `[1, 0, 2, 1]` for the row splits `[0, 2, 2, 3]`.
  """
  return tf.math.unsorted_segment_sum(
      tf.ones_like(row_splits), row_splits, num_rows
  )


def bounds_of_parts(
    num_bytes: tf.Tensor,
    max_bytes: int,
    is_alone: Optional[tf.Tensor] = None,
) -> tf.Tensor:
  """Divides a sequence of episodes into parts of limited size.

  The episodes that begin within the same `max_bytes` make a part, which can
  have nearly twice as many bytes. A larger episode is a part by itself.

  Args:
    num_bytes: int64 `[E]`: the bytes of each episode.
    max_bytes: how many bytes a part should have at most.
    is_alone: bool `[E]`: whether an episode is to be a part by itself.

  Returns:
    int64 `[P, 2]`: where each part starts and stops. For the bytes `[2, 1, 3]`
    and 3 bytes at most, it is `[[0, 2], [2, 3]]`.
  """
  alone = num_bytes > max_bytes
  if is_alone is not None:
    alone |= is_alone
  alone = tf.cast(alone, tf.int64)
  part = tf.cumsum(num_bytes, exclusive=True) // max_bytes
  part += tf.cumsum(alone) + tf.cumsum(alone, exclusive=True)
  is_first = tf.concat(
      [tf.ones_like(part[:1], tf.bool), part[1:] != part[:-1]], 0
  )
  starts = tf.where(is_first)[:, 0]
  stops = tf.concat([starts, tf.shape(part, tf.int64)], 0)[1:]
  return tf.stack([starts, stops], axis=1)


def sum_rows(column: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
  """Adds up a number of the steps of each episode.

  Args:
    column: numbers `[N]`.
    row_splits: int64 `[E + 1]`, as in `Pack`.

  Returns:
    The sums, `[E]`, of the same dtype; 0 for an episode without steps.
  """
  return tf.math.unsorted_segment_sum(
      column, episode_of_rows(row_splits), tf.size(row_splits) - 1
  )


def _episode(index: tf.Tensor, pack: Pack):
  """Returns the episode at a position of a pack."""

  def some_rows():
    # The rows are copied, so that an episode does not keep its pack in memory.
    return steps_lib.own_rows(
        pack.steps, pack.row_splits[index], pack.row_splits[index + 1]
    )

  steps = tf.cond(tf.size(pack.row_splits) == 2, lambda: pack.steps, some_rows)
  fields = tf.nest.map_structure(lambda leaf: leaf[index], pack.fields)
  return {**fields, rlds.STEPS: steps}
