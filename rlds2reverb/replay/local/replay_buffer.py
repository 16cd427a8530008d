"""A TF-Agents replay buffer of recorded episodes, without a server."""

from typing import Optional, Tuple, Union

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import pipelines
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import arranging
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import local_buffer
from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import prepared
from rlds2reverb.replay.local import samplers
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.trajectories import options as options_lib


class EpisodesReplayBuffer(local_buffer.LocalReplayBuffer):
  """Samples items of recorded episodes, in the process that trains.

      replay_buffer = rlds2reverb.EpisodesReplayBuffer(rlds_data)
      dataset = replay_buffer.as_dataset(sample_batch_size=256, num_steps=2)
      frames, info = next(iter(dataset))  # Trajectory [256, 2, ...]

  Every frame is stored once, in memory or, with `directory`, in files that are
  mapped into memory and read as they are used. See `LocalReplayBuffer` for what
  batches are and how they go on after a restart.

  Attributes:
    store: the frames, which other replay buffers can share.
    num_items: the number of items that can be drawn.
  """

  @options_lib.takes_options
  def __init__(
      self,
      rlds_data: Union[
          tf.data.Dataset,
          store_lib.FrameStore,
          files.PathLike,
          trajectory.Trajectory,
      ],
      windows: Optional[windows_lib.Windows] = windows_lib.Windows(2),
      *,
      priority: items_lib.Priority = 1.0,
      sampler: Optional[samplers.Sampler] = None,
      seed: int = 0,
      process: Tuple[int, int] = (0, 1),
      directory: Optional[files.PathLike] = None,
      options: Optional[options_lib.ConversionOptions] = None,
  ):
    """Loads the episodes.

    Args:
      rlds_data: an RLDS data set; a data set of sequences, `Trajectory`s
        `[L, ...]`, each of which is an item; the folder of frames that were
        prepared with `directory`; or the `store` of another replay buffer,
        whole or `store.top_episodes(10)` alone.
      windows: which windows of frames are items, or None for items that are
        whole episodes. This and `priority` are those of `TableItems`. They are
        ignored if the frames are stored already.
      priority: the priority of every item, or a function of its `Trajectory`.
      sampler: which items make a batch. The default is `Uniform()`.
      seed: a number from 0 up; the same one gives the same batches.
      process: `(rank, world_size)`: which process this is, and how many train
        on the same data. Each has random draws of its own; without replacement,
        each draws its share of an epoch.
      directory: a folder on the local disk that keeps the frames, so that they
        need not fit into memory, and are not converted again the next time. A
        folder that holds frames of other data is refused.
      options: how the data is converted. Their report stays empty where the
        frames are in `directory` already.

    Raises:
      ValueError: if no item fits into any episode, if a field has no fixed
        shape, or if an argument is not valid.
      FileExistsError: if `directory` holds something else.
      OSError: if `directory` is damaged.
      InvalidArgumentError: if an episode is invalid.
    """
    items = items_lib.TableItems('items', windows, priority=priority)
    store = _store_of(rlds_data, items, directory, options)
    population = population_lib.Population(store)
    super().__init__(
        population,
        store,
        store.num_frames,
        sampler,
        samplers.Process(seed, rank=process[0], world_size=process[1]),
    )

  def _add_batch(self, items):
    raise ValueError(
        'This replay buffer has recorded episodes, and does not change. Frames'
        ' can be appended to an AppendableReplayBuffer.'
    )

  def _clear(self):
    self._add_batch(None)


def _store_of(rlds_data, items, directory, options) -> store_lib.FrameStore:
  """Returns the frames of a data set, or frames that are stored already."""
  if isinstance(rlds_data, store_lib.FrameStore):
    return rlds_data
  if isinstance(rlds_data, tf.data.Dataset):
    return load_frames(rlds_data, items, directory, options)
  if isinstance(rlds_data, trajectory.Trajectory):
    raise ValueError(
        'A replay buffer that begins empty is an AppendableReplayBuffer, with a'
        ' capacity.'
    )
  return prepared.open_store(
      files.expand_local(rlds_data, 'The folder of prepared frames')
  )


def load_frames(
    data: tf.data.Dataset,
    items: items_lib.TableItems,
    directory: Optional[files.PathLike] = None,
    options: Optional[options_lib.ConversionOptions] = None,
) -> store_lib.FrameStore:
  """Reads a data set once, and stores its frames.

  Args:
    data: an RLDS data set; or a data set of sequences, see
      `frames.make_frame_source`.
    items: which items there will be.
    directory: a folder on the local disk that keeps the frames. If it holds
      them already, they are not read again. By default they are in memory.
    options: how the data is converted.

  Raises:
    ValueError: if there are no items, or an argument or the data is not valid.
    FileExistsError: if `directory` holds something else, or if it cannot be
      known whether it is the same.
    InvalidArgumentError: if an episode is invalid. Nothing is kept then.
  """
  source = frames_lib.make_frame_source(data, items, options)
  if directory is None:
    return _write(source, None, None)
  directory = files.expand_local(directory, 'The folder of prepared frames')
  fingerprint, problem = _fingerprint(data, items, source.options)
  whole.recover_interrupted_write(directory)
  marker = prepared.read_marker(directory)
  if marker is not None:
    if fingerprint is not None and marker['made_from'] == fingerprint:
      logging.info('Using the frames prepared in %s.', directory)
      return prepared.open_store(directory)
    raise FileExistsError(
        f'{directory} holds '
        + (
            'frames of other data or with other items, or of files that have'
            ' changed since.'
            if fingerprint is not None
            else 'frames of which it cannot be known whether they are these:'
            f' {problem}. Use them as they are: give the directory in place of'
            ' the data.'
        )
        + ' Remove it, or choose another directory.'
    )
  with whole.new_folder(directory, [prepared.MARKER]) as folder:
    _write(source, folder, fingerprint)
  return prepared.open_store(directory)


def _fingerprint(data, items, options) -> Tuple[Optional[str], str]:
  """Returns a fingerprint of the frames, or None and why there is none."""
  pipeline, problem = pipelines.fingerprint(data)
  if pipeline is None:
    return None, problem
  try:
    return (
        identity_lib.fingerprint(
            str(data.element_spec),
            pipeline,
            items,
            {'policy_info_fn': options.policy_info_fn, 'rules': options.rules},
        ),
        '',
    )
  except ValueError as e:
    return None, str(e).rstrip('.')


def _write(source, folder, fingerprint) -> store_lib.FrameStore:
  [items] = source.tables
  writer = store_lib.StoreWriter(source.spec, folder)
  logging.info(
      'Storing frames of %d bytes%s.',
      writer.format.frame_bytes,
      ' and their strings' if writer.format.has_strings else '',
  )
  arranger = arranging.Arranger([items], of_sequences=source.of_sequences)
  runs = _RunBuilder(items, source)
  try:
    for arranged in arranger.arrange(source.frames()):
      writer.append(arranged.frames)
      runs.add(arranged)
    windows = store_lib.ItemWindows.of(items.windows)
    store, checksums = writer.finish(windows, *runs.finish())
    if folder is not None:
      prepared.write_metadata(folder, store, checksums, fingerprint)
    return store
  finally:
    writer.close()


class _RunBuilder:
  """Collects the runs of items, and their priorities."""

  def __init__(self, items, source):
    self._items = items
    self._has_reward = (
        isinstance(source.spec.reward, tf.TypeSpec)
        and source.spec.reward.shape.rank == 0
        and source.spec.reward.dtype.is_floating
    )
    self._runs = []
    self._priorities = []
    # Whether the last run of items continues in the next block.
    self._goes_on = False

  def add(self, arranged) -> None:
    """Adds the items of a block."""
    pieces, [items], [priorities] = (
        arranged.pieces,
        arranged.items,
        arranged.priorities,
    )
    if callable(self._items.priority) or self._items.priority != 1.0:
      self._priorities.append(priorities)
    starts = [0]
    if not self._items.crosses_episodes:
      # A piece whose episode does not end continues in the next piece.
      starts = np.flatnonzero(np.concatenate([[True], pieces.is_end[:-1]]))
    runs = store_lib.Runs(
        pieces.origin[starts],
        *[
            np.add.reduceat(values, starts)
            for values in (
                pieces.num_frames,
                np.bincount(items.piece, minlength=len(pieces.index)),
                self._returns(arranged),
            )
        ],
    )
    if self._goes_on:
      last = self._runs[-1]
      for name in ('num_rows', 'num_items', 'undiscounted_return'):
        getattr(last, name)[-1] += getattr(runs, name)[0]
      runs = store_lib.Runs(*[values[1:] for values in runs])
    if len(runs.first_row):
      self._runs.append(runs)
    self._goes_on = self._items.crosses_episodes or not pieces.is_end[-1]

  def finish(self) -> Tuple[store_lib.Runs, Optional[np.ndarray]]:
    """Returns the runs that have items, and the priorities.

    Raises:
      ValueError: if there are no items.
    """
    if not self._runs:
      population_lib.check_has_items(0, 0, None)
    runs = store_lib.Runs(*map(np.concatenate, zip(*self._runs)))
    population_lib.check_has_items(
        runs.num_rows.sum(),
        runs.num_items.sum(),
        self._items.sequence_length,
        runs.num_rows.max(),
    )
    priorities = np.concatenate(self._priorities) if self._priorities else None
    return runs, priorities

  def _returns(self, arranged) -> np.ndarray:
    """Returns the sum of the rewards of each piece, float64 `[P]`."""
    pieces, frames = arranged.pieces, arranged.block.frames
    if not self._has_reward:
      return np.full(len(pieces.index), np.nan)
    is_transition = frames.step_type != ts.StepType.LAST
    rewards = np.where(is_transition, frames.reward.astype(np.float64), 0.0)
    return np.add.reduceat(rewards, pieces.begin)
