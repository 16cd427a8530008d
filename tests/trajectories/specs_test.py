"""Tests of the specs of trajectories and of signatures."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import rlds_to_reverb as original
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.trajectories import specs
from tests import golden


def _nested_episode():
  return golden.random_episodes(
      np.random.default_rng(0), 1, nested_fields=True
  )[0]


class CreateTrajectoryDataSpecTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.product(
      form=list(golden.FORMS), episode=[golden.COMPLETE, _nested_episode()]
  )
  def test_spec_equals_tf_agents(self, form, episode):
    expected = original.create_trajectory_data_spec(golden.nested([episode]))
    actual = specs.create_trajectory_data_spec(
        golden.with_unused_fields(golden.FORMS[form]([episode]))
    )
    self.assertEqual(actual, expected)
    self.assertEqual(actual.step_type.name, 'step_type')
    self.assertIsInstance(actual.discount, tensor_spec.BoundedTensorSpec)
    self.assertAllEqual(
        (actual.discount.minimum, actual.discount.maximum), (0, 1)
    )
    # Whatever the discount is in the data.
    for discount in np.ones([4], np.float64), np.ones([4, 1], np.int32):
      data = golden.nested([{**golden.COMPLETE, 'discount': discount}])
      self.assertEqual(
          specs.create_trajectory_data_spec(data).discount, expected.discount
      )

  def test_policy_info(self):
    def info_fn(current, following):
      return {
          'both': tf.stack([current['observation'], following['observation']]),
          'rest': (following['is_first'], 3, tf.constant('a'), np.float64(1)),
      }

    data = golden.nested([golden.COMPLETE])
    spec = specs.create_trajectory_data_spec(data, info_fn)
    dtypes = (tf.bool, tf.int32, tf.string, tf.float64)
    self.assertEqual(
        spec.policy_info,
        {
            'both': tf.TensorSpec([2, 2], tf.float32),
            'rest': tuple(tf.TensorSpec([], dtype) for dtype in dtypes),
        },
    )
    without = specs.create_trajectory_data_spec(data)
    self.assertEqual(spec._replace(policy_info=()), without)

  @parameterized.parameters(({},), ((),), ({'a': {}},))
  def test_an_observation_without_fields(self, observation):
    data = golden.stacked([golden.COMPLETE]).map(
        lambda episode: {
            'steps': {**episode['steps'], 'observation': observation}
        }
    )
    with self.assertRaisesRegex(ValueError, 'must have an observation'):
      specs.create_trajectory_data_spec(data)


_CAMERA = tf.TensorSpec([4, 4, 3], tf.uint8)
_STATE = (tf.TensorSpec([2], tf.float32),)
_NUMBER = tf.TensorSpec([], tf.float32)
_FLAT = {'arm/joint': _NUMBER}


def _spec(**changes):
  spec = trajectory.Trajectory(
      step_type=tf.TensorSpec([], tf.int32, 'step_type'),
      observation={'camera': _CAMERA, 'state': _STATE},
      action=tf.TensorSpec([], tf.int64, 'action'),
      policy_info=(),
      next_step_type=tf.TensorSpec([], tf.int32, 'step_type'),
      reward=_NUMBER,
      discount=tensor_spec.BoundedTensorSpec([], tf.float32, 0.0, 1.0),
  )
  return spec._replace(**changes)


def _table(**changes):
  return tensor_spec.add_outer_dim(_spec(**changes))


class CheckSignatureTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      ('no_signature', None),
      ('equal', _table()),
      (
          'names_and_bounds',
          _table(
              action=tensor_spec.BoundedTensorSpec([], tf.int64, 0, 9, 'a'),
              reward=tf.TensorSpec([], tf.float32, 'reward'),
              discount=_NUMBER,
          ),
      ),
      ('static_time', tensor_spec.add_outer_dim(_spec(), 2)),
      (
          'open_dimension',
          _table(
              observation={
                  'camera': tf.TensorSpec([None, None, 3], tf.uint8),
                  'state': _STATE,
              }
          ),
      ),
      ('unknown_rank', _table()._replace(action=tf.TensorSpec(None, tf.int64))),
  )
  def test_compatible_signatures_are_accepted(self, signature):
    specs.check_signature(signature, _spec())
    flat = _spec(observation=_FLAT)
    specs.check_signature(tensor_spec.add_outer_dim(flat), flat)

  @parameterized.named_parameters(
      (
          'dtype_and_shape',
          _table(
              action=tf.TensorSpec([], tf.int32),
              observation={
                  'camera': tf.TensorSpec([8, 4, 3], tf.uint8),
                  'state': (tf.TensorSpec([2, 1], tf.float32),),
              },
          ),
          _spec(),
          [
              'action: the table expects int32 (None,), the data has int64'
              ' (None,)',
              'observation/camera: the table expects uint8 (None, 8, 4, 3), the'
              ' data has uint8 (None, 4, 4, 3)',
              'observation/state/0: the table expects float32 (None, 2, 1), the'
              ' data has float32 (None, 2)',
          ],
      ),
      (
          'structure',
          _table(observation={'camera': _CAMERA}, policy_info={'v': _NUMBER}),
          _spec(),
          [
              'observation/state/0: the table has no such field, the data has'
              ' float32 (None, 2)',
              'policy_info/v: the table expects float32 (None,), the data has'
              ' no such field',
          ],
      ),
      (
          'no_time',
          _spec(),
          _spec(),
          [
              'action',
              'discount',
              'next_step_type',
              'observation/camera',
              'observation/state/0',
              'reward',
              'step_type',
          ],
      ),
      (
          'all',
          _table(action=(tf.TensorSpec([], tf.int64),), reward=_CAMERA),
          _spec(),
          ['action', 'action/0', 'reward'],
      ),
      (
          'a_key_with_a_slash',
          _table(observation=_FLAT),
          _spec(observation={'arm': {'joint': _NUMBER}}),
          ['observation/arm/joint', 'observation/arm/joint'],
      ),
  )
  def test_incompatible_signatures_raise_with_differences(
      self, signature, spec, expected
  ):
    with self.assertRaises(ValueError) as caught:
      specs.check_signature(signature, spec)
    self.assertEqual(
        str(caught.exception),
        'Replay buffer table signature spec should match RLDS data spec.',
    )
    actual = caught.exception.differences
    self.assertLen(actual, len(expected))
    for one, start in zip(actual, expected):
      self.assertStartsWith(one, start)
      self.assertTrue(':' in start or one[len(start)] == ':')


if __name__ == '__main__':
  tf.test.main()
