"""Items cut from episodes in plain Python, and small stores of frames."""

from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.replay.local import store as store_lib
from tests import contract
from tests import golden


def episodes_of(lengths: Sequence[int]) -> List[golden.Episode]:
  """Returns flat episodes; step `t` of episode `e` shows `100 * e + t`."""
  return [
      golden.make_episode([1] * length, terminal=False, base=100 * index)
      for index, length in enumerate(lengths)
  ]


def cut_items(
    episodes: Sequence[golden.Episode],
    length: Optional[int],
    stride: int = 1,
    end: str = 'drop',
    policy_info: Optional[Callable[[Any, Any], Any]] = None,
) -> List[Any]:
  """Returns the items of episodes, `Trajectory`s of arrays `[L, ...]`.

  The arguments are those of `TableItems` and `golden.expected_frames`.
  """
  frames = golden.expected_frames(episodes, policy_info=policy_info)
  pad = contract.zero_like(frames[0])._replace(
      step_type=np.int32(ts.StepType.LAST)
  )
  runs = []
  for episode in episodes:
    count = golden.length_of(episode)
    runs.append(frames[:count])
    frames = frames[count:]
  if end == 'cross':
    runs = [sum(runs, [])]
  items = []
  for run in runs:
    if length is None:
      items.append(run)
      continue
    if end == 'tile':
      starts = range(0, len(run), stride)
    elif end == 'pad' and len(run) < length:
      starts = [0]
    else:
      starts = list(range(0, len(run) - length + 1, stride))
      following = len(starts) * stride
      covered = starts[-1] + length if starts else 0
      if following < len(run) and covered < len(run):
        if end == 'zero_pad':
          starts.append(following)
        elif end == 'overlap':
          starts.append(max(len(run) - length, 0))
    run = run + [pad] * length
    items += [run[start : start + length] for start in starts]
  return [contract.stack(item) for item in items]


def assert_items_equal(
    test: tf.test.TestCase, actual: Sequence[Any], expected: Sequence[Any]
) -> None:
  """Asserts that two lists of items are equal, values and dtypes."""
  golden.assert_frames_equal(test, actual, expected)


def items_of(dataset: tf.data.Dataset) -> List[Any]:
  """Returns the items of a data set of batches, each an item `[L, ...]`."""
  return [
      item
      for frames, _ in dataset.as_numpy_iterator()
      for item in golden.rows_of(frames)
  ]


def frame_spec() -> trajectory.Trajectory:
  """Returns the spec of frames that have numbers for observations."""
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
  """Returns frames that show `begin` to `end`; an episode ends at `lasts`."""
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


def make_store(
    num_items: Sequence[int],
    priorities: Optional[Sequence[float]] = None,
    returns: Optional[Sequence[float]] = None,
    crosses_episodes: bool = False,
) -> store_lib.FrameStore:
  """Returns a store whose items are of 2 frames.

  Frame `r` shows the number `r`.

  Args:
    num_items: the number of items of each episode. An episode without an item
      has one frame.
    priorities: the priority of every item.
    returns: the undiscounted return of each episode, by default 0.
    crosses_episodes: whether items are said to cross episodes.
  """
  counts = np.array(num_items, np.int64)
  lengths = counts + 1
  writer = store_lib.StoreWriter(frame_spec())
  writer.append(make_frames(0, lengths.sum()))
  runs = store_lib.Runs(
      np.cumsum(lengths) - lengths,
      lengths,
      counts,
      np.zeros(len(counts)) if returns is None else np.array(returns, float),
  )
  store, _ = writer.finish(
      store_lib.ItemWindows(2, 1, crosses_episodes),
      runs,
      None if priorities is None else np.array(priorities, np.float64),
  )
  return store


def assert_frequencies(
    test: tf.test.TestCase,
    counts: Sequence[int],
    probabilities: Sequence[float],
) -> None:
  """Asserts by a chi-square test that counts have given probabilities.

  Args:
    test: what fails, at a significance of 1 in 10,000 for an unknown seed.
    counts: how often each outcome was found, `[N]`.
    probabilities: the probabilities, which sum to 1. Those that are 0 must not
      have been found at all.
  """
  counts, probabilities = np.array(counts), np.array(probabilities)
  test.assertEqual(counts[probabilities == 0].sum(), 0)
  if np.count_nonzero(probabilities) == 1:
    return
  counts = counts[probabilities > 0]
  expected = counts.sum() * probabilities[probabilities > 0]
  test.assertGreater(expected.min(), 5, 'There are too few draws.')
  statistic = ((counts - expected) ** 2 / expected).sum()
  # The quantile of Wilson and Hilferty (1931).
  k = len(counts) - 1
  limit = k * (1 - 2 / (9 * k) + 3.719 * np.sqrt(2 / (9 * k))) ** 3
  test.assertLess(statistic, limit)
