"""A TF-Agents replay buffer over recorded episodes, without a server."""

import functools
import numbers
from typing import Any, Optional, Tuple, Union

import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import replay_buffer
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import ends
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import prioritized
from rlds2reverb.replay.local import ring
from rlds2reverb.replay.local import samplers
from rlds2reverb.replay.local import sampling
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs


class EpisodesReplayBuffer(replay_buffer.ReplayBuffer):
  """Samples items of recorded episodes, in the process that trains.

  It takes the place of a `ReverbReplayBuffer` whose table was filled with the
  same items, and is many times faster:

      replay_buffer = rlds2reverb.EpisodesReplayBuffer(rlds_data)
      dataset = replay_buffer.as_dataset(sample_batch_size=256, num_steps=2)
      frames, info = next(iter(dataset))  # Trajectory [256, 2, ...]

  Every frame is stored once, in memory or, with `directory`, in files that are
  mapped into memory and read as they are used. Strings, such as encoded images,
  stay as they are; `transforms.decode_images` decodes those of a batch.

  A data set that `as_dataset` returns is a pure function of the seed and of the
  number of batches so far, which the replay buffer keeps in a variable. So a
  checkpoint resumes sampling with the very next batch:

      checkpoint = tf.train.Checkpoint(replay_buffer=replay_buffer, ...)

  Restore it before the first batch is taken. The first data set of the new
  process goes on where the first one of the old process was, and so on. A batch
  counts as taken when it comes out of the data set. So whatever takes batches
  in advance, such as a `prefetch` of the trainer's own, is ahead.

  Attributes:
    store: the frames, which other replay buffers can share.
    num_items: the number of items that can be drawn.
  """

  def __init__(
      self,
      rlds_data: Union[
          tf.data.Dataset,
          store_lib.FrameStore,
          files.PathLike,
          trajectory.Trajectory,
      ],
      sequence_length: Optional[int] = 2,
      stride_length: int = 1,
      *,
      end_of_episode: Union[str, ends.EndOfEpisode] = ends.EndOfEpisode.DROP,
      priority: items_lib.Priority = 1.0,
      sampler: Optional[samplers.Sampler] = None,
      top_episodes: Optional[int] = None,
      seed: int = 0,
      num_workers: int = 1,
      worker_index: int = 0,
      capacity: Optional[int] = None,
      directory: Optional[files.PathLike] = None,
      policy_info_fn: Optional[specs.PolicyInfoFn] = None,
      rules: Optional[rules_lib.ConversionRules] = None,
      report: Optional[report_lib.ConversionReport] = None,
  ):
    """Loads the episodes.

    Args:
      rlds_data: an RLDS data set; a data set of sequences, `Trajectory`s
        `[L, ...]`, each of which is an item; the folder of frames that were
        prepared with `directory`; the `store` of another replay buffer; or,
        with `capacity`, the spec of a frame, for a replay buffer that is empty.
      sequence_length: the number of frames of an item, or None for items that
        are whole episodes. This and the next three arguments are those of
        `TableItems`. They are ignored where the frames are stored already.
      stride_length: the number of frames between the starts of one item and the
        next.
      end_of_episode: what becomes of the last frames of an episode.
      priority: the priority of every item, or a function of its `Trajectory`.
      sampler: which items make a batch. The default is `Uniform()`.
      top_episodes: how many episodes to draw from: those with the highest
        undiscounted returns. Of equal ones the first are kept. By default, all.
      seed: a number from 0 up; the same one gives the same batches.
      num_workers: how many processes train on the same data. Each draws for
        itself; of an epoch without replacement each draws its share.
      worker_index: which of them this one is, from 0.
      capacity: the largest number of frames, for a replay buffer to which an
        agent's own experience is appended with `add_batch`. The oldest frames
        make room for the newest. By default nothing can be appended.
      directory: a folder on the local disk that keeps the frames, so that they
        need not fit into memory, and are not converted again the next time. A
        folder that holds frames of other data is refused.
      policy_info_fn: see `convert_rlds_to_trajectories`.
      rules: the rules of the conversion. The default is `ConversionRules()`.
      report: a new `ConversionReport` to fill. It stays empty where the frames
        are in `directory` already.

    Raises:
      ValueError: if no item fits into any episode, if a field has no fixed
        shape, or if an argument is not valid.
      FileExistsError: if `directory` holds something else.
      InvalidArgumentError: if an episode is invalid.
    """
    _check_worker(num_workers, worker_index)
    if not isinstance(seed, numbers.Integral) or seed < 0:
      raise ValueError(f'seed must be an integer from 0 up, but is {seed!r}.')
    if top_episodes is not None:
      checks.check_positive('top_episodes', top_episodes)
    self._sampler: samplers.Sampler = sampler or samplers.Uniform()
    items = items_lib.TableItems(
        'items',
        sequence_length=sequence_length,
        stride_length=stride_length,
        end_of_episode=end_of_episode,
        priority=priority,
    )
    kwargs = dict(policy_info_fn=policy_info_fn, rules=rules, report=report)
    self._population: Any
    if capacity is not None:
      self._check_appendable(capacity, directory, top_episodes)
      self._population = _fill(
          rlds_data, items, capacity, self._sampler, kwargs
      )
      self.store = self._population.store
    else:
      self.store = _store_of(rlds_data, items, directory, kwargs)
      self._population = population_lib.Population(self.store, top_episodes)
      capacity = self.store.num_frames
    super().__init__(self.store.format.spec, capacity, stateful_dataset=True)
    self._seed: int = seed
    self._worker: Tuple[int, int] = worker_index, num_workers
    # How many batches of each data set have come out.
    self._positions = []
    # Whether the sampler suits the data shows here, and not when training
    # begins.
    self._sampler.bind(self._population, self._share(0))
    # Not a dictionary, which would become part of a checkpoint.
    self._iterator = functools.lru_cache(maxsize=None)(
        lambda batch_size, num_steps: iter(
            self._as_dataset(batch_size, num_steps, None, None)
        )
    )

  @property
  def num_items(self) -> int:
    return self._population.num_items

  def update_priorities(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
    """Updates the priorities of items that were sampled.

    Args:
      keys: the `key` of the `SampleInfo` of a batch, uint64 `[B, L]` or `[B]`.
      priorities: the new priorities, numbers from 0 up, `[B]`.

    Raises:
      ValueError: if the sampler is not `Prioritized`, or if there is not one
        priority for each key.
      InvalidArgumentError: if a priority is negative, NaN or infinite, or if
        there never was an item of such a key. Nothing is changed then.
    """
    items = _items_of(keys)
    priorities = tf.cast(priorities, tf.float64)
    if not items.shape.is_compatible_with(priorities.shape):
      raise ValueError(
          f'There must be a priority for each of the items {items.shape}, but'
          f' the priorities have the shape {priorities.shape}.'
      )
    self._prioritized().update(items, priorities)

  def importance_weights(self, keys: tf.Tensor, beta: float) -> tf.Tensor:
    """Returns the importance weights of items; see `Prioritized`.

    Args:
      keys: the `key` of the `SampleInfo` of a batch, uint64 `[B, L]` or `[B]`.
      beta: how much of the bias is corrected: 0 nothing, 1 all.

    Returns:
      float32 `[B]`.

    Raises:
      ValueError: if the sampler is not `Prioritized`.
    """
    return self._prioritized().importance_weights(_items_of(keys), beta)

  @property
  def _can_append(self) -> bool:
    return isinstance(self._population, ring.FrameRing)

  def _check_appendable(self, capacity, directory, top_episodes):
    checks.check_positive('capacity', capacity)
    if directory is not None or top_episodes is not None:
      raise ValueError(
          'A replay buffer with a capacity changes, so it has no directory and'
          ' no top_episodes. Keep recorded episodes in a replay buffer of their'
          ' own, and mix the batches of both.'
      )
    if not isinstance(
        self._sampler, (samplers.Uniform, prioritized.Prioritized)
    ):
      raise ValueError(
          f'{self._sampler} is for episodes that are all there before, and a'
          ' replay buffer with a capacity changes. Use Uniform() or'
          ' Prioritized().'
      )

  def _prioritized(self) -> prioritized.Prioritized:
    if not isinstance(self._sampler, prioritized.Prioritized):
      raise ValueError(
          'Only a Prioritized sampler has priorities that change, and this one'
          f' is {self._sampler}. Make the replay buffer with'
          ' sampler=Prioritized().'
      )
    return self._sampler

  def _share(self, stream: int) -> samplers.Share:
    return samplers.Share((self._seed, stream), *self._worker)

  def _as_dataset(
      self,
      sample_batch_size,
      num_steps,
      sequence_preprocess_fn,
      num_parallel_calls,
  ):
    del num_parallel_calls  # The rows of a batch are gathered together.
    self._check_batches(sample_batch_size, num_steps)
    share = self._share(len(self._positions))
    draw = self._sampler.bind(self._population, share)
    position = tf.Variable(0, dtype=tf.int64, trainable=False)
    self._positions.append(position)
    batch_size = sample_batch_size or 1
    in_advance = not self._sampler.is_synchronous and not self._can_append
    group = 1
    if in_advance and not self._sampler.last_batch_is_short(
        self._population, share, batch_size
    ):
      group = sampling.batches_per_group(self.store, batch_size)
    return sampling.sample(
        self.store,
        self._population,
        draw,
        batch_size=sample_batch_size,
        batches_per_group=group,
        position=position,
        in_advance=in_advance,
        sequence_fn=sequence_preprocess_fn,
    )

  def _single_deterministic_pass_dataset(
      self,
      sample_batch_size,
      num_steps,
      sequence_preprocess_fn,
      num_parallel_calls,
  ):
    del num_parallel_calls
    self._check_batches(sample_batch_size, num_steps)
    share = self._share(0)
    return sampling.sample(
        self.store,
        self._population,
        samplers.in_order(self._population, share),
        batch_size=sample_batch_size,
        num_groups=samplers.num_batches_of_pass(
            self.num_items, share, sample_batch_size or 1
        ),
        in_advance=not self._can_append,
        sequence_fn=sequence_preprocess_fn,
    )

  def _check_batches(self, batch_size, num_steps):
    length = self.store.form.sequence_length
    if batch_size is not None:
      checks.check_positive('sample_batch_size', batch_size)
      if length is None:
        raise ValueError(
            'The items are whole episodes, of different lengths, which do not'
            ' make a batch: leave sample_batch_size out, and use'
            ' tf.data.Dataset.padded_batch.'
        )
    if num_steps is not None and num_steps != length:
      raise ValueError(
          f'num_steps is {num_steps}, but the items have'
          f' {"all frames of an episode" if length is None else length}. Make'
          f' the replay buffer with sequence_length={num_steps}.'
      )

  def _get_next(self, sample_batch_size, num_steps, time_stacked):
    frames, info = next(self._iterator(sample_batch_size, num_steps))
    if time_stacked:
      return frames, info
    axis = 0 if sample_batch_size is None else 1
    leaves = [tf.unstack(leaf, axis=axis) for leaf in tf.nest.flatten(frames)]
    steps = [tf.nest.pack_sequence_as(frames, step) for step in zip(*leaves)]
    return tuple(steps), info

  def _num_frames(self):
    return self._population.num_frames

  def _gather_all(self):
    rows = tf.constant(self._population.all_rows())
    return tf.nest.map_structure(
        lambda leaf: leaf[tf.newaxis], self.store.read(rows)
    )

  def _add_batch(self, items):
    self._check_can_append()
    checked = tf.nest.map_structure(_check_frame, items, self.data_spec)
    if tf.executing_eagerly():
      self._population.append(tf.nest.map_structure(np.asarray, checked))
      return None
    return tf.py_function(
        lambda *leaves: self._population.append(
            tf.nest.pack_sequence_as(
                self.data_spec, [leaf.numpy() for leaf in leaves]
            )
        ),
        tf.nest.flatten(checked),
        [],
    )

  def _clear(self):
    self._check_can_append()
    self._population.clear()

  def _check_can_append(self):
    if not self._can_append:
      raise ValueError(
          'This replay buffer has recorded episodes, and does not change. Give'
          ' it a capacity, so that frames can be appended.'
      )


def _fill(rlds_data, items, capacity, sampler, kwargs) -> ring.FrameRing:
  """Returns a ring, with the frames of a data set if there is one."""
  source = None
  spec = rlds_data
  if isinstance(rlds_data, tf.data.Dataset):
    source = frames_lib.make_frame_source(rlds_data, items, **kwargs)
    if source.of_sequences:
      raise ValueError(
          'Sequences do not say which episode they are of, so no frames can be'
          ' appended to them. Give the RLDS data set that they were made from.'
      )
    [items] = source.tables
    spec = source.spec
  elif not isinstance(rlds_data, trajectory.Trajectory):
    raise ValueError(
        'With a capacity, rlds_data must be a data set, or the spec of a frame.'
    )
  frames = ring.FrameRing(spec, items, capacity)
  if isinstance(sampler, prioritized.Prioritized):
    sampler.attach(frames, np.zeros(frames.num_slots))
    frames.listener = sampler
  if source is not None:
    frames.load(source.frames())
    loading.check_has_items(
        frames.num_frames, frames.num_items, items.sequence_length
    )
  return frames


def _store_of(rlds_data, items, directory, kwargs) -> store_lib.FrameStore:
  """Returns the frames of a data set, or those that are stored already."""
  if isinstance(rlds_data, store_lib.FrameStore):
    return rlds_data
  if isinstance(rlds_data, tf.data.Dataset):
    return loading.load_frames(rlds_data, items, directory, **kwargs)
  if isinstance(rlds_data, trajectory.Trajectory):
    raise ValueError(
        'A replay buffer that begins empty needs a capacity, which says how'
        ' many frames can be appended.'
    )
  return store_lib.open_store(
      files.expand_local(rlds_data, 'The folder of prepared frames')
  )


def _check_frame(leaf: Any, spec: tf.TensorSpec) -> Any:
  """Returns a leaf of frames `[1, ...]`, or raises a ValueError."""
  if not tf.is_tensor(leaf):
    leaf = np.asarray(leaf)
  dtype, shape = tf.as_dtype(leaf.dtype), tf.TensorShape(leaf.shape)
  if dtype != spec.dtype or not shape.is_compatible_with([1, *spec.shape]):
    raise ValueError(
        f'Frames are appended one by one, [1, ...], of {spec}, but this leaf is'
        f' {dtype.name} {shape}.'
    )
  return leaf


def _items_of(keys: tf.Tensor) -> tf.Tensor:
  keys = tf.convert_to_tensor(keys)
  return tf.cast(keys[:, 0] if keys.shape.rank == 2 else keys, tf.int64)


def _check_worker(num_workers: int, worker_index: int) -> None:
  checks.check_positive('num_workers', num_workers)
  if not 0 <= worker_index < num_workers:
    raise ValueError(
        f'worker_index must be from 0 to {num_workers - 1}, since there are'
        f' {num_workers} workers, but is {worker_index}.'
    )
