"""A TF-Agents replay buffer for an agent's own experience."""

from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import dataset
from rlds2reverb.replay.local import loading
from rlds2reverb.replay.local import local_buffer
from rlds2reverb.replay.local import ring
from rlds2reverb.store import prioritized
from rlds2reverb.store import samplers
from rlds2reverb.trajectories import options as options_lib


class AppendableReplayBuffer(local_buffer.LocalReplayBuffer):
  """Keeps the last frames of an agent's own experience, and samples them.

      replay_buffer = AppendableReplayBuffer(policy.trajectory_spec, 100_000)
      driver = dynamic_step_driver.DynamicStepDriver(
          environment, policy, observers=[replay_buffer.add_batch], num_steps=1)

  The oldest frames make room for the newest. All frames are part of a
  `tf.train.Checkpoint`. See `LocalReplayBuffer` for what batches are.

  Attributes:
    store: the frames.
    num_items: the number of items that can be drawn.
  """

  @options_lib.takes_options
  def __init__(
      self,
      data: Union[tf.data.Dataset, trajectory.Trajectory],
      capacity: int,
      windows: windows_lib.Windows = windows_lib.Windows(2),
      *,
      sampler: Optional[samplers.Sampler] = None,
      seed: int = 0,
      options: Optional[options_lib.ConversionOptions] = None,
  ):
    """Creates the replay buffer.

    Args:
      data: the spec of a frame, for a replay buffer that is empty; or an RLDS
        data set, whose frames are there from the start.
      capacity: the largest number of frames.
      windows: which windows of frames are items: whole ones, with the end
        `"drop"` or `"cross"`.
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
    sampler = sampler or samplers.Uniform()
    if not isinstance(sampler, (samplers.Uniform, prioritized.Prioritized)):
      raise ValueError(
          f'{sampler} is for episodes that are all there before, and these'
          ' change. Use Uniform() or Prioritized().'
      )
    items = items_lib.TableItems('items', windows)
    recorded = None
    if isinstance(data, tf.data.Dataset):
      if isinstance(data.element_spec, trajectory.Trajectory):
        raise ValueError(
            'Sequences do not say which episode they are of, so no frames can'
            ' be appended to them. Give the RLDS data set that they were made'
            ' from.'
        )
      recorded = loading.load_frames(data, items, options=options)
      data = recorded.spec
    elif not isinstance(data, trajectory.Trajectory):
      raise ValueError(
          f'data must be a data set, or the spec of a frame, but is {data!r}.'
      )
    frames = ring.FrameRing(data, windows, capacity)
    if isinstance(sampler, prioritized.Prioritized):
      sampler.attach(frames, np.zeros(capacity))
      frames.listener = sampler
    if recorded is not None:
      frames.load(recorded.rows)
    super().__init__(frames, frames, capacity, sampler, samplers.Process(seed))

  def _add_batch(self, items):
    checked = tf.nest.map_structure(_check_frame, items, self.data_spec)
    leaves = tf.nest.flatten(checked)
    return dataset.call(self._items, 'append', leaves)

  def _clear(self):
    self._items.clear()


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
