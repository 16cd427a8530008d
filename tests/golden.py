"""Golden episodes, their expected frames, and a NumPy oracle for both.

Golden episodes are small episodes that many tests share. `CASES` contains valid
episodes with the step types and discounts of their frames, and `INVALID_CASES`
contains invalid episodes with the error and the step that causes it. For other
episodes, such as random ones, `expected_frames` and `find_fault` compute the
same in NumPy, step by step.

An episode is a dict of step fields, whose leaves are NumPy arrays `[T, ...]`.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import gc
import operator
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import episode_dataset

Episode = dict[str, Any]

FIRST, MID, LAST = 0, 1, 2

TERMINAL_NOT_LAST = 'Terminal step must be the last step of an episode.'
FIRST_AFTER_MID = 'Mid step should not be followed by a first step.'
NO_FIRST_AFTER_LAST = (
    'Last step of an episode must be followed by a first step.'
)
NO_FIRST = 'An episode must begin with a first step.'
FIRST_AFTER_FIRST = (
    'First step should not be followed by a first step, unless it is the last'
    ' step too.'
)
STEPS_AFTER_LAST = 'Last step of an episode must end it.'
DISCOUNT_RANGE = 'Discount must lie in [0, 1].'
NAN = 'Step must not hold NaN.'
EMPTY = 'An episode must have a step.'
UNEQUAL_LENGTHS = 'All fields of an episode must have the same number of steps.'


class Case(NamedTuple):
  """Valid episodes and the expected columns of their frames."""

  episodes: list[Episode]
  step_type: list[int]
  next_step_type: list[int]
  discount: list[float]


class InvalidCase(NamedTuple):
  """An invalid episode, the expected error sentence and the invalid step.

  The step is None if the episode has no steps.
  """

  episode: Episode
  sentence: str
  step: int | None


def make_episode(
    discount: Sequence[float], *, terminal: bool, base: int = 0
) -> Episode:
  """Returns an episode of flat fields, whose values depend on `base`."""
  length = len(discount)
  step = np.arange(length)
  values = (base + step).astype(np.float32)
  return {
      'observation': np.stack([values, -values], axis=1),
      'action': 100 + base + step,
      'reward': 10 * values,
      'discount': np.array(discount, np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & terminal,
  }


def make_episodes(
    lengths: Sequence[int], *, terminal: bool = True, apart: int = 100
) -> list[Episode]:
  """Returns flat episodes; step `t` of episode `e` observes `apart * e + t`."""
  return [
      make_episode([1] * length, terminal=terminal, base=apart * index)
      for index, length in enumerate(lengths)
  ]


COMPLETE = make_episode([1, 1, 1, 1], terminal=True)
TRUNCATED = make_episode([1, 1, 1, 0.9], terminal=False, base=10)
SINGLE_TERMINAL = make_episode([1], terminal=True, base=20)
SINGLE_TRUNCATED = make_episode([0.7], terminal=False, base=30)

CASES = {
    'complete': Case(
        episodes=[COMPLETE],
        step_type=[FIRST, MID, MID, LAST],
        next_step_type=[MID, MID, LAST, FIRST],
        discount=[1, 1, 1, 0],
    ),
    'truncated': Case(
        episodes=[TRUNCATED],
        step_type=[FIRST, MID, MID, LAST],
        next_step_type=[MID, MID, LAST, FIRST],
        discount=[1, 1, 1, 0.9],
    ),
    'single_terminal': Case(
        episodes=[SINGLE_TERMINAL],
        step_type=[LAST],
        next_step_type=[LAST],
        discount=[0],
    ),
    'single_truncated': Case(
        episodes=[SINGLE_TRUNCATED],
        step_type=[LAST],
        next_step_type=[LAST],
        discount=[0.7],
    ),
    'truncated_single_complete': Case(
        episodes=[TRUNCATED, SINGLE_TERMINAL, COMPLETE],
        step_type=[FIRST, MID, MID, LAST, LAST, FIRST, MID, MID, LAST],
        next_step_type=[MID, MID, LAST, FIRST, LAST, MID, MID, LAST, FIRST],
        discount=[1, 1, 1, 0.9, 0, 1, 1, 1, 0],
    ),
}


def _with_flags(first, last, terminal=None, discount=None) -> Episode:
  length = len(first)
  episode = make_episode([1] * length, terminal=False, base=40)
  episode['is_first'] = np.array(first, bool)
  episode['is_last'] = np.array(last, bool)
  if terminal is not None:
    episode['is_terminal'] = np.array(terminal, bool)
  if discount is not None:
    episode['discount'] = np.array(discount, np.float32)
  return episode


INVALID_CASES = {
    'terminal_before_last': InvalidCase(
        _with_flags([1, 0, 0], [0, 0, 1], terminal=[0, 1, 1]),
        TERMINAL_NOT_LAST,
        1,
    ),
    'stops_at_mid': InvalidCase(
        _with_flags([1, 0, 0], [0, 0, 0]), FIRST_AFTER_MID, 2
    ),
    'first_last_mid_last': InvalidCase(
        _with_flags([1, 0, 0, 0], [0, 1, 0, 1]), NO_FIRST_AFTER_LAST, 1
    ),
    'first_first': InvalidCase(
        _with_flags([1, 1, 0], [0, 0, 1]), FIRST_AFTER_FIRST, 0
    ),
    'mid_at_start': InvalidCase(_with_flags([0, 0, 0], [0, 0, 1]), NO_FIRST, 0),
    'first_alone': InvalidCase(_with_flags([1], [0]), FIRST_AFTER_FIRST, 0),
    'last_first': InvalidCase(
        _with_flags([1, 0, 1, 0], [0, 1, 0, 1]), STEPS_AFTER_LAST, 1
    ),
    'discount_above_one': InvalidCase(
        _with_flags([1, 0, 0], [0, 0, 1], discount=[1, 2.5, 1]),
        DISCOUNT_RANGE,
        1,
    ),
    'discount_below_zero': InvalidCase(
        _with_flags([1, 0, 0], [0, 0, 1], discount=[1, 1, -0.5]),
        DISCOUNT_RANGE,
        2,
    ),
    'empty': InvalidCase(_with_flags([], []), EMPTY, None),
}


def stacked_spec(episode: Episode) -> Any:
  """Returns the spec of the stacked steps of `episode`, of any length."""

  def spec(leaf):
    dtype = tf.string if leaf.dtype == object else leaf.dtype
    return tf.TensorSpec([None, *leaf.shape[1:]], dtype)

  return tf.nest.map_structure(spec, episode)


def stacked(episodes: list[Episode], spec: Any = None) -> tf.data.Dataset:
  """Returns an RLDS data set of `episodes` with stacked steps.

  Args:
    episodes: the episodes. Each iteration of the data set reads the list again,
      so a test can change the list instead of building a new data set.
    spec: the spec of stacked steps, by default of the first episode.
  """
  spec = stacked_spec(episodes[0]) if spec is None else spec
  return from_generator(
      lambda: ({'steps': episode} for episode in list(episodes)),
      {'steps': spec},
  )


# The arguments of each call of `from_generator`, and its active iterators.
_generators: list[tuple[Callable[[], Iterable[Any]], Any]] = []
_iterators: dict[int, Any] = {}


def from_generator(
    generator: Callable[[], Iterable[Any]], spec: Any
) -> tf.data.Dataset:
  """Like `tf.data.Dataset.from_generator`, but traces once for each spec.

  TensorFlow traces four functions for each data set and optimizes them for each
  iterator, which takes longer than most tests take to process the data.

  Args:
    generator: returns an iterable of nests of arrays.
    spec: the specs of their leaves.
  """
  leaves = tuple(tf.nest.flatten(spec, expand_composites=True))
  _generators.append((generator, spec))
  number = np.int64(len(_generators) - 1)
  variant = tf.raw_ops.FlatMapDataset(
      input_dataset=tf.data.experimental.to_variant(
          tf.data.Dataset.from_tensors(number)
      ),
      other_arguments=[],
      f=_generator_function(leaves),
      **_output_of(leaves),
  )
  return tf.data.experimental.from_variant(variant, spec)


def _output_of(leaves):
  return {
      'output_types': [leaf.dtype for leaf in leaves],
      'output_shapes': [leaf.shape for leaf in leaves],
  }


@functools.cache
def _generator_function(leaves):
  """Returns a function that maps the index of a generator to its data set."""

  def start(generator):
    make_iterable, spec = _generators[generator]
    iterator = iter(make_iterable())
    _iterators[id(iterator)] = iterator, spec
    return np.int64(id(iterator))

  def get_next(number):
    iterator, spec = _iterators[int(number)]
    element = next(iterator)
    tf.nest.assert_same_structure(element, spec, expand_composites=True)
    arrays = [
        np.asarray(array, leaf.dtype.as_numpy_dtype, order='C')
        for array, leaf in zip(
            tf.nest.flatten(element, expand_composites=True), leaves
        )
    ]
    for array, leaf in zip(arrays, leaves):
      if not leaf.shape.is_compatible_with(array.shape):
        raise TypeError(f'The shape {array.shape} does not fit {leaf}.')
    return arrays

  def finish(number):
    del _iterators[int(number)]
    return np.int64(0)

  def trace(function):
    return tf.function(
        function,
        input_signature=[tf.TensorSpec([], tf.int64)],
        autograph=False,
        # TensorFlow does not optimize functions with this attribute.
        experimental_attributes={'experimental_ints_on_device': True},
    ).get_concrete_function()

  def call(function, dtypes):
    return trace(lambda number: tf.numpy_function(function, [number], dtypes))

  init_func = call(start, tf.int64)
  next_func = call(get_next, [leaf.dtype for leaf in leaves])
  finalize_func = call(finish, tf.int64)

  def make_variant(number):
    return tf.raw_ops.GeneratorDataset(
        init_func_other_args=[number],
        next_func_other_args=[],
        finalize_func_other_args=[],
        init_func=init_func,
        next_func=next_func,
        finalize_func=finalize_func,
        **_output_of(leaves),
    )

  return trace(make_variant)


def nested(episodes: list[Episode], spec: Any = None) -> tf.data.Dataset:
  """Returns an RLDS data set of `episodes` with nested steps; see `stacked`."""
  return stacked(episodes, spec).map(
      lambda episode: {
          'steps': tf.data.Dataset.from_tensor_slices(episode['steps'])
      }
  )


def batched(
    episodes: list[Episode], spec: Any = None, batch_size: int = 3
) -> tf.data.Dataset:
  """Returns the data set of `stacked`, which also has batches of episodes."""
  return _with_batches(
      stacked(episodes, spec),
      lambda: [{'steps': episode} for episode in episodes],
      batch_size,
  )


def in_batches(
    rlds_data: tf.data.Dataset, batch_size: int = 3
) -> tf.data.Dataset:
  """Returns `rlds_data` with batches of the episodes that it currently has.

  Args:
    rlds_data: a data set of episodes with stacked steps, and any other fields.
    batch_size: the number of episodes of a batch.
  """
  episodes = list(rlds_data.as_numpy_iterator())
  return _with_batches(rlds_data, lambda: episodes, batch_size)


def _with_batches(rlds_data, get_episodes, batch_size) -> tf.data.Dataset:
  fields = dict(rlds_data.element_spec)
  steps = fields.pop('steps')

  def batches():
    left = list(get_episodes())
    while left:
      size = 1
      if has_one_length(left[0]['steps']):
        while size < min(batch_size, len(left)) and has_one_length(
            left[size]['steps']
        ):
          size += 1
      yield _batch(left[:size])
      left = left[size:]

  return episode_dataset.EpisodeDataset(
      from_generator(
          batches,
          batch_lib.EpisodeBatch(
              steps,
              tf.TensorSpec([None], tf.int64),
              tf.nest.map_structure(
                  lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype),
                  fields,
              ),
          ),
      ),
  )


def _batch(episodes: list[dict[str, Any]]) -> batch_lib.EpisodeBatch:
  fields = [dict(episode) for episode in episodes]
  steps = [episode.pop('steps') for episode in fields]
  lengths = [max(map(len, tf.nest.flatten(one))) for one in steps]
  return batch_lib.EpisodeBatch(
      tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *steps),
      np.cumsum([0, *lengths], dtype=np.int64),
      tf.nest.map_structure(lambda *leaves: np.stack(leaves), *fields),
  )


def has_batches(rlds_data: tf.data.Dataset) -> bool:
  """Returns whether a data set has batches of several episodes."""
  return isinstance(rlds_data, episode_dataset.EpisodeDataset)


def assert_batches_hold(
    test: tf.test.TestCase, rlds_data: tf.data.Dataset
) -> list[Any]:
  """Asserts that the batches of a data set are equal to its episodes.

  Returns:
    The episodes, as NumPy arrays.
  """
  batches = episode_dataset.batches_of(rlds_data)
  test.assertTrue(has_batches(rlds_data))
  unbatched = episode_dataset.unbatch(batches)
  shapes, expected_shapes = (
      tf.nest.map_structure(lambda spec: (spec.shape, spec.dtype), spec)
      for spec in (unbatched.element_spec, rlds_data.element_spec)
  )
  test.assertEqual(shapes, expected_shapes)
  actual = list(unbatched.as_numpy_iterator())
  episodes = list(rlds_data.as_numpy_iterator())
  test.assertLen(actual, len(episodes))
  for one, episode in zip(actual, episodes):
    tf.nest.assert_same_structure(one, episode)
    for leaf, expected in zip(*map(tf.nest.flatten, (one, episode))):
      np.testing.assert_array_equal(leaf, expected, strict=True)
  return episodes


def has_one_length(episode: Episode) -> bool:
  """Returns whether all fields of an episode have the same number of rows."""
  return len(set(map(len, tf.nest.flatten(episode)))) == 1


FORMS = {'stacked': stacked, 'nested': nested}
# For functions that read the batches of a data set if it has batches.
FORMS_AND_BATCHES = {**FORMS, 'batched': batched}


def with_unused_fields(rlds_data: tf.data.Dataset) -> tf.data.Dataset:
  """Adds step fields that cannot be stacked to a tensor `[T, ...]`."""

  def add_to_step(step):
    count = 1 + tf.reshape(tf.cast(step['is_first'], tf.int32), [])
    return {
        **step,
        'words': tf.RaggedTensor.from_row_splits(
            tf.range(3), tf.stack([0, count, 3])
        ),
        'points': tf.zeros(tf.stack([count, 2])),
    }

  def add(episode):
    steps = episode['steps']
    if isinstance(steps, tf.data.Dataset):
      return {**episode, 'steps': steps.map(add_to_step)}
    words = tf.ragged.range(tf.range(tf.shape(steps['is_first'])[0]))
    return {**episode, 'steps': {**steps, 'words': words}}

  return rlds_data.map(add)


def random_episodes(
    rng: np.random.Generator,
    count: int,
    *,
    nested_fields: bool = False,
    discount_dtype: Any = np.float32,
    discount_shape: tuple[int, ...] = (),
    max_length: int = 7,
) -> list[Episode]:
  """Returns valid random episodes of 1 to `max_length` steps.

  At least one episode has a single step.

  Args:
    rng: the random number generator.
    count: the number of episodes.
    nested_fields: whether observation and action are deeply nested and of many
      dtypes, instead of flat float32.
    discount_dtype: the dtype of the discount.
    discount_shape: the shape of the discount of a step.
    max_length: the length of the longest episode.
  """
  lengths = rng.integers(1, max_length + 1, count)
  lengths[rng.integers(count)] = 1
  return [
      _random_episode(
          rng, int(length), nested_fields, discount_dtype, discount_shape
      )
      for length in lengths
  ]


def _random_episode(rng, length, nested_fields, discount_dtype, discount_shape):
  def floats(*shape, dtype=np.float32):
    return rng.normal(size=(length, *shape)).astype(dtype)

  def strings():
    return np.array(
        [rng.bytes(int(rng.integers(5))) for _ in range(length)], object
    )

  if nested_fields:
    observation = {
        'camera': {
            'rgb': rng.integers(0, 256, (length, 2, 3, 3)).astype(np.uint8),
            'pose': (floats(3, dtype=np.float64), {'joint': floats(2)}),
        },
        'task': strings(),
        'state': (rng.integers(-(2**40), 2**40, (length, 2)), floats()),
    }
    action = ({'gripper': rng.integers(0, 9, length)}, strings(), floats(2))
    reward = floats(dtype=np.float64)
  else:
    observation, action, reward = floats(3), floats(2), floats()
  discount = rng.uniform(size=(length, *discount_shape))
  if np.issubdtype(discount_dtype, np.integer):
    discount = discount > 0.5
  step = np.arange(length)
  return {
      'observation': observation,
      'action': action,
      'reward': reward,
      'discount': discount.astype(discount_dtype),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & bool(rng.integers(2)),
  }


def length_of(episode: Episode) -> int:
  return len(episode['is_first'])


def step_of(episode: Episode, step: int) -> dict[str, Any]:
  return tf.nest.map_structure(lambda leaf: leaf[step], episode)


def _zero(leaf):
  return b'' if isinstance(leaf, bytes) else np.zeros_like(leaf)


def expected_frames(
    episodes: Sequence[Episode],
    terminal_discount: str = 'step',
    policy_info: Callable[[Any, Any], Any] | None = None,
) -> list[trajectory.Trajectory]:
  """Converts valid episodes to frames, one step at a time.

  Args:
    episodes: valid episodes.
    terminal_discount: "step" or "transition".
    policy_info: a function of the current and the next step, as NumPy values.

  Returns:
    A `Trajectory` of NumPy values for each step.
  """
  places = [
      (episode, step)
      for episode in episodes
      for step in range(length_of(episode))
  ]
  frames = []
  for index, (episode, step) in enumerate(places):
    current = step_of(episode, step)
    last = length_of(episode) - 1
    if last == 0:
      step_type, next_step_type = LAST, LAST
    elif step == last:
      step_type, next_step_type = LAST, FIRST
    else:
      step_type = FIRST if step == 0 else MID
      next_step_type = LAST if step == last - 1 else MID
    terminal = bool(episode['is_terminal'][last])
    discount = float(np.reshape(current['discount'], ()))
    if terminal and step == last:
      discount = 0.0
    if terminal and step == last - 1 and terminal_discount == 'transition':
      discount = 0.0
    info = ()
    if policy_info:
      if index + 1 < len(places):
        following = step_of(*places[index + 1])
      else:
        following = tf.nest.map_structure(_zero, current)
        following['is_first'] = np.ones_like(current['is_first'])
      info = policy_info(current, following)
    frames.append(
        trajectory.Trajectory(
            step_type=np.int32(step_type),
            observation=current['observation'],
            action=current['action'],
            policy_info=info,
            next_step_type=np.int32(next_step_type),
            reward=current['reward'],
            discount=np.float32(discount),
        )
    )
  return frames


def find_fault(episode: Episode) -> tuple[str, int | None] | None:
  """Returns the error sentence and step of the first fault, None if valid."""
  length = length_of(episode)
  if length == 0:
    return EMPTY, None
  for step in range(length):
    at = {
        name: episode[name][step]
        for name in ('is_first', 'is_last', 'is_terminal', 'discount')
    }
    is_end = step == length - 1
    first_follows = is_end or episode['is_first'][step + 1]
    if at['is_terminal'] and not at['is_last']:
      return TERMINAL_NOT_LAST, step
    if not at['is_first'] and not at['is_last'] and first_follows:
      return FIRST_AFTER_MID, step
    if at['is_last'] and not first_follows:
      return NO_FIRST_AFTER_LAST, step
    if step == 0 and not at['is_first']:
      return NO_FIRST, step
    if at['is_first'] and not at['is_last'] and first_follows:
      return FIRST_AFTER_FIRST, step
    if at['is_last'] and not is_end:
      return STEPS_AFTER_LAST, step
    if not 0 <= at['discount'] <= 1:
      return DISCOUNT_RANGE, step
  return None


def corrupted(rng: np.random.Generator, episode: Episode) -> Episode:
  """Returns `episode` with one to three random changes; it may remain valid."""
  episode = dict(episode)
  for _ in range(rng.integers(1, 4)):
    length = length_of(episode)
    change = rng.integers(6)
    if change < 3:
      flag = ('is_first', 'is_last', 'is_terminal')[change]
      episode[flag] = episode[flag].copy()
      if length:
        episode[flag][rng.integers(length)] ^= True
    elif change == 3:
      episode = tf.nest.map_structure(lambda leaf: leaf[1:], episode)
    elif change == 4:
      episode = tf.nest.map_structure(lambda leaf: leaf[:-1], episode)
    else:
      episode = joined(episode, episode)
  return episode


def joined(*episodes: Episode) -> Episode:
  """Concatenates the steps of several episodes to one episode."""
  return tf.nest.map_structure(
      lambda *leaves: np.concatenate(leaves), *episodes
  )


def frames_of(dataset: tf.data.Dataset) -> list[Any]:
  """Returns the elements of a data set of frames, as NumPy values."""
  return list(dataset.as_numpy_iterator())


def rows_of(block: Any) -> list[Any]:
  """Returns the `B` rows of a nest whose leaves are `[B, ...]`."""
  lengths = {len(leaf) for leaf in tree.flatten(block)}
  if len(lengths) != 1:
    raise ValueError(f'The leaves of a block are of the lengths {lengths}.')
  return [
      tree.map_structure(operator.itemgetter(row), block)
      for row in range(lengths.pop())
  ]


def rows_of_blocks(dataset: tf.data.Dataset) -> list[Any]:
  """Returns the rows of all blocks of a data set, as NumPy values."""
  return [
      row for block in dataset.as_numpy_iterator() for row in rows_of(block)
  ]


def frames_and_error(
    dataset: tf.data.Dataset,
) -> tuple[list[Any], tf.errors.InvalidArgumentError | None]:
  """Returns the frames before the first InvalidArgumentError, and the error."""
  frames = []
  try:
    frames.extend(dataset.as_numpy_iterator())
  except tf.errors.InvalidArgumentError as error:
    return frames, error
  return frames, None


def place(episode: int, step: int | None) -> str:
  """Returns the text with which error messages locate a step."""
  if step is None:
    return f'episode {episode}: it has none.'
  return f'episode {episode}, step {step}:'


def assert_frames_equal(
    test: tf.test.TestCase,
    actual: Sequence[Any],
    expected: Sequence[Any],
    *,
    may_be_empty: bool = False,
    tolerance: float = 0,
) -> None:
  """Asserts that two lists of nests are equal in structure, dtype and value.

  Args:
    test: the test case.
    actual: the actual nests.
    expected: the expected nests.
    may_be_empty: whether `expected` may be empty. By default an empty list
      fails, because nothing would be compared.
    tolerance: the absolute and relative tolerance for floats.
  """
  if not may_be_empty:
    test.assertNotEmpty(expected, 'There is nothing to compare with.')
  test.assertLen(actual, len(expected))
  for index, (one, other) in enumerate(zip(actual, expected)):
    tf.nest.assert_same_structure(one, other)
    others = tree.flatten(other)
    for (path, leaf), expected_leaf in zip(tree.flatten_with_path(one), others):
      name = f'frame {index}, {"/".join(map(str, path))}'
      leaf, expected_leaf = _as_array(leaf), _as_array(expected_leaf)
      test.assertEqual(leaf.dtype, expected_leaf.dtype, name)
      if tolerance and leaf.dtype.kind == 'f':
        np.testing.assert_allclose(
            leaf, expected_leaf, tolerance, tolerance, err_msg=name
        )
      else:
        np.testing.assert_array_equal(leaf, expected_leaf, name)


def _as_array(leaf):
  if isinstance(leaf, bytes):
    return np.array(leaf, object)
  return np.asarray(leaf)


def assert_no_open_files(test: Any, folder: str) -> None:
  """Asserts that this process has no open or mapped file in a folder."""
  gc.collect()
  links = '/proc/self/fd'
  paths = [
      os.path.realpath(os.path.join(links, number))
      for number in os.listdir(links)
  ]
  test.assertEmpty([path for path in paths if path.startswith(folder)])
