"""A TF-Agents replay buffer over recorded episodes, without a server."""

import numbers
from typing import Any, Callable, Optional, Tuple, Union

import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import replay_buffer
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import ends
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import prioritized
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
  counts as taken when it comes out of the data set, so what a trainer adds after
  it and that takes batches in advance, such as `prefetch`, is ahead.

  Attributes:
    store: the frames, which other replay buffers can share.
    num_items: the number of items that can be drawn.
  """

  def __init__(
      self,
      rlds_data: Union[tf.data.Dataset, store_lib.FrameStore, files.PathLike],
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
      directory: Optional[files.PathLike] = None,
      policy_info_fn: Optional[specs.PolicyInfoFn] = None,
      rules: Optional[rules_lib.ConversionRules] = None,
      report: Optional[report_lib.ConversionReport] = None,
  ):
    """Loads the episodes.

    Args:
      rlds_data: an RLDS data set; a data set of sequences, `Trajectory`s
        `[L, ...]`, each of which is an item; the folder of frames that were
        prepared with `directory`; or the `store` of another replay buffer.
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
    if isinstance(rlds_data, store_lib.FrameStore):
      self.store = rlds_data
    elif isinstance(rlds_data, tf.data.Dataset):
      items = items_lib.TableItems(
          'items',
          sequence_length=sequence_length,
          stride_length=stride_length,
          end_of_episode=end_of_episode,
          priority=priority,
      )
      self.store = loading.load_frames(
          rlds_data,
          items,
          directory,
          policy_info_fn=policy_info_fn,
          rules=rules,
          report=report,
      )
    else:
      self.store = store_lib.open_store(
          files.expand_local(rlds_data, 'The folder of prepared frames')
      )
    super().__init__(
        self.store.format.spec, self.store.num_frames, stateful_dataset=True
    )
    self._sampler = sampler or samplers.Uniform()
    self._population = population_lib.Population(self.store, top_episodes)
    self._seed = seed
    self._worker = worker_index, num_workers
    # Whether the sampler suits the data shows here, and not when training
    # begins.
    self._draws = []
    self._sampler.bind(self._population, self._share(0))
    self._iterators = {}

  @property
  def num_items(self) -> int:
    return self._population.num_items

  def update_priorities(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
    """Updates the priorities of items that were sampled.

    Args:
      keys: the `key` of the `SampleInfo` of a batch, uint64 `[B, L]` or `[B]`.
      priorities: the new priorities, numbers from 0 up, `[B]`.

    Raises:
      ValueError: if the sampler is not `Prioritized`.
      InvalidArgumentError: if a priority is negative, NaN or infinite.
    """
    self._prioritized().update(
        _items_of(keys), tf.cast(priorities, tf.float64)
    )

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
    stream = len(self._draws)
    share = self._share(stream)
    draw = self._sampler.bind(self._population, share)
    self._draws.append(draw)
    position = tf.Variable(0, dtype=tf.int64, trainable=False)
    setattr(self, f'_position_{stream}', position)
    own = samplers.share_of(self.num_items, share)
    batch_size = sample_batch_size or 1
    in_advance = not self._sampler.is_synchronous
    group = 1
    if in_advance and not self._sampler.last_batch_is_short(own, batch_size):
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
    key = sample_batch_size, num_steps
    if key not in self._iterators:
      self._iterators[key] = iter(
          self._as_dataset(sample_batch_size, num_steps, None, None)
      )
    frames, info = next(self._iterators[key])
    if time_stacked:
      return frames, info
    axis = 0 if sample_batch_size is None else 1
    parts = zip(*[tf.unstack(leaf, axis=axis) for leaf in tf.nest.flatten(frames)])
    return tuple(
        tf.nest.pack_sequence_as(frames, list(part)) for part in parts
    ), info

  def _num_frames(self):
    return self.store.num_frames

  def _gather_all(self):
    runs = self.store.runs
    begins = np.cumsum(runs.num_rows) - runs.num_rows
    rows = np.repeat(runs.first_row - begins, runs.num_rows)
    rows += np.arange(len(rows))
    return tf.nest.map_structure(
        lambda leaf: leaf[tf.newaxis], self.store.read(tf.constant(rows))
    )

  def _add_batch(self, items):
    raise NotImplementedError(
        'These are recorded episodes, to which nothing is added.'
    )

  def _clear(self):
    raise NotImplementedError(
        'These are recorded episodes, which are not cleared.'
    )


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
