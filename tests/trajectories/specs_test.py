"""Tests of the specs of trajectories and of signatures."""

import itertools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as original
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.trajectories import specs
from tests import golden

_FORMS = (('stacked', golden.stacked), ('nested', golden.nested))


def _nested_episode():
  return golden.random_episodes(
      np.random.default_rng(0), 1, nested_fields=True
  )[0]


class CreateTrajectoryDataSpecTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*_FORMS)
  def test_flat(self, form):
    spec = specs.create_trajectory_data_spec(form([golden.COMPLETE]))
    self.assertIsInstance(spec, trajectory.Trajectory)
    self.assertEqual(
        spec.step_type, tf.TensorSpec([], tf.int32, name='step_type')
    )
    self.assertEqual(
        spec.next_step_type, tf.TensorSpec([], tf.int32, name='step_type')
    )
    self.assertIsInstance(spec.discount, tensor_spec.BoundedTensorSpec)
    self.assertEqual(spec.discount.shape, [])
    self.assertEqual(spec.discount.dtype, tf.float32)
    self.assertAllEqual(spec.discount.minimum, 0)
    self.assertAllEqual(spec.discount.maximum, 1)
    self.assertEqual(spec.observation, tf.TensorSpec([2], tf.float32))
    self.assertEqual(spec.action, tf.TensorSpec([], tf.int64))
    self.assertEqual(spec.reward, tf.TensorSpec([], tf.float32))
    self.assertEqual(spec.policy_info, ())

  @parameterized.named_parameters(*_FORMS)
  def test_nested_fields(self, form):
    spec = specs.create_trajectory_data_spec(
        golden.with_unused_fields(form([_nested_episode()]))
    )
    self.assertEqual(
        spec.observation,
        {
            'camera': {
                'rgb': tf.TensorSpec([2, 3, 3], tf.uint8),
                'pose': (
                    tf.TensorSpec([3], tf.float64),
                    {'joint': tf.TensorSpec([2], tf.float32)},
                ),
            },
            'task': tf.TensorSpec([], tf.string),
            'state': (
                tf.TensorSpec([2], tf.int64),
                tf.TensorSpec([], tf.float32),
            ),
        },
    )
    self.assertEqual(
        spec.action,
        (
            {'gripper': tf.TensorSpec([], tf.int64)},
            tf.TensorSpec([], tf.string),
            tf.TensorSpec([2], tf.float32),
        ),
    )
    self.assertEqual(spec.reward, tf.TensorSpec([], tf.float64))

  @parameterized.named_parameters(
      ('flat', golden.COMPLETE), ('nested_fields', _nested_episode())
  )
  def test_equals_tf_agents(self, episode):
    expected = original.create_trajectory_data_spec(golden.nested([episode]))
    for name, form in _FORMS:
      with self.subTest(name):
        self.assertEqual(
            specs.create_trajectory_data_spec(form([episode])), expected
        )

  @parameterized.named_parameters(*_FORMS)
  def test_discount_is_float32_whatever_it_was(self, form):
    for dtype, shape in itertools.product(
        (np.float64, np.int32, np.float32), ((), (1,))
    ):
      episode = dict(golden.COMPLETE, discount=np.ones([4, *shape], dtype))
      spec = specs.create_trajectory_data_spec(form([episode]))
      self.assertEqual(spec.discount.dtype, tf.float32)
      self.assertEqual(spec.discount.shape, [])

  @parameterized.named_parameters(*_FORMS)
  def test_policy_info(self, form):
    def info_fn(current, following):
      return {
          'both': tf.stack([current['observation'], following['observation']]),
          'rest': (following['is_first'], 3, tf.constant('a'), np.float64(1)),
      }

    spec = specs.create_trajectory_data_spec(form([golden.COMPLETE]), info_fn)
    self.assertEqual(
        spec.policy_info,
        {
            'both': tf.TensorSpec([2, 2], tf.float32),
            'rest': (
                tf.TensorSpec([], tf.bool),
                tf.TensorSpec([], tf.int32),
                tf.TensorSpec([], tf.string),
                tf.TensorSpec([], tf.float64),
            ),
        },
    )
    without = specs.create_trajectory_data_spec(form([golden.COMPLETE]))
    self.assertEqual(spec._replace(policy_info=()), without)

  def test_no_steps(self):
    with self.assertRaisesRegex(
        ValueError, 'No dataset representing RLDS steps exist in the data.'
    ):
      specs.create_trajectory_data_spec(
          tf.data.Dataset.from_tensors({'observation': 1})
      )

  @parameterized.parameters(({},), ((),), ({'a': {}},))
  def test_an_observation_without_fields(self, observation):
    data = golden.stacked([golden.COMPLETE]).map(
        lambda episode: {
            'steps': {**episode['steps'], 'observation': observation}
        }
    )
    with self.assertRaisesRegex(ValueError, 'must have an observation'):
      specs.create_trajectory_data_spec(data)


class PolicyInfoTest(tf.test.TestCase):

  def test_fields_that_it_reads(self):
    step = {
        name: tf.TensorSpec([], tf.float32) for name in ('a', 'b', 'c', 'd')
    }
    everything = {'a', 'b', 'c', 'd'}
    for name, info_fn, fields in (
        ('none', lambda current, following: 1, set()),
        ('key', lambda current, following: current['a'], {'a'}),
        (
            'both_steps',
            lambda current, following: (current['a'], following['c']),
            {'a', 'c'},
        ),
        ('get', lambda current, following: following.get('b'), {'b'}),
        ('get_absent', lambda current, following: current.get('z', 0), set()),
        (
            'items',
            lambda current, following: [v for _, v in current.items()],
            everything,
        ),
        (
            'values',
            lambda current, following: tuple(current.values()),
            everything,
        ),
        ('keys', lambda current, following: len(current.keys()), everything),
        ('unpacking', lambda current, following: {**following}, everything),
        ('copy', lambda current, following: following.copy(), everything),
        (
            'nest',
            lambda current, following: tf.nest.map_structure(
                tf.square, following
            ),
            everything,
        ),
    ):
      with self.subTest(name):
        self.assertEqual(specs.PolicyInfo(info_fn, step).fields, fields)

  def test_maps_rows(self):
    step = {
        'x': tf.TensorSpec([2], tf.float32),
        'name': tf.TensorSpec([], tf.string),
    }
    info = specs.PolicyInfo(
        lambda current, following: (
            tf.reduce_sum(current['x'] * following['x']),
            following['name'] + '!',
        ),
        step,
    )
    dot, name = info(
        {'x': tf.constant([[1.0, 2], [3, 4]]), 'name': tf.constant(['a', 'b'])},
        {'x': tf.constant([[5.0, 6]]), 'name': tf.constant(['c'])},
    )
    self.assertAllEqual(dot, [11, 39])
    self.assertAllEqual(name, [b'b!', b'c!'])


def _data_spec(**changes):
  spec = trajectory.Trajectory(
      step_type=tf.TensorSpec([], tf.int32, 'step_type'),
      observation={
          'camera': tf.TensorSpec([4, 4, 3], tf.uint8),
          'state': (tf.TensorSpec([2], tf.float32),),
      },
      action=tf.TensorSpec([], tf.int64, 'action'),
      policy_info=(),
      next_step_type=tf.TensorSpec([], tf.int32, 'step_type'),
      reward=tf.TensorSpec([], tf.float32),
      discount=tensor_spec.BoundedTensorSpec([], tf.float32, 0.0, 1.0),
  )
  return spec._replace(**changes)


def _signature(**changes):
  return tensor_spec.add_outer_dim(_data_spec(**changes))


class CheckSignatureTest(tf.test.TestCase, parameterized.TestCase):

  def _differences(self, signature, data_spec):
    with self.assertRaises(specs.SpecMismatchError) as caught:
      specs.check_signature(signature, data_spec)
    self.assertIsInstance(caught.exception, ValueError)
    self.assertEqual(
        str(caught.exception),
        'Replay buffer table signature spec should match RLDS data spec.',
    )
    return caught.exception.differences

  @parameterized.named_parameters(
      ('no_signature', None),
      ('equal', _signature()),
      (
          'names_and_bounds',
          _signature(
              action=tensor_spec.BoundedTensorSpec([], tf.int64, 0, 9, 'a'),
              reward=tf.TensorSpec([], tf.float32, 'reward'),
              step_type=tensor_spec.BoundedTensorSpec([], tf.int32, 0, 2),
              discount=tf.TensorSpec([], tf.float32),
          ),
      ),
      ('static_time', tensor_spec.add_outer_dim(_data_spec(), 2)),
      (
          'open_dimension',
          _signature(
              observation={
                  'camera': tf.TensorSpec([None, None, 3], tf.uint8),
                  'state': (tf.TensorSpec([2], tf.float32),),
              }
          ),
      ),
      (
          'unknown_rank',
          _signature()._replace(action=tf.TensorSpec(None, tf.int64)),
      ),
  )
  def test_fits(self, signature):
    self.assertIsNone(specs.check_signature(signature, _data_spec()))

  def test_dtype(self):
    self.assertEqual(
        self._differences(
            _signature(action=tf.TensorSpec([], tf.int32)), _data_spec()
        ),
        [
            'action: the table expects int32 (None,), the data has int64'
            ' (None,)'
        ],
    )

  def test_shape(self):
    signature = _signature(
        observation={
            'camera': tf.TensorSpec([8, 4, 3], tf.uint8),
            'state': (tf.TensorSpec([2, 1], tf.float32),),
        }
    )
    self.assertEqual(
        self._differences(signature, _data_spec()),
        [
            'observation/camera: the table expects uint8 (None, 8, 4, 3), the'
            ' data has uint8 (None, 4, 4, 3)',
            'observation/state/0: the table expects float32 (None, 2, 1), the'
            ' data has float32 (None, 2)',
        ],
    )

  def test_no_outer_dimension(self):
    differences = self._differences(_data_spec(), _data_spec())
    paths = [difference.split(':')[0] for difference in differences]
    self.assertIn('reward', paths)
    self.assertIn('observation/camera', paths)

  def test_structure(self):
    differences = self._differences(
        _signature(
            observation={'camera': tf.TensorSpec([4, 4, 3], tf.uint8)},
            policy_info={'value': tf.TensorSpec([], tf.float32)},
        ),
        _data_spec(),
    )
    self.assertEqual(
        differences,
        [
            'observation/state/0: the table has no such field, the data has'
            ' float32 (None, 2)',
            'policy_info/value: the table expects float32 (None,), the data has'
            ' no such field',
        ],
    )

  def test_lists_every_difference(self):
    differences = self._differences(
        _signature(
            action=(tf.TensorSpec([], tf.int64),),
            reward=tf.TensorSpec([], tf.float64),
            discount=tf.TensorSpec([1], tf.float32),
        ),
        _data_spec(),
    )
    self.assertEqual(
        [difference.split(':')[0] for difference in differences],
        ['action', 'action/0', 'discount', 'reward'],
    )

  def test_keys_that_contain_a_slash(self):
    flat = {'arm/joint': tf.TensorSpec([2], tf.float32)}
    deep = {'arm': {'joint': tf.TensorSpec([2], tf.float32)}}
    self.assertIsNone(
        specs.check_signature(
            _signature(observation=flat), _data_spec(observation=flat)
        )
    )
    self.assertNotEmpty(
        self._differences(
            _signature(observation=flat), _data_spec(observation=deep)
        )
    )

  @parameterized.named_parameters(*_FORMS)
  def test_spec_of_data_fits_its_own_table(self, form):
    spec = specs.create_trajectory_data_spec(form([_nested_episode()]))
    self.assertIsNone(
        specs.check_signature(tensor_spec.add_outer_dim(spec), spec)
    )


if __name__ == '__main__':
  tf.test.main()
