"""A TF-Agents replay buffer of recorded episodes, without a server."""

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import tf_private
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import local_buffer
from rlds2reverb.store import samplers
from rlds2reverb.trajectories import options as options_lib


class EpisodesReplayBuffer(local_buffer.LocalReplayBuffer):
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
    items = items_lib.TableItems('items', windows, priority=priority)
    if isinstance(rlds_data, loading.FrameStore):
      store = rlds_data
    elif isinstance(rlds_data, tf.data.Dataset):
      with tf_private.name_damaged_files(rlds_data):
        store = loading.load_frames(rlds_data, items, directory, options)
    else:
      store = loading.open_frames(rlds_data)
    super().__init__(
        store.make_items(),
        store,
        store.num_frames,
        sampler,
        samplers.Process(seed, (0, 0), *process),
    )

  def _add_batch(self, items):
    raise ValueError(
        'This replay buffer has recorded episodes, and does not change. Frames'
        ' can be appended to an AppendableReplayBuffer.'
    )

  def _clear(self):
    self._add_batch(None)
