"""Example and random episodes, and a NumPy oracle for functions of transitions.

Tests compare the result of a function with loops in NumPy over `transitions`.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tests import golden


def make_steps(
    observations: Sequence[float],
    rewards: Sequence[float],
    *,
    terminal: bool,
) -> golden.Episode:
  """Returns the steps of an episode with the actions 1, 2, 3, ..."""
  length = len(observations)
  step = np.arange(length)
  return {
      'observation': np.array(observations, np.float32),
      'action': step + 1,
      # The reward of the last step must have no effect.
      'reward': np.array([*rewards, 99], np.float32),
      'discount': np.ones(length, np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & terminal,
  }


A = make_steps(range(6), [1, 2, 3, 4, 5], terminal=True)
B = make_steps(range(10, 14), [10, 20, 30], terminal=False)
# Some data sets have a discount of 0 in the terminal step and in the previous
# step. The transitions are the same.
A_WITH_ZERO_DISCOUNTS = {**A, 'discount': np.float32([1, 1, 1, 1, 0, 0])}


def random_steps(rng: np.random.Generator, transitions: int) -> golden.Episode:
  """Returns nested steps of many dtypes, with a recurrent state."""
  length = transitions + 1
  step = np.arange(length)

  def floats(*shape, dtype=np.float32):
    return rng.normal(size=(length, *shape)).astype(dtype)

  words = np.array([rng.bytes(3).hex().encode() for _ in step], object)
  return {
      'observation': {
          'camera': rng.integers(1, 256, (length, 2, 1)).astype(np.uint8),
          'pose': (floats(3, dtype=np.float64), words),
      },
      'action': ({'gripper': rng.integers(1, 9, length)}, floats(2)),
      'reward': floats(dtype=np.float64),
      'discount': rng.uniform(0.1, 1, length).astype(np.float32),
      'state': {'h': floats(2), 'c': (floats(1),)},
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & bool(rng.integers(2)),
  }


def edge_episodes(length: int, seed: int = 0) -> list[golden.Episode]:
  """Returns random episodes of 0, 1, L - 1, L, L + 1 and many transitions."""
  rng = np.random.default_rng(seed)
  lengths = [0, 1, length - 1, length, length + 1, 2 * length, 3 * length + 1]
  return [random_steps(rng, transitions) for transitions in lengths]


def transitions(steps: golden.Episode) -> list[dict[str, Any]]:
  """Returns the transitions of an episode in order."""
  rows = []
  for t in range(golden.length_of(steps) - 1):
    row = golden.step_of(steps, t)
    following = golden.step_of(steps, t + 1)
    row['next_observation'] = following['observation']
    row['is_last'] = following['is_last']
    row['is_terminal'] = following['is_terminal']
    if following['is_terminal']:
      row['discount'] = np.float32(0)
    rows.append(row)
  return rows


def zero_like(row: Any) -> Any:
  """Returns a padding row of zeros with the structure of `row`."""
  return tree.map_structure(
      lambda leaf: b'' if isinstance(leaf, bytes) else np.zeros_like(leaf), row
  )


def stack(rows: Sequence[Any]) -> Any:
  """Stacks one or more nests of NumPy values."""

  def stack_leaves(*leaves):
    if isinstance(leaves[0], bytes):
      return np.array(leaves, object)
    return np.stack([np.asarray(leaf) for leaf in leaves])

  return tree.map_structure(stack_leaves, *rows)


def window_starts(count: int, length: int, stride: int, end: str) -> list[int]:
  """Returns the first row of each window, as documented by `Windows`.

  Args:
    count: the number of rows of the episode, or of all episodes if windows
      cross episodes.
    length: the number of rows of a window.
    stride: the number of rows between the starts of consecutive windows.
    end: the value of an `EndOfEpisode`.
  """
  starts = [s for s in range(0, count, stride) if s + length <= count]
  covered = starts[-1] + length if starts else 0
  following = len(starts) * stride
  if end == 'tile':
    return list(range(0, count, stride))
  if end == 'pad' and 0 < count < length:
    return [0]
  if end in ('zero_pad', 'repeat_last', 'overlap'):
    if covered < count and following < count:
      is_earlier = end == 'overlap'
      starts.append(max(count - length, 0) if is_earlier else following)
  return starts


def row_at(rows: Sequence[Any], at: int, before: Any, after: Any) -> Any:
  """Returns a row, or padding if the index is out of range.

  Args:
    rows: nests of NumPy values.
    at: the index of the row.
    before: the padding before the first row: "zeros", "repeat", a number or a
      nest.
    after: the padding after the last row.
  """
  if 0 <= at < len(rows):
    return rows[at]
  fill = before if at < 0 else after
  if fill == 'repeat':
    return rows[0 if at < 0 else -1]
  if fill == 'zeros' or isinstance(fill, int):
    value = 0 if fill == 'zeros' else fill
    return tree.map_structure(
        lambda leaf: leaf
        if isinstance(leaf, bytes)
        else leaf + leaf.dtype.type(value),
        zero_like(rows[0]),
    )
  return fill


def window(
    rows: Sequence[Any], places: Iterable[int], before: Any, after: Any
) -> Any:
  """Returns the stacked rows at the indices `places`; see `row_at`."""
  return stack([row_at(rows, at, before, after) for at in places])


def check_everywhere(
    test: tf.test.TestCase,
    cases: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]],
    episodes: list[golden.Episode],
    form: Callable[..., tf.data.Dataset] = golden.stacked,
    *,
    tolerance: float = 0,
) -> None:
  """Compares functions of steps with NumPy, eagerly and in one `Dataset.map`.

  Args:
    test: the test case.
    cases: maps names to pairs of a function and its oracle. The function takes
      the steps of an episode and returns a nest of tensors `[N, ...]`, whose
      other dimensions must be known in `map`. The oracle takes the same steps
      as NumPy arrays and returns the `N` rows.
    episodes: the steps of episodes of the same spec. The functions are called
      eagerly on the last episode only.
    form: the form of the steps in `map`.
    tolerance: the tolerance for floats.
  """

  def call_all(steps):
    return {name: function(steps) for name, (function, _) in cases.items()}

  mapped = form(episodes).map(lambda episode: call_all(episode['steps']))
  for spec in tf.nest.flatten(mapped.element_spec):
    test.assertTrue(spec.shape[1:].is_fully_defined(), spec)
  eagerly = tf.nest.map_structure(
      lambda leaf: leaf.numpy(),
      call_all(tf.nest.map_structure(tf.constant, episodes[-1])),
  )
  actual = [*mapped.as_numpy_iterator(), eagerly]
  for results, steps in zip(actual, [*episodes, episodes[-1]], strict=True):
    for name, (_, expected) in cases.items():
      with test.subTest(name):
        assert_rows(test, results[name], expected(steps), tolerance)


def assert_equal(test: tf.test.TestCase, actual: Any, expected: Any) -> None:
  """Asserts that two nests are equal in structure, dtype and value."""
  golden.assert_frames_equal(test, [actual], [expected])


def assert_rows(
    test: tf.test.TestCase,
    actual: Any,
    expected: Sequence[Any],
    tolerance: float = 0,
) -> None:
  """Asserts that the stacked rows `actual` are equal to the rows `expected`."""
  if expected:
    golden.assert_frames_equal(
        test, [actual], [stack(expected)], tolerance=tolerance
    )
  else:
    leaves = tree.flatten(actual)
    test.assertNotEmpty(leaves)
    for leaf in leaves:
      test.assertEqual(leaf.shape[0], 0)
