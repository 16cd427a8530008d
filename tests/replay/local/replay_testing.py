"""Computes expected items in plain Python, and makes small frame stores."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay.local import loading
from rlds2reverb.store import items as store_items
from rlds2reverb.store import rows as store_rows
from tests import contract
from tests import golden


def episodes_of(lengths: Sequence[int]) -> list[golden.Episode]:
  """Returns flat episodes; step `t` of episode `e` observes `100 * e + t`."""
  return golden.make_episodes(lengths, terminal=False)


def cut_rows(
    lengths: Sequence[int], length: int | None, stride: int, end: str
) -> list[list[int]]:
  """Returns the row indices of each item; -1 is a padding row."""
  if end == 'cross':
    lengths = [sum(lengths)]
  items, begin = [], 0
  for count in map(int, lengths):
    rows = list(range(begin, begin + count))
    begin += count
    if length is None:
      items.append(rows)
      continue
    rows += [rows[-1] if end == 'repeat_last' else -1] * length
    starts = contract.window_starts(count, length, stride, end)
    items += [rows[start : start + length] for start in starts]
  return items


def cut_items(
    episodes: Sequence[golden.Episode],
    length: int | None,
    stride: int = 1,
    end: str = 'drop',
    policy_info: Callable[[Any, Any], Any] | None = None,
) -> list[Any]:
  """Returns the expected items of episodes: `Trajectory`s of arrays `[L, ...]`.

  The arguments are those of `TableItems` and `golden.expected_frames`.
  """
  frames = golden.expected_frames(episodes, policy_info=policy_info)
  # The padding row, which has the index -1.
  last = np.int32(golden.LAST)
  frames.append(contract.zero_like(frames[0])._replace(step_type=last))
  lengths = list(map(golden.length_of, episodes))
  return [
      contract.stack([frames[row] for row in rows])
      for rows in cut_rows(lengths, length, stride, end)
  ]


def items_of_pass(buffer: Any, batch_size: int = 4) -> list[Any]:
  """Returns the items of one deterministic pass over a replay buffer."""
  if buffer.store.windows is None:
    batch_size = None
  dataset = buffer.as_dataset(batch_size, single_deterministic_pass=True)
  found = [frames for frames, _ in dataset.as_numpy_iterator()]
  return found if batch_size is None else sum(map(golden.rows_of, found), [])


def frame_spec() -> trajectory.Trajectory:
  """Returns the spec of frames whose observation is a number."""
  return trajectory.Trajectory(
      step_type=tf.TensorSpec([], tf.int32),
      observation=tf.TensorSpec([], tf.int64),
      action=(),
      policy_info=(),
      next_step_type=tf.TensorSpec([], tf.int32),
      reward=tf.TensorSpec([], tf.float32),
      discount=tf.TensorSpec([], tf.float32),
  )


def make_frames(
    begin: int, end: int, lasts: Sequence[int] = ()
) -> trajectory.Trajectory:
  """Returns frames with the observations `begin` to `end - 1`.

  Args:
    begin: the first observation.
    end: the observation after the last one.
    lasts: the observations of last steps of episodes.
  """
  numbers = np.arange(begin, end)
  is_last = np.isin(numbers, list(lasts))
  follows_last = np.isin(numbers - 1, list(lasts)) | (numbers == 0)
  step_type = np.where(follows_last, 0, 1)
  return trajectory.Trajectory(
      step_type=np.where(is_last, 2, step_type).astype(np.int32),
      observation=numbers.astype(np.int64),
      action=(),
      policy_info=(),
      next_step_type=np.where(is_last, 0, 1).astype(np.int32),
      reward=numbers.astype(np.float32),
      discount=np.ones(len(numbers), np.float32),
  )


def leaves(*args: Any) -> list[np.ndarray]:
  """Returns the leaves of `make_frames(*args)`."""
  return tf.nest.flatten(make_frames(*args))


def make_store(
    num_items: Sequence[int],
    priorities: Sequence[float] | None = None,
    returns: Sequence[float] | None = None,
    end: str = 'drop',
) -> loading.FrameStore:
  """Returns a store with items of 2 frames; frame `r` observes the number `r`.

  Args:
    num_items: the number of items of each episode. An episode without items has
      one frame.
    priorities: the priority of every item.
    returns: the undiscounted return of each episode, by default 0.
    end: the value of `Windows.end`.
  """
  lengths = np.array(num_items, np.int64) + 1
  windows = windows_lib.Windows(2, end=end)
  returns = np.zeros(len(lengths)) if returns is None else np.array(returns)
  writer = store_rows.StoreWriter(loading.layout_of(frame_spec()))
  writer.append(tf.nest.flatten(make_frames(0, lengths.sum())))
  return loading.FrameStore(
      frame_spec(),
      writer.finish({}, {}),
      windows,
      store_items.find_episodes(lengths, windows, returns),
      None if priorities is None else np.array(priorities, np.float64),
      'made',
  )
