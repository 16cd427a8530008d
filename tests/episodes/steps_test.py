"""Tests of the steps of episodes: their specs, and how they are stacked."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as original

from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import steps as steps_lib
from tests import golden

_FLAGS = ('is_first', 'is_last', 'is_terminal')
_WORDS = np.array([b'1'] * 4, object)


def _spec_of(rlds_data):
  return steps_lib.get_steps_spec(rlds_data.element_spec)


def _map_steps(rlds_data, function):
  """Changes the stacked steps, or each of the nested ones."""

  def change(episode):
    steps = episode['steps']
    if isinstance(steps, tf.data.Dataset):
      return {**episode, 'steps': steps.map(function)}
    return {**episode, 'steps': function(steps)}

  return rlds_data.map(change)


class StepsSpecTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_specs_of_one_step(self, form):
    for dtype, shape in ((np.float64, (4,)), (np.int32, (4, 1))):
      column = np.ones(shape, dtype)
      flags = dict.fromkeys(_FLAGS, column)
      data = form([{**golden.COMPLETE, 'discount': column, **flags}])
      spec = _spec_of(data.map(lambda episode: {**episode, 'id': 'a'}))
      self.assertEqual(spec.stacked, form is golden.stacked)
      number = tf.TensorSpec(shape[1:], dtype)
      self.assertEqual(
          spec.step,
          {
              'observation': tf.TensorSpec([2], tf.float32),
              'action': tf.TensorSpec([], tf.int64),
              'reward': tf.TensorSpec([], tf.float32),
              'discount': number,
              **dict.fromkeys(_FLAGS, number),
          },
      )
    # Ragged fields may be there, and not be used.
    data = golden.with_unused_fields(form([golden.COMPLETE]))
    self.assertIsInstance(_spec_of(data).step['words'], tf.RaggedTensorSpec)

  @parameterized.parameters(({'observation': 1},), 1, (({'steps': 1}, 2),))
  def test_no_steps(self, element):
    data = tf.data.Dataset.from_tensors(element)
    with self.assertRaisesRegex(
        ValueError, '^No dataset representing RLDS steps exist in the data.$'
    ):
      _spec_of(data)

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_a_feature_that_is_missing(self, form):
    for feature in steps_lib.get_rlds_step_features():
      episode = {k: v for k, v in golden.COMPLETE.items() if k != feature}
      with self.assertRaises(ValueError) as theirs:
        original.create_trajectory_data_spec(golden.nested([episode]))
      with self.assertRaises(ValueError) as ours:
        _spec_of(form([episode]))
      self.assertStartsWith(str(ours.exception), str(theirs.exception))
      self.assertIn('map_fields', str(ours.exception))
    with self.assertRaisesRegex(ValueError, r'but found \[\]$'):
      _spec_of(tf.data.Dataset.from_tensors({'steps': tf.zeros([3])}))
    self.assertEqual(
        steps_lib.get_rlds_step_features(), original.get_rlds_step_features()
    )

  @parameterized.parameters(
      ('discount', _WORDS),
      ('discount', np.ones([4], bool)),
      ('discount', np.ones([4, 2], np.float32)),
      ('discount', {'value': np.ones([4], np.float32)}),
      ('is_first', _WORDS),
      ('is_last', np.ones([4, 2], bool)),
      ('is_terminal', np.ones([4, 1, 1], bool)),
  )
  def test_flags_with_several_numbers_per_step_raise(self, feature, column):
    for form in golden.FORMS.values():
      with self.assertRaisesRegex(
          ValueError, f'Step field {feature} must be one number'
      ):
        _spec_of(form([{**golden.COMPLETE, feature: column}]))

  @parameterized.named_parameters(*golden.FORMS.items())
  def test_ragged_sparse_and_text_fields_raise(self, form):
    for message, change in (
        (
            'action/text/1 must be a dense tensor',
            lambda steps: {'text': (steps['reward'], steps['words'])},
        ),
        (
            'action must be a dense tensor, but is Sparse',
            lambda steps: tf.sparse.from_dense(steps['observation']),
        ),
    ):
      data = _map_steps(
          golden.with_unused_fields(form([golden.COMPLETE])),
          lambda steps, change=change: {**steps, 'action': change(steps)},
      )
      with self.assertRaisesRegex(ValueError, f'Step field {message}'):
        _spec_of(data)
    data = form([{**golden.COMPLETE, 'reward': {'a': _WORDS}}])
    with self.assertRaisesRegex(ValueError, 'reward/a must be of numbers, but'):
      _spec_of(data)

  def test_stacked_steps_without_time(self):
    data = tf.data.Dataset.from_tensors(
        {'steps': {**golden.COMPLETE, 'reward': 1.0}}
    )
    with self.assertRaisesRegex(ValueError, 'leading time dimension'):
      _spec_of(data)
    with self.assertRaisesRegex(ValueError, 'step field reward is one value'):
      episode_dataset.batches_of(data)

  def test_elements_that_are_no_episodes(self):
    batch = next(
        iter(episode_dataset.batches_of(golden.stacked([golden.COMPLETE])))
    )
    for element, actual in (
        (batch, 'a EpisodeBatch of'),
        ({'a': 1}, r"\['a'\]"),
        (3, '3'),
    ):
      with self.assertRaisesRegex(
          ValueError, f"x must be a dict with 'steps', but is {actual}.* Look."
      ):
        steps_lib.check_has_steps('x', element, ' Look.')

  def test_zeros_and_float_fields(self):
    spec = {
        'a': tf.TensorSpec([None, 3], tf.int64),
        'b': (tf.TensorSpec([2], tf.string), tf.TensorSpec(None, tf.bfloat16)),
    }
    actual = steps_lib.zeros(spec)
    self.assertEqual(actual['a'].shape, [0, 3])
    self.assertEqual(actual['b'][1].shape, [0])
    self.assertAllEqual(actual['b'][0], [b'', b''])
    self.assertEqual(steps_lib.find_float_fields(spec), [('b/1', spec['b'][1])])


class ToColumnTest(tf.test.TestCase):

  def test_a_column_of_shape_one(self):
    column = tf.constant([[True], [False]])
    flags = lambda column: steps_lib.to_column('is_first', column, tf.bool)
    # The last dimension may be known at run time only.
    open_spec = [tf.TensorSpec([None, None], tf.bool)]
    open_flags = tf.function(flags, open_spec, autograph=False)
    self.assertAllEqual(flags(column), [True, False])
    self.assertAllEqual(open_flags(column), [True, False])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'is_first must be one number for each step.*Are the episodes batched',
    ):
      open_flags(tf.ones([2, 4], tf.bool))


class StackTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(*golden.FORMS)
  def test_stacked_steps_equal_columns_of_episodes(self, form):
    episodes = [golden.COMPLETE, golden.INVALID_CASES['empty'].episode]
    data = golden.FORMS[form](episodes)
    eagerly = [steps_lib.stack_steps(episode['steps']) for episode in data]
    in_map = [episode['steps'] for episode in steps_lib.stack_episodes(data)]
    some = [
        steps_lib.stack_fields(episode['steps'], ['reward']) for episode in data
    ]
    for actual in (eagerly, in_map):
      golden.assert_frames_equal(self, actual, episodes)
    for one, episode in zip(some, episodes):
      self.assertEqual(list(one), ['reward'])
      self.assertAllEqual(one['reward'], episode['reward'])

  def test_steps_that_end_in_a_map(self):
    counts = tf.data.Dataset.from_tensor_slices(np.int64([0, 1, 64, 150]))
    data = counts.map(
        lambda count: {
            'steps': tf.data.Dataset.range(count).map(
                lambda index: {'x': tf.fill([2], index)}
            )
        }
    )
    for count, episode in zip(counts, steps_lib.stack_episodes(data)):
      expected = np.repeat(np.arange(count)[:, None], 2, 1)
      self.assertAllEqual(episode['steps']['x'], expected)

  def test_unused_fields_are_not_read(self):
    episode = {**golden.COMPLETE, 'image': np.zeros([4, 5000], np.uint8)}
    for size, expected in ((5000, ['reward']), (10, ['image', 'reward'])):
      cut = {name: episode[name] for name in ('reward', 'image')}
      cut['image'] = cut['image'][:, :size]
      batches = episode_dataset.batches_of(
          golden.nested([cut]).map(lambda one: {**one, 'id': 1, 'unused': 2}),
          fields=['reward'],
          episode_fields=['id'],
      )
      self.assertCountEqual(batches.element_spec.steps, expected)
      self.assertEqual(list(batches.element_spec.fields), ['id'])

  def test_lengths(self):
    steps = {'a': tf.zeros([3, 2]), 'b': (tf.zeros([3]), tf.range(3))}
    self.assertIs(steps_lib.stack_steps(steps), steps)
    invalid = {'reward': tf.zeros([3]), 'action': tf.zeros([4])}
    message = 'All fields of an episode must have .* Found action: 4, reward: 3'
    with self.assertRaisesRegex(ValueError, message):
      steps_lib.stack_episodes(tf.data.Dataset.from_tensors({'steps': invalid}))
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      steps_lib.stack_steps(invalid)

  def test_a_failed_attempt(self):
    actual = pipelines.map_or_else(
        tf.data.Dataset.from_tensor_slices([b'\1\0\0\0', b'1', b'\2\0\0\0']),
        lambda text: tf.io.decode_raw(text, tf.int32),
        lambda spec, text: steps_lib.zeros(spec),
    )
    self.assertEqual(
        [one.tolist() for one in actual.as_numpy_iterator()], [[1], [], [2]]
    )


if __name__ == '__main__':
  tf.test.main()
