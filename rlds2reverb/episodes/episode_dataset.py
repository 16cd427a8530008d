"""Data sets of episodes and of their batches, and conversions between them.

Users see a `tf.data.Dataset` of RLDS episodes. The library processes
`EpisodeBatch`es, which `batches_of` returns for any data set of episodes.
`EpisodeDataset` wraps a data set of batches, and is read in batches directly.
"""

from collections.abc import Callable
from collections.abc import Iterable
import functools
from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_private

# The maximum number of episodes per batch. There are fewer if that many
# episodes of `_TYPICAL_NUM_STEPS` steps exceed the size of a batch.
_MAX_EPISODES = 8
_TYPICAL_NUM_STEPS = 64

# The name of the operation that finds the error of a mapped function.
MAP_ERROR = 'rlds2reverb_map_error'

# Takes the name of an operation, and returns a function that records, in a
# graph, the indices of episodes, int64 `[K]`, and the number of steps that the
# operation removed from each, int64 `[K]`.
StepCounter = Callable[[str], Callable[[tf.Tensor, tf.Tensor], tf.Operation]]

# Unused fields of nested steps are read, too, if they are at most this large.
_UNUSED_BYTES = 4096


class EpisodeDataset(tf_private.WrappedDataset):
  """A data set of episodes, backed by a data set of `EpisodeBatch`es.

  `take`, `skip`, `shard`, `repeat`, `concatenate`, `prefetch` and
  `with_options` return an `EpisodeDataset`. Other methods, such as `map`,
  return plain data sets of episodes.

  Attributes:
    batches: the data set of `EpisodeBatch`es.
  """

  def __init__(self, batches: tf.data.Dataset, num_episodes: Any = None):
    """Creates the data set.

    Args:
      batches: a data set of `EpisodeBatch`es.
      num_episodes: the number of their episodes, as `cardinality` returns it,
        if known.
    """
    self.batches = batches
    if tf.is_tensor(num_episodes):
      num_episodes = tf.get_static_value(num_episodes)
    # A data set of the same length, from which cardinalities are computed.
    indices: tf.data.Dataset | None = None
    if num_episodes == tf.data.INFINITE_CARDINALITY:
      indices = tf.data.Dataset.range(1).repeat()
    elif num_episodes not in (None, tf.data.UNKNOWN_CARDINALITY):
      indices = tf.data.Dataset.range(num_episodes)
    self._indices, self._num_episodes = indices, num_episodes

    count = None if indices is None else int(num_episodes)
    make = lambda batches: unbatch(batches, count)
    super().__init__(batches, episode_spec(batches.element_spec), make)

  def cardinality(self):
    if self._indices is None:
      return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
    return self._indices.cardinality()

  @pipelines.do_not_convert
  def take(self, count, name=None):
    limit = tf.convert_to_tensor(count, tf.int64)
    is_taken = lambda batch: (batch.episode < limit) | (limit < 0)
    # A batch may have no episodes, and then the data is read further.
    starts_before_limit = lambda batch: tf.reduce_all(is_taken(batch)[:1])
    batches = number_episodes(self.batches).take_while(starts_before_limit)
    return self._filter(batches, is_taken, 'take', count)

  def skip(self, count, name=None):
    limit = tf.convert_to_tensor(count, tf.int64)
    is_left = lambda batch: (batch.episode >= limit) & (limit >= 0)
    batches = number_episodes(self.batches)
    return self._filter(batches, is_left, 'skip', count)

  def shard(self, num_shards, index, name=None):
    count = tf.convert_to_tensor(num_shards, tf.int64)
    shard = tf.convert_to_tensor(index, tf.int64)
    shard = errors.assert_true(
        shard,
        (shard >= 0) & (shard < count),
        'The index must be in [0, num_shards), but index and num_shards are',
        shard,
        count,
    )
    is_in_shard = lambda batch: batch.episode % count == shard
    batches = number_episodes(self.batches)
    return self._filter(batches, is_in_shard, 'shard', num_shards, index)

  def repeat(self, count=None, name=None):
    return self._derive(self.batches.repeat(count), 'repeat', count)

  def prefetch(self, buffer_size, name=None):
    return EpisodeDataset(self.batches.prefetch(1), self._num_episodes)

  def with_options(self, options, name=None):
    batches = self.batches.with_options(options)
    return EpisodeDataset(batches, self._num_episodes)

  def concatenate(self, dataset, name=None):
    if not isinstance(dataset, EpisodeDataset):
      return super().concatenate(dataset)
    first, second = self.batches, dataset.batches
    if first.element_spec != second.element_spec:
      first, second = raise_faults(first), raise_faults(second)
    try:
      batches = first.concatenate(second)
    except (TypeError, ValueError):  # Their shapes are not compatible.
      return super().concatenate(dataset)
    if dataset._indices is None:
      return EpisodeDataset(batches)
    return self._derive(batches, 'concatenate', dataset._indices)

  def _filter(self, batches, predicate, method, *args) -> 'EpisodeDataset':
    """Returns the episodes of numbered batches that satisfy a predicate."""

    def select(batch):
      batch = batch_lib.filter_episodes(batch, predicate(batch))
      return batch._replace(episode=())

    selected = drop_empty(pipelines.map_elements(batches, select))
    return self._derive(selected, method, *args)

  def _derive(self, batches, method, *args) -> 'EpisodeDataset':
    """Returns a data set with the cardinality that a method results in."""
    if self._indices is None:
      return EpisodeDataset(batches)
    indices = getattr(self._indices, method)(*args)
    return EpisodeDataset(batches, indices.cardinality())


def mark_last_transition_dropped(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Marks batches whose last steps have rewards of dropped transitions.

  A reader drops the last transition of an episode if its next observation is
  not in the data. The mark stays in this process, and is valid for all data
  sets derived from this one.
  """
  batches.rlds2reverb_is_last_transition_dropped = True
  return batches


def is_last_transition_dropped(rlds_data: tf.data.Dataset) -> bool:
  """Returns whether any data set that this one is derived from has the mark."""
  upstream = [rlds_data]
  while upstream:
    dataset = upstream.pop()
    if getattr(dataset, 'rlds2reverb_is_last_transition_dropped', False):
      return True
    if isinstance(dataset, EpisodeDataset):
      upstream.append(dataset.batches)
    upstream += tf_private.inputs_of(dataset)
  return False


def count_removed_steps(
    rlds_data: tf.data.Dataset, counter: StepCounter
) -> tf.data.Dataset:
  """Returns a data set whose transforms count the steps that they remove.

  Counting makes a pipeline stateful, so only conversions with a report do it.

  Args:
    rlds_data: a data set. It is returned unchanged unless it is a result of
      `transform_episodes`.
    counter: records the numbers of steps.
  """
  with_counter = getattr(rlds_data, 'rlds2reverb_with_counter', None)
  return rlds_data if with_counter is None else with_counter(counter)


def batches_of(
    rlds_data: tf.data.Dataset,
    *,
    fields: Iterable[str] | None = None,
    episode_fields: Iterable[str] | None = None,
    with_faults: bool = False,
) -> tf.data.Dataset:
  """Returns the `EpisodeBatch`es of any data set of episodes.

  Nested steps are stacked here, one episode at a time, and short episodes of
  static shape share a batch.

  Args:
    rlds_data: a data set of episodes, whose steps may be nested; or of batches.
    fields: the names of the step fields to read; by default all.
    episode_fields: the names of the other fields to read; by default all.
    with_faults: whether an episode that could not be read becomes a batch with
      a fault. By default it raises an InvalidArgumentError.
  """
  batches = None
  if isinstance(rlds_data.element_spec, batch_lib.EpisodeBatch):
    batches = rlds_data
  elif isinstance(rlds_data, EpisodeDataset):
    batches = rlds_data.batches
  if batches is not None:
    return batches if with_faults else raise_faults(batches)
  spec = rlds_data.element_spec[rlds.STEPS]
  is_nested = isinstance(spec, tf.data.DatasetSpec)
  if is_nested and fields is not None:
    fields = _fields_to_read(spec.element_spec, fields)

  def stack(episode):
    steps = episode[rlds.STEPS]
    if is_nested and fields is not None:
      steps = steps_lib.stack_fields(steps, fields)
    elif is_nested:
      steps = steps_lib.stack_steps(steps)
    if episode_fields is not None:
      episode = {name: episode[name] for name in episode_fields}
    return {**episode, rlds.STEPS: steps}

  return batch_episodes(rlds_data, stack)


def _fields_to_read(
    step_spec: dict[str, Any], fields: Iterable[str]
) -> Iterable[str] | None:
  """Returns the names of the fields of nested steps to read; None for all.

  Dropping a field takes an operation for every step, which costs more than
  copying a small one.
  """
  unused = {
      name: spec for name, spec in step_spec.items() if name not in fields
  }
  is_small = (
      all(map(steps_lib.has_static_shape, tf.nest.flatten(unused)))
      and steps_lib.estimate_step_bytes(unused) <= _UNUSED_BYTES
  )
  return None if is_small else fields


def batch_episodes(
    data: tf.data.Dataset, to_episode: Callable[..., Any]
) -> tf.data.Dataset:
  """Returns batches of episodes. Short ones of static shape share a batch.

  Args:
    data: a data set.
    to_episode: a function of an element that returns an episode with stacked
      steps.
  """

  def split(*element):
    steps, fields = batch_lib.split_steps(to_episode(*element))
    steps_lib.get_lengths(steps)  # Raises if static lengths differ.
    return steps, fields

  pairs = pipelines.map_elements(data, split, tf.data.AUTOTUNE)
  row_bytes = _bytes_of_row(pairs.element_spec)
  count = row_bytes and batch_lib.BATCH_BYTES // (
      _TYPICAL_NUM_STEPS * row_bytes
  )
  if count < 2:
    return pipelines.map_elements(pairs, batch_lib.make_batch)
  return _divide(_ragged_batch(pairs, min(count, _MAX_EPISODES)), row_bytes)


def map_episodes(
    batches: tf.data.Dataset,
    function: Callable[[tf.Tensor, tf.data.Dataset], tf.data.Dataset],
) -> tf.data.Dataset:
  """Maps a function over the episodes of each batch, and batches the results.

  An episode that could not be read keeps its fault. If the function raises an
  error for an episode, the episode becomes a fault with the message of the
  error; to obtain the message, the function is called again for this episode.
  If the new episodes have ragged or unknown shapes, faults and errors are
  raised instead.

  Args:
    batches: the data set of batches.
    function: takes the index of the first episode of a batch, and the data set
      of its episodes; returns the data set of the new episodes, one for each,
      which are stacked. It may need AutoGraph.
  """
  mapped = number_episodes(batches).flat_map(
      pipelines.as_library_code(lambda batch: _map_batch(function, batch))
  )
  if isinstance(mapped.element_spec, batch_lib.EpisodeBatch):
    return mapped
  (_, (rows, _)), _ = mapped.element_spec
  row_bytes = steps_lib.estimate_step_bytes(
      tf.nest.map_structure(
          lambda leaf: tf.TensorSpec(leaf.shape[2:], leaf.dtype), rows
      )
  )
  has_length = any(leaf.shape[1] for leaf in tf.nest.flatten(rows))

  def find_parts(new_batch, is_missing, batch):
    # A batch with a fault becomes one part, the placeholder.
    count = tf.maximum(_num_readable(batch), 1)
    bounds = batch_lib.divide(
        new_batch.row_splits[:, : count + 1], row_bytes, is_missing[:count]
    )
    return pipelines.pair_each(
        tf.data.Dataset.from_tensor_slices(bounds),
        (new_batch, is_missing, batch),
    )

  def cut(bounds, batches):
    new_batch, is_missing, batch = batches
    part = _cut_part(bounds, new_batch)
    is_fault = errors.is_fault(batch.fault)
    is_error = is_missing[bounds[0]] & ~is_fault
    if has_length:  # A placeholder has as many steps as any episode.
      num_steps = tf.where(
          is_fault | is_error, tf.constant(0, tf.int64), part.row_splits[-1]
      )
      part = part._replace(
          steps=tf.nest.map_structure(
              lambda leaf: leaf[:num_steps], part.steps
          ),
          row_splits=tf.minimum(part.row_splits, num_steps),
      )
    fault = errors.Fault(
        tf.cond(
            is_error,
            lambda: _describe_error(
                function, batch_lib.get_episode(bounds[0], batch)
            ),
            lambda: tf.constant(''),
        )
    ).tensors()
    if batch.fault != ():
      fault = errors.choose_fault(is_fault, batch.fault, fault)
    return part._replace(fault=fault)

  new_batches = pipelines.map_elements(mapped, _insert_missing)
  parts = pipelines.flat_map(new_batches, find_parts)
  return pipelines.map_elements(parts, cut)


def _map_batch(function, batch: batch_lib.EpisodeBatch) -> tf.data.Dataset:
  """Maps a function over the episodes of a batch; see `map_episodes`.

  Returns:
    A data set of one batch for each new episode, if these cannot share a batch.
    Otherwise a data set of one element: the ragged batch of the indices and the
    new episodes that did not fail, and of a placeholder of zeros; and `batch`.
  """
  first = tf.reduce_sum(batch.episode[:1])
  count = _num_readable(batch)
  indices = tf.data.Dataset.range(count)
  episodes = indices.map(functools.partial(batch_lib.get_episode, batch=batch))
  pairs = function(first, episodes).map(batch_lib.split_steps)
  if not _bytes_of_row(pairs.element_spec):
    with tf.control_dependencies(_check_no_fault(batch)):
      all_elements = tf.constant(-1, tf.int64)
    return pairs.map(batch_lib.make_batch).take(all_elements)
  # `ignore_errors` drops the index together with its failed episode.
  mapped = tf.data.Dataset.zip((indices, pairs)).ignore_errors()
  placeholder = count, steps_lib.zeros(pairs.element_spec)
  mapped = mapped.concatenate(tf.data.Dataset.from_tensors(placeholder))
  # `ragged_batch` allocates its maximum size, so it is no larger than needed.
  return pipelines.pair_each(_ragged_batch(mapped, count + 1), batch)


def _insert_missing(ragged, batch: batch_lib.EpisodeBatch):
  """Inserts a placeholder for each episode whose mapping failed.

  Args:
    ragged: the ragged batch that `_map_batch` returns.
    batch: the batch before the mapping.

  Returns:
    The new batch, with one more placeholder at its end; which of its episodes
    are placeholders; and `batch`.
  """
  indices, (rows, fields) = ragged
  num_mapped = tf.size(indices, tf.int64) - 1
  count = _num_readable(batch)
  # The row of each episode; for missing ones the placeholder after them.
  source = tf.tensor_scatter_nd_update(
      tf.fill([count + 1], num_mapped),
      indices[:, tf.newaxis],
      tf.range(num_mapped + 1),
  )
  gather = lambda leaf: tf.gather(leaf, source)
  new_batch = tf.cond(
      num_mapped == count,
      lambda: batch_lib.from_ragged(rows, fields),
      lambda: batch_lib.from_ragged(
          *tf.nest.map_structure(gather, (rows, fields))
      ),
  )
  return new_batch, source == num_mapped, batch


def _num_readable(batch: batch_lib.EpisodeBatch) -> tf.Tensor:
  """Returns the number of episodes of a batch, 0 if it has a fault."""
  count = batch_lib.num_episodes(batch)
  return tf.where(errors.is_fault(batch.fault), tf.zeros_like(count), count)


def _describe_error(function: Callable[..., Any], episode: Any) -> tf.Tensor:
  """Returns a sentence about the error that a function raises, string `[]`.

  Args:
    function: the function that `map_episodes` takes.
    episode: an episode.
  """

  def call(*leaves):
    copied = tf.nest.pack_sequence_as(
        episode, list(map(tf.constant, leaves)), expand_composites=True
    )
    data = tf.data.Dataset.from_tensors(copied)
    text = 'It failed, but succeeded when it was called again (is it random?).'
    try:
      # AutoGraph converts nothing in a function that `numpy_function` calls.
      with tf_private.autograph_enabled():
        for _ in function(tf.constant(0, tf.int64), data):
          pass
    except Exception as e:
      name = f'{type(e).__name__}: '
      cause = tf_private.autograph_cause(e)
      if not isinstance(e, tf.errors.OpError):
        text = cause or f'{name}{e}'
      else:
        text = cause.removeprefix(name) or errors.message_of(e)
    return f'Changing the episode failed: {text.rstrip(".")}.'.encode()

  text = tf.numpy_function(
      call,
      tf.nest.flatten(episode, expand_composites=True),
      tf.string,
      stateful=False,
      name=MAP_ERROR,
  )
  return tf.ensure_shape(text, [])


def _bytes_of_row(spec: Any) -> int:
  """Returns the bytes of a step; 0 if episodes cannot share a batch."""
  steps, fields = spec
  leaves = tf.nest.flatten(steps)
  if not leaves or not all(
      isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves
  ):
    return 0
  step = steps_lib.unstack_spec(steps)
  if not all(map(steps_lib.has_static_shape, tf.nest.flatten((step, fields)))):
    return 0
  return steps_lib.estimate_step_bytes(step)


def _ragged_batch(pairs: tf.data.Dataset, count: Any) -> tf.data.Dataset:
  return pairs.ragged_batch(count, row_splits_dtype=tf.int64)


def _divide(ragged: tf.data.Dataset, row_bytes: int) -> tf.data.Dataset:
  """Returns batches of limited size of the elements of `ragged_batch`."""

  def find_parts(batch):
    bounds = batch_lib.divide(batch.row_splits, row_bytes)
    return pipelines.pair_each(
        tf.data.Dataset.from_tensor_slices(bounds), batch
    )

  batches = pipelines.map_elements(ragged, batch_lib.from_ragged)
  parts = pipelines.flat_map(batches, find_parts)
  return pipelines.map_elements(parts, _cut_part)


def _cut_part(
    bounds: tf.Tensor, batch: batch_lib.EpisodeBatch
) -> batch_lib.EpisodeBatch:
  """Returns some episodes of a batch, with the same row splits for all leaves.

  If the fields of an episode differ in length, its length is the maximum.
  """
  part = batch_lib.slice_episodes(bounds, batch)
  return part._replace(row_splits=tf.reduce_max(part.row_splits, 0))


def unbatch(
    batches: tf.data.Dataset, num_episodes: int | None = None
) -> tf.data.Dataset:
  """Returns the episodes in batches, one by one, with stacked `steps`.

  Args:
    batches: a data set of batches.
    num_episodes: the number of their episodes, if known, which becomes the
      cardinality.
  """
  count = () if num_episodes is None else tf.constant(num_episodes, tf.int64)
  is_infinite = num_episodes == tf.data.INFINITE_CARDINALITY
  return _unbatch((batches, count), is_infinite)


@pipelines.cache_pipeline
def _unbatch(inputs, is_infinite: bool) -> tf.data.Dataset:
  batches, count = inputs

  def index_episodes(batch):
    return pipelines.pair_each(
        tf.data.Dataset.range(batch_lib.num_episodes(batch)), batch
    )

  pairs = pipelines.flat_map(raise_faults(batches), index_episodes)
  if isinstance(count, tuple):
    return pipelines.map_elements(pairs, batch_lib.get_episode)
  if is_infinite:
    pairs = pairs.apply(tf.data.experimental.assert_cardinality(count))
    return pipelines.map_elements(pairs, batch_lib.get_episode)
  return pipelines.map_elements(
      with_cardinality(pairs, count),
      lambda unused_index, pair: batch_lib.get_episode(*pair),
  )


def with_cardinality(data: tf.data.Dataset, count: Any) -> tf.data.Dataset:
  """Returns pairs of an index and an element, with a known cardinality.

  If there are fewer or more elements, iterating raises a
  FailedPreconditionError. `assert_cardinality` alone would raise it again for
  each further element, so a pipeline with `ignore_errors` would never end. Here
  every error replaces an element, and the indices run out.

  Args:
    data: a data set.
    count: int64 `[]`: the number of its elements.
  """
  checked = data.apply(tf.data.experimental.assert_cardinality(count))
  # One more index, so that the end, or a surplus element, is detected.
  return tf.data.Dataset.zip((tf.data.Dataset.range(count + 1), checked))


def episode_spec(batch: batch_lib.EpisodeBatch) -> Any:
  """Returns the element spec of `unbatch`, given the spec of batches."""

  def replace_first_dim(*shape):
    return lambda leaf: tf.TensorSpec(
        tf.TensorShape(shape).concatenate(leaf.shape[1:]), leaf.dtype
    )

  fields = rows_lib.map_dense(replace_first_dim(), batch.fields)
  steps = rows_lib.map_dense(replace_first_dim(None), batch.steps)
  return {**fields, rlds.STEPS: steps}


def raise_faults(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns batches without `fault`. A fault raises an error instead."""
  if batches.element_spec.fault == ():
    return batches

  def check(batch):
    with tf.control_dependencies(_check_no_fault(batch)):
      return batch._replace(fault=(), episode=())

  return pipelines.map_elements(number_episodes(batches), check)


def _check_no_fault(batch: batch_lib.EpisodeBatch) -> list[tf.Operation]:
  """Raises the fault of a numbered batch as an InvalidArgumentError."""
  if batch.fault == ():
    return []
  is_fault = errors.is_fault(batch.fault)
  message = tf.cond(
      is_fault,
      lambda: errors.describe_fault(batch.fault, batch.episode[0]),
      lambda: tf.constant(''),
  )
  return errors.check_true(~is_fault, message)


def number_episodes(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Returns batches with the index of every `episode`."""

  def number(index, batch):
    end = index + batch_lib.num_episodes(batch)
    return end, batch._replace(episode=tf.range(index, end))

  return pipelines.scan(batches, tf.constant(0, tf.int64), number)


@pipelines.do_not_convert
def drop_empty(batches: tf.data.Dataset) -> tf.data.Dataset:
  """Drops batches of no episodes."""
  return batches.filter(lambda batch: batch_lib.num_episodes(batch) > 0)
