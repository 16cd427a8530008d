"""TF-Agents replay buffers of recorded episodes, without a server."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import replay_buffer

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import tf_private
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import base
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import batches as frame_batches
from rlds2reverb.replay.local import dataset
from rlds2reverb.replay.local import loading
from rlds2reverb.store import items as store_items
from rlds2reverb.store import samplers
from rlds2reverb.store import sum_tree
from rlds2reverb.trajectories import options as options_lib


class _SavedPriorities(tf.train.experimental.PythonState):
  """The priorities of a sampler, for a checkpoint."""

  def __init__(self, sampler: sum_tree.Prioritized):
    self._sampler = sampler

  def serialize(self) -> bytes:
    return self._sampler.serialize()

  def deserialize(self, value: bytes) -> None:
    self._sampler.deserialize(value)


class LocalReplayBuffer(base.SampledReplayBuffer, replay_buffer.ReplayBuffer):
  """Samples items in the process that trains.

  It replaces a `ReverbReplayBuffer` whose table was filled with the same items,
  and is many times faster. There are three ways to sample, and a new replay
  buffer draws the same batches in each of them:

      dataset = replay_buffer.as_dataset(sample_batch_size=256, num_steps=2)
      for frames, info in dataset:                       # tensors
      for frames, info in replay_buffer.batches(256):    # NumPy arrays
      frames, info = replay_buffer.get_next(256)         # one batch

  `frames` are a `Trajectory` `[256, 2, ...]`. Strings, such as encoded images,
  are unchanged; `transforms.decode_images` decodes the images of a batch.

  The draws of an iterator are a pure function of the seed and of the number of
  batches so far, so a checkpoint resumes sampling with the very next batch:

      checkpoint = tf.train.Checkpoint(replay_buffer=replay_buffer, ...)

  Restore it before the first batch is taken: iterators from before a restore
  continue where they are, and no longer count. Two data sets, and two iterators
  of one, draw independently; `get_next` has a data set for each combination of
  its arguments. An iterator that is made after another has ended continues at
  its position.
  In a new process, the first iterator of the first data set continues at the
  position of the first iterator in the old process, and so on. A batch counts
  when it comes out of the data set. If batches are prefetched, for example by
  `tf.distribute` or by the trainer, call `seek` after the restore.

  Several threads may add frames, sample batches and update priorities
  concurrently, each with its own iterator. All frames of a batch existed at the
  same time. Updates of items that no longer exist are ignored.

  Attributes:
    store: the frames.
    batch_size: the number of environments that append frames, or 1.
  """

  batch_size = 1

  def __init__(
      self,
      items: Any,
      store: Any,
      capacity: int,
      sampler: samplers.Sampler | None,
      shard: samplers.Shard,
  ):
    shard.check()
    # TF-Agents returns a stateful data set as it is.
    super().__init__(store.spec, capacity, stateful_dataset=True)
    self.store = store
    self._items: Any = items
    self._sampler: samplers.Sampler = sampler or samplers.Uniform()
    self._shard = shard
    # Updates, appended frames and batches of a graph come in its order.
    self._order = dataset.CallOrder()
    # A sampler that does not suit the data fails here, not when training
    # begins.
    self._sampler.bind(items, shard)
    # `tf.train.Checkpoint` saves `_position` and `_priorities` by their names.
    self._position: dataset.SamplingState = dataset.SamplingState(
        {
            'seed': int(shard.seed),
            'worker': [shard.rank, shard.world_size],
            'sampler': self._sampler.identity(),
            'data': store.fingerprint,
            'items': 0 if items.changes else items.num_items,
        }
    )
    if isinstance(self._sampler, sum_tree.Prioritized):
      self._priorities = _SavedPriorities(self._sampler)

  @property
  def num_items(self) -> int:
    """The number of items that can be drawn."""
    return self._items.num_items

  def batches(
      self, sample_batch_size: int | None = None, *, stream: int = 0
  ) -> frame_batches.FrameBatches:
    """Returns batches of NumPy arrays by their indices, without TensorFlow.

    Stream 0 has the batches of the first data set's first iterator.

    Args:
      sample_batch_size: the number of items `B` of a batch; None for items.
      stream: a number from 0 up; each stream has independent random draws.
    """
    checks.check_not_negative('stream', stream)
    return self._batches(sample_batch_size, None).of_stream(0, stream)

  def seek(self, index: int) -> None:
    """Makes later iterators begin at a batch.

    For trainers that prefetch batches, such as `tf.distribute`: a checkpoint
    counts prefetched batches as seen. After the restore:

        replay_buffer.seek(int(train_step) * batches_per_step)

    Args:
      index: the index of the batch at which the first iterator of each data
        set continues.
    """
    checks.check_not_negative('index', index)
    self._position.seek(index)

  def update_priorities(self, keys: Any, priorities: Any) -> None:
    """Updates the priorities of items that were sampled.

    They count from the next batch on. It works eagerly and in a `tf.function`.

    Args:
      keys: the `key` of the `SampleInfo` of a batch, uint64 `[B, L]` or `[B]`.
      priorities: the new priorities, numbers from 0 up, `[B]`.

    Raises:
      ValueError: if the sampler is not `Prioritized`; or, in a graph an
        InvalidArgumentError, if there is not one priority for each key.
      InvalidArgumentError: if a priority is negative, NaN or infinite, or if
        no item ever had such a key. Nothing is changed then.
    """
    self._prioritized()
    try:
      self._call('_update', [keys, priorities])
    except store_items.SamplingError as e:
      # In a graph, TensorFlow raises the same error.
      raise tf.errors.InvalidArgumentError(None, None, str(e)) from e

  def _update(self, keys, priorities):
    if priorities.shape != keys.shape[:1]:
      raise ValueError(
          f'There must be a priority for each of the items {keys.shape[:1]},'
          f' but the priorities have the shape {priorities.shape}.'
      )
    items = keys[:, 0] if keys.ndim == 2 else keys
    self._prioritized().update(
        items.astype(np.int64), priorities.astype(np.float64)
    )

  def _importance_arguments(self, sample_info, normalization):
    sampler = self._prioritized()
    if normalization != 'table':
      return {}
    # An item of the batch may have had a lower priority than any item has now.
    min_priority = self._call(
        '_min_priority', [sample_info.priority], tf.float64
    )
    return {
        'min_priority': tf.reshape(min_priority, []),
        'priority_exponent': sampler.alpha,
    }

  def _min_priority(self, priorities):
    return min(self._prioritized().min_priority(), np.min(priorities))

  def close(self) -> None:
    """Does nothing here: there is no server to stop."""

  def _call(self, method: str, args: Sequence[Any], dtypes: Any = ()) -> Any:
    """Calls a method that takes arrays, eagerly or as an operation of a graph.

    Args:
      method: the name of the method.
      args: arrays, or tensors.
      dtypes: the dtypes of the results, or the dtype of the result.
    """
    if tf.executing_eagerly():
      return getattr(self, method)(*map(np.asarray, args))
    function = pipelines.weak_method(self, method)
    return self._order.call(function, args, dtypes)

  def _prioritized(self) -> sum_tree.Prioritized:
    if not isinstance(self._sampler, sum_tree.Prioritized):
      raise ValueError(
          'Only a Prioritized sampler has priorities that change, and this one'
          f' is {self._sampler}. Make the replay buffer with'
          ' sampler=Prioritized().'
      )
    return self._sampler

  # The rows of a batch are read together, whatever `num_parallel_calls` is.
  def _as_dataset(
      self, sample_batch_size, num_steps, sequence_preprocess_fn, **unused
  ):
    batches = self._batches(sample_batch_size, num_steps)
    streams = dataset.Streams(batches, self._order)
    batch_dataset = dataset.make_dataset(streams, sequence_preprocess_fn)
    # A data set that raised an error must not count: later data sets would draw
    # other batches, and a checkpoint would restore another position.
    self._position.add(streams)
    return batch_dataset

  def _single_deterministic_pass_dataset(
      self, sample_batch_size, num_steps, sequence_preprocess_fn, **unused
  ):
    batches = self._batches(sample_batch_size, num_steps, samplers.InOrder())
    streams = dataset.Streams(batches, self._order, resumes=False)
    return dataset.make_dataset(streams, sequence_preprocess_fn)

  def _batches(
      self, batch_size, num_steps, sampler=None
  ) -> frame_batches.FrameBatches:
    length = self._items.length
    if batch_size is not None:
      checks.check_positive('sample_batch_size', batch_size)
      if length is None:
        raise ValueError(
            'The items are complete episodes, of different lengths, which do'
            ' not make a batch: leave sample_batch_size out, and use'
            ' tf.data.Dataset.padded_batch.'
        )
    if num_steps is not None and num_steps != length:
      raise ValueError(
          f'num_steps is {num_steps}, but the items have'
          f' {"all frames of an episode" if length is None else length}. Make'
          f' the replay buffer with Windows({num_steps}), such as'
          f' open_replay_buffer(data, rlds2reverb.Windows({num_steps})).'
      )
    return frame_batches.FrameBatches(
        self.store,
        self._items,
        sampler or self._sampler,
        self._shard,
        batch_size,
        str(self._position.identity),
    )

  def _next_batch(self, *size):
    datasets, iterators = self._position.datasets, self._position.iterators
    if size not in iterators:
      with tf.init_scope():
        if size not in datasets:
          datasets[size] = self._as_dataset(*size, None)
        iterators[size] = iter(datasets[size])
    return next(iterators[size])

  def _num_frames(self):
    return self.store.num_frames

  def gather_all(self):
    """Returns all frames, in the order of the data, `[1, N, ...]`.

    Frames of an `AppendableReplayBuffer` are `[E, N, ...]`, by environment.
    """
    return self._gather_all()

  def _gather_all(self):
    rows = self.store.rows
    with self._items.lock:
      places = self.store.all_rows().reshape([self.batch_size, -1])
      leaves = rows.with_strings(rows.take(places))
    return tf.nest.pack_sequence_as(
        self.data_spec, [tf.convert_to_tensor(leaf) for leaf in leaves]
    )


class EpisodesReplayBuffer(LocalReplayBuffer):
  """Samples items of recorded episodes, in the process that trains.

      replay_buffer = rlds2reverb.EpisodesReplayBuffer(rlds_data)
      dataset = replay_buffer.as_dataset(sample_batch_size=256, num_steps=2)
      frames, info = next(iter(dataset))  # Trajectory [256, 2, ...]

  Every frame is stored once, in memory or, with `directory`, in files that are
  mapped into memory and read lazily. See `LocalReplayBuffer` for batches and
  for checkpoints.

  Attributes:
    store: the frames, which other replay buffers can share.
    num_items: the number of items that can be drawn.
  """

  @options_lib.takes_options
  def __init__(
      self,
      rlds_data: tf.data.Dataset | loading.FrameStore | files.PathLike,
      windows: windows_lib.Windows | None = windows_lib.Windows(2),
      *,
      priority: items_lib.Priority = 1.0,
      sampler: samplers.Sampler | None = None,
      seed: int = 0,
      process: tuple[int, int] = (0, 1),
      directory: files.PathLike | None = None,
      options: options_lib.ConversionOptions | None = None,
  ):
    """Loads the episodes.

    Args:
      rlds_data: an RLDS data set; a data set of sequences, `Trajectory`s
        `[L, ...]`, each of which is an item; the folder of frames that were
        prepared with `directory`; or the `store` of another replay buffer, or
        its `store.top_episodes(10)`.
      windows: the windows of frames that are items, or None for one item per
        episode. `windows` and `priority` are arguments of `TableItems`. Both
        are ignored if the frames are stored already.
      priority: the priority of every item, or a function of its `Trajectory`.
      sampler: draws the items of a batch. The default is `Uniform()`.
      seed: a number from 0 up; the same one gives the same batches.
      process: `(rank, world_size)` of this process among the processes that
        train on the same data. Each has independent random draws; without
        replacement, each draws its share of an epoch.
      directory: a folder on the local disk for the frames, so that they need
        not fit into memory, and are converted only once. A folder with frames
        of other data is an error. If several processes need the folder, one
        prepares the frames and the others wait.
      options: how the data is converted. The report stays empty if the frames
        are in `directory` already.

    Raises:
      ValueError: if no item fits into any episode, if a field has no fixed
        shape, or if an argument is not valid.
      FileExistsError: if `directory` holds something else.
      OSError: if `directory` is damaged.
      InvalidArgumentError: if an episode is invalid.
    """
    table_items = items_lib.TableItems('items', windows, priority=priority)
    if isinstance(rlds_data, loading.FrameStore):
      store = rlds_data
    elif isinstance(rlds_data, tf.data.Dataset):
      with tf_private.name_damaged_files(rlds_data):
        store = loading.load_frames(rlds_data, table_items, directory, options)
    else:
      store = loading.open_frames(rlds_data)
    rank, world_size = process
    super().__init__(
        store.make_items(),
        store,
        store.num_frames,
        sampler,
        samplers.Shard(seed, rank=rank, world_size=world_size),
    )

  def _add_batch(self, items):
    raise ValueError(
        'This replay buffer has recorded episodes, and does not change. Frames'
        ' can be appended to an AppendableReplayBuffer.'
    )

  def _clear(self):
    self._add_batch(None)
