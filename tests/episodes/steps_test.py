"""Tests of the step fields read off an element spec."""

import itertools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as original

from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from tests import golden

_FORMS = (('stacked', golden.stacked), ('nested', golden.nested))
_FLAGS = ('is_first', 'is_last', 'is_terminal')


class StackStepsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      ('stacked', golden.stacked, True),
      ('nested', golden.nested, True),
      ('stacked_in_map', golden.stacked, False),
      ('nested_in_map', golden.nested, False),
  )
  def test_whole_episodes(self, form, eagerly):
    episodes = [golden.COMPLETE, golden.INVALID_CASES['empty'].episode]
    rlds_data = form(episodes)
    if eagerly:
      stacked = [stacked_steps.stack_steps(e['steps']) for e in rlds_data]
    else:
      stacked = list(
          rlds_data.map(lambda e: stacked_steps.stack_steps(e['steps']))
      )
    self.assertLen(stacked, 2)
    for steps, episode in zip(stacked, episodes):
      self.assertAllEqual(sorted(steps), sorted(episode))
      for name, leaf in episode.items():
        self.assertAllEqual(steps[name], leaf)
        self.assertEqual(steps[name].dtype, leaf.dtype)

  def test_steps_that_end_in_a_map(self):
    rlds_data = (
        tf.data.Dataset.from_tensors([0, 1, 64, 150])
        .unbatch()
        .map(
            lambda count: {
                'steps': tf.data.Dataset.range(tf.cast(count, tf.int64)).map(
                    lambda index: {'x': tf.fill([2], index)}
                )
            }
        )
    )
    stacked = rlds_data.map(lambda e: stacked_steps.stack_steps(e['steps']))
    self.assertEqual(
        stacked.element_spec, {'x': tf.TensorSpec([None, 2], tf.int64)}
    )
    self.assertAllEqual(
        [steps['x'].shape for steps in stacked],
        [[0, 2], [1, 2], [64, 2], [150, 2]],
    )
    for steps in stacked:
      for index, row in enumerate(steps['x']):
        self.assertAllEqual(row, [index, index])


class StepsSpecTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*_FORMS)
  def test_specs_of_one_step(self, form):
    rlds_data = form([golden.COMPLETE])
    spec = steps_lib.steps_spec(rlds_data.element_spec)
    self.assertEqual(spec.stacked, form is golden.stacked)
    self.assertEqual(
        spec.step,
        {
            'observation': tf.TensorSpec([2], tf.float32),
            'action': tf.TensorSpec([], tf.int64),
            'reward': tf.TensorSpec([], tf.float32),
            'discount': tf.TensorSpec([], tf.float32),
            'is_first': tf.TensorSpec([], tf.bool),
            'is_last': tf.TensorSpec([], tf.bool),
            'is_terminal': tf.TensorSpec([], tf.bool),
        },
    )

  def test_other_fields_of_an_episode(self):
    rlds_data = golden.nested([golden.COMPLETE]).map(
        lambda episode: {**episode, 'episode_id': 'a'}
    )
    self.assertCountEqual(
        steps_lib.steps_spec(rlds_data.element_spec).step, list(golden.COMPLETE)
    )

  @parameterized.named_parameters(
      ('other_keys', {'observation': 1}),
      ('tensor', 1),
      ('tuple', ({'steps': 1}, 2)),
  )
  def test_no_steps(self, element):
    with self.assertRaises(ValueError) as caught:
      steps_lib.steps_spec(tf.data.Dataset.from_tensors(element).element_spec)
    self.assertEqual(
        str(caught.exception),
        'No dataset representing RLDS steps exist in the data.',
    )

  def test_no_steps_as_tf_agents(self):
    rlds_data = tf.data.Dataset.from_tensors({'observation': 1})
    with self.assertRaises(ValueError) as theirs:
      original.create_trajectory_data_spec(rlds_data)
    with self.assertRaises(ValueError) as ours:
      steps_lib.steps_spec(rlds_data.element_spec)
    self.assertEqual(str(ours.exception), str(theirs.exception))

  @parameterized.parameters(*steps_lib.get_rlds_step_features())
  def test_missing_feature(self, feature):
    episode = {
        name: leaf for name, leaf in golden.COMPLETE.items() if name != feature
    }
    with self.assertRaises(ValueError) as theirs:
      original.create_trajectory_data_spec(golden.nested([episode]))
    self.assertStartsWith(
        str(theirs.exception), 'Invalid RLDS step spec. Features expected are ['
    )
    for name, form in _FORMS:
      with self.subTest(name):
        with self.assertRaises(ValueError) as ours:
          steps_lib.steps_spec(form([episode]).element_spec)
        self.assertStartsWith(str(ours.exception), str(theirs.exception))
        self.assertIn('map_fields', str(ours.exception))

  def test_nothing_is_done_where_lengths_are_known_to_be_equal(self):
    steps = {'a': tf.zeros([3, 2]), 'b': (tf.zeros([3]), tf.range(3))}
    self.assertIs(stacked_steps.stack_steps(steps), steps)

  def test_steps_that_are_no_dict(self):
    for steps in (
        tf.zeros([3]),
        (tf.zeros([3]), tf.zeros([3])),
    ):
      for name, dataset in {
          'stacked': tf.data.Dataset.from_tensors({'steps': steps}),
          'nested': tf.data.Dataset.from_tensors(steps).map(
              lambda *leaves: {
                  'steps': tf.data.Dataset.from_tensor_slices(leaves)
              }
          ),
      }.items():
        with self.subTest(name):
          with self.assertRaisesRegex(ValueError, r'but found \[\]'):
            steps_lib.steps_spec(dataset.element_spec)

  def test_features(self):
    self.assertEqual(
        steps_lib.get_rlds_step_features(), original.get_rlds_step_features()
    )
    steps_lib.get_rlds_step_features().clear()
    self.assertLen(steps_lib.get_rlds_step_features(), 7)

  @parameterized.named_parameters(
      (f'{form_name}_{feature}_{name}', form, feature, column)
      for (form_name, form), (feature, name, column) in itertools.product(
          _FORMS,
          [
              ('discount', 'string', np.array([b'1'] * 4, object)),
              ('discount', 'bool', np.ones([4], bool)),
              ('discount', 'pair', np.ones([4, 2], np.float32)),
              ('discount', 'matrix', np.ones([4, 1, 1], np.float32)),
              ('is_first', 'string', np.array([b'1'] * 4, object)),
              ('is_last', 'pair', np.ones([4, 2], bool)),
              ('is_terminal', 'matrix', np.ones([4, 1, 1], bool)),
          ],
      )
  )
  def test_not_one_number(self, form, feature, column):
    rlds_data = form([dict(golden.COMPLETE, **{feature: column})])
    with self.assertRaisesRegex(
        ValueError, f'Step field {feature} must be one number'
    ):
      steps_lib.steps_spec(rlds_data.element_spec)

  @parameterized.named_parameters(*_FORMS)
  def test_discount_or_flag_that_is_a_dict(self, form):
    for feature in ('discount', *_FLAGS):
      episode = dict(golden.COMPLETE)
      episode[feature] = {'value': episode[feature]}
      with self.subTest(feature):
        with self.assertRaisesRegex(ValueError, f'{feature} must be one'):
          steps_lib.steps_spec(form([episode]).element_spec)

  @parameterized.named_parameters(*_FORMS)
  def test_numbers(self, form):
    for dtype, shape in itertools.product(
        (np.float32, np.float64, np.int32, np.uint8), ((), (1,))
    ):
      column = np.ones([4, *shape], dtype)
      episode = dict(
          golden.COMPLETE, discount=column, **{f: column for f in _FLAGS}
      )
      spec = steps_lib.steps_spec(form([episode]).element_spec).step
      self.assertEqual(spec['discount'], tf.TensorSpec(shape, dtype))
      self.assertEqual(spec['is_first'], tf.TensorSpec(shape, dtype))

  @parameterized.named_parameters(*_FORMS)
  def test_unused_ragged_field(self, form):
    spec = steps_lib.steps_spec(
        golden.with_unused_fields(form([golden.COMPLETE])).element_spec
    )
    self.assertIsInstance(spec.step['words'], tf.RaggedTensorSpec)
    self.assertEqual(spec.step['reward'], tf.TensorSpec([], tf.float32))

  @parameterized.named_parameters(
      (f'{form_name}_{feature}', form, feature)
      for (form_name, form), feature in itertools.product(
          _FORMS, ('observation', 'action', 'reward')
      )
  )
  def test_used_ragged_field(self, form, feature):
    def use(steps):
      steps = dict(steps)
      steps[feature] = {'text': (steps['reward'], steps.pop('words'))}
      return steps

    def use_in(episode):
      steps = episode['steps']
      if isinstance(steps, tf.data.Dataset):
        return {'steps': steps.map(use)}
      return {'steps': use(steps)}

    rlds_data = golden.with_unused_fields(form([golden.COMPLETE])).map(use_in)
    with self.assertRaisesRegex(
        ValueError, f'Step field {feature}/text/1 must be a dense tensor'
    ):
      steps_lib.steps_spec(rlds_data.element_spec)

  def test_used_sparse_field(self):
    rlds_data = golden.nested([golden.COMPLETE]).map(
        lambda episode: {
            'steps': episode['steps'].map(
                lambda step: {
                    **step,
                    'action': tf.sparse.from_dense(step['observation']),
                }
            )
        }
    )
    with self.assertRaisesRegex(
        ValueError, 'Step field action must be a dense tensor'
    ):
      steps_lib.steps_spec(rlds_data.element_spec)

  def test_stacked_steps_without_time(self):
    rlds_data = tf.data.Dataset.from_tensors(
        {'steps': {**golden.COMPLETE, 'reward': 1.0}}
    )
    with self.assertRaisesRegex(ValueError, 'leading time dimension'):
      steps_lib.steps_spec(rlds_data.element_spec)


class FieldsTest(tf.test.TestCase):

  def test_field_path(self):
    self.assertEqual(
        steps_lib.field_path(('observation', 'camera', 0)),
        'observation/camera/0',
    )

  def test_float_fields(self):
    step = {
        'reward': tf.TensorSpec([], tf.bfloat16),
        'observation': {
            'b': (tf.TensorSpec([], tf.int64), tf.TensorSpec([2], tf.float64)),
            'a': tf.TensorSpec([], tf.float32),
            'c': tf.TensorSpec([], tf.string),
        },
    }
    self.assertEqual(
        steps_lib.float_fields(step),
        [
            ('observation/a', tf.TensorSpec([], tf.float32)),
            ('observation/b/1', tf.TensorSpec([2], tf.float64)),
            ('reward', tf.TensorSpec([], tf.bfloat16)),
        ],
    )


class ZerosTest(tf.test.TestCase):

  def test_open_dimensions_are_zero(self):
    found = steps_lib.zeros(
        {
            'a': tf.TensorSpec([None, 3], tf.int64),
            'b': (tf.TensorSpec([2], tf.string),),
        }
    )
    self.assertEqual(found['a'].shape, [0, 3])
    self.assertEqual(found['a'].dtype, tf.int64)
    self.assertAllEqual(found['b'][0], [b'', b''])


class OneAStepTest(tf.test.TestCase):

  def test_a_column_of_shape_one(self):
    column = tf.constant([[True], [False]])
    flags = lambda column: steps_lib.one_a_step('is_first', column, tf.bool)
    # What the last dimension is may be known only while it runs.
    open_flags = tf.function(
        flags,
        input_signature=[tf.TensorSpec([None, None], tf.bool)],
        autograph=False,
    )
    self.assertAllEqual(flags(column), [True, False])
    self.assertAllEqual(open_flags(column), [True, False])

  def test_a_batch_of_episodes_is_no_episode(self):
    batches = golden.stacked([golden.COMPLETE, golden.COMPLETE]).batch(2)
    flags = batches.map(
        lambda batch: steps_lib.one_a_step(
            'is_first', batch['steps']['is_first'], tf.bool
        )
    )
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError,
        'is_first must be one number for each step.*Are the episodes batched',
    ):
      list(flags)


class StackEpisodesTest(tf.test.TestCase):

  def test_fields_of_unequal_length_are_named_first(self):
    steps = {'reward': tf.zeros([3]), 'action': tf.zeros([4])}
    episodes = tf.data.Dataset.from_tensors({'steps': steps})
    with self.assertRaises(ValueError) as raised:
      stacked_steps.stack_episodes(episodes)
    self.assertStartsWith(
        str(raised.exception),
        "An episode's fields must have a row for every step. Found action: 4,",
    )


if __name__ == '__main__':
  tf.test.main()
