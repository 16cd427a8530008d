"""A TF-Agents replay buffer for an agent's own experience."""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.replay.local import ring
from rlds2reverb.store import samplers
from rlds2reverb.store import sum_tree
from rlds2reverb.trajectories import options as options_lib


class AppendableReplayBuffer(replay_buffer.LocalReplayBuffer):
  """Keeps the last frames of an agent's own experience, and samples them.

      replay_buffer = AppendableReplayBuffer(policy.trajectory_spec, 100_000)
      driver = dynamic_step_driver.DynamicStepDriver(
          environment, policy, observers=[replay_buffer.add_batch], num_steps=1)

  The oldest frames make room for the newest. All frames are part of a
  `tf.train.Checkpoint`. See `LocalReplayBuffer` for what batches are.

  Parallel environments, such as a `ParallelPyEnvironment`, are appended as to a
  `TFUniformReplayBuffer`, one frame of each environment at a time:

      replay_buffer = AppendableReplayBuffer(
          policy.trajectory_spec, 100_000, batch_size=environment.batch_size)

  Each environment has its own segment, so no item mixes environments.

  Attributes:
    store: the frames.
    num_items: the number of items that can be drawn.
    batch_size: the number of environments.
  """

  @options_lib.takes_options
  def __init__(
      self,
      data: tf.data.Dataset | trajectory.Trajectory,
      capacity: int,
      windows: windows_lib.Windows = windows_lib.Windows(2),
      *,
      batch_size: int = 1,
      sampler: samplers.Sampler | None = None,
      seed: int = 0,
      options: options_lib.ConversionOptions | None = None,
  ):
    """Creates the replay buffer.

    Args:
      data: the spec of a frame, for an empty replay buffer; or an RLDS data
        set, whose frames are appended first.
      capacity: the largest number of frames. Each environment keeps its last
        `capacity // batch_size` frames.
      windows: the windows of frames that are items, with the end `"drop"` or
        `"cross"`.
      batch_size: the number of environments `E`: `add_batch` takes frames
        `[E, ...]`, one of each environment. Recorded episodes are dealt out in
        their order, each to the environment with the fewest frames so far.
      sampler: `Uniform()`, which is the default, or `Prioritized()`. A new item
        has the highest priority so far, and the first ones have 1.
      seed: a number from 0 up; the same one gives the same batches.
      options: how the data is converted.

    Raises:
      ValueError: if no item fits into any episode, if a field has no fixed
        shape, or if an argument is not valid.
      InvalidArgumentError: if an episode is invalid.
    """
    checks.check_positive('capacity', capacity)
    checks.check_positive('batch_size', batch_size)
    sampler = sampler or samplers.Uniform()
    if not isinstance(sampler, (samplers.Uniform, sum_tree.Prioritized)):
      raise ValueError(
          f'{sampler} needs items that do not change. Use Uniform() or'
          ' Prioritized() with an AppendableReplayBuffer.'
      )
    items = items_lib.TableItems('items', windows)
    recorded = None
    if isinstance(data, tf.data.Dataset):
      if isinstance(data.element_spec, trajectory.Trajectory):
        raise ValueError(
            'No frames can be appended to sequences, because their episodes are'
            ' unknown. Pass the RLDS data set from which they were made.'
        )
      recorded = loading.load_frames(data, items, options=options)
      data = recorded.spec
    elif not isinstance(data, trajectory.Trajectory):
      raise ValueError(
          f'data must be a data set, or the spec of a frame, but is {data!r}.'
      )
    self.batch_size = batch_size
    self._leaf_specs = [
        (name, leaf.dtype, (batch_size, *leaf.shape))
        for name, leaf in paths.leaves(data).items()
    ]
    frames = ring.FrameRing(data, windows, capacity // batch_size, batch_size)
    if isinstance(sampler, sum_tree.Prioritized):
      sampler.attach(frames, np.zeros(frames.num_slots))
      frames.listener = sampler
    if recorded is not None:
      frames.load(recorded.rows)
    super().__init__(
        frames, frames, frames.num_slots, sampler, samplers.Shard(seed)
    )

  def add_batch(self, items: Any) -> Any:
    """Appends a frame of each environment.

    Args:
      items: a `Trajectory` `[E, ...]` of arrays or tensors; `E` is
        `batch_size`.

    Returns:
      The operation that appends it, in a graph.

    Raises:
      ValueError: if the number of environments, a shape or a dtype is another,
        or if a step type is not FIRST, MID or LAST; or an InvalidArgumentError
        in a graph that does not know it before it runs. Nothing is appended
        then.
    """
    return super().add_batch(items)

  def _add_batch(self, items):
    tf.nest.assert_same_structure(items, self.data_spec)
    leaves = []
    for leaf, expected in zip(tf.nest.flatten(items), self._leaf_specs):
      # `tf.is_tensor` takes longer than all else for an array.
      if not isinstance(leaf, np.ndarray) and not tf.is_tensor(leaf):
        leaf = np.asarray(leaf)
      _check_leaf(leaf, *expected)
      leaves.append(leaf)
    return self._call('_append', leaves)

  def _append(self, *leaves):
    # In a graph the number of environments may be known only when it runs.
    for leaf, expected in zip(leaves, self._leaf_specs):
      if leaf.shape != expected[2]:
        _check_leaf(leaf, *expected)
    step_type = leaves[self._items.step_type_column]
    first, last = ts.StepType.FIRST, ts.StepType.LAST
    [invalid] = np.nonzero((step_type < first) | (step_type > last))
    if len(invalid):
      raise ValueError(
          f'The step type of environment {invalid[0]} is'
          f' {step_type[invalid[0]]}.'
          ' It must be 0 (FIRST), 1 (MID) or 2 (LAST).'
      )
    self._items.append(*leaves)

  def _gather_all(self):
    counts = self._items.frame_counts()
    if np.ptp(counts):
      raise ValueError(
          'gather_all needs the same number of frames of each environment, but'
          f' environment {counts.argmin()} has {counts.min()} and environment'
          f' {counts.argmax()} has {counts.max()}: recorded episodes were dealt'
          ' out to them. Use as_dataset(single_deterministic_pass=True).'
      )
    return super()._gather_all()

  def _clear(self):
    self._items.clear()


def _check_leaf(
    leaf: Any, name: str, dtype: tf.DType, expected: tuple[int, ...]
) -> None:
  """Raises a ValueError unless a leaf of frames has its dtype and shape."""
  if leaf.shape == expected and leaf.dtype == dtype:
    return
  shape = tf.TensorShape(leaf.shape)
  if leaf.dtype == dtype and shape.is_compatible_with(expected):
    return
  message = (
      'Frames are appended one by one, one of each of'
      f' {checks.counted(expected[0], "environment")}: {name} must be'
      f' {dtype.name} {list(expected)}, but is'
      f' {tf.as_dtype(leaf.dtype).name} {shape}.'
  )
  if shape.rank and shape[1:].is_compatible_with(expected[1:]):
    message += (
        f' For {checks.counted(shape[0], "environment")}, make the replay'
        f' buffer with batch_size={shape[0]}.'
    )
  raise ValueError(message)
