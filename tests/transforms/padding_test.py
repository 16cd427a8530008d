"""Tests of padding to a common width."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import mixtures
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import padding
from tests import golden
from tests import ways


def _with_action(width, length=3, dtype=np.float32):
  action = 1 + np.arange(length * width, dtype=dtype).reshape(length, width)
  return {
      **golden.make_episode([1.0] * length, terminal=True),
      'action': action,
  }


class PadFieldTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_by_hand(self, run):
    pad = padding.PadField('action', 2, 4)
    episode = _with_action(2)
    steps = run(pad, [episode])[0]['steps']
    self.assertAllEqual(
        steps['action'], [[1, 2, 0, 0], [3, 4, 0, 0], [5, 6, 0, 0]]
    )
    self.assertEqual(steps['action'].dtype, np.float32)
    self.assertAllEqual(steps['action_pad_mask'], [[1, 1, 0, 0]] * 3)
    self.assertEqual(steps['action_pad_mask'].dtype, bool)
    back = pad.invert(steps)
    self.assertCountEqual(back, episode)
    self.assertAllEqual(back['action'], episode['action'])

  def test_a_policys_action(self):
    pad = padding.PadField('action', 2, 4)
    action = np.float32([7, 8, 0.1, 0.2])
    self.assertAllEqual(pad.invert({'action': action})['action'], [7, 8])
    chunk = np.stack([action] * 3)
    self.assertAllEqual(pad.invert({'action': chunk})['action'], [[7, 8]] * 3)
    self.assertEqual(pad.invert({}), {})

  @parameterized.named_parameters(*golden.FORMS_AND_PACKS.items())
  def test_nested_field_and_other_mask(self, form):
    episode = _with_action(1)
    episode['observation'] = {'state': np.float64([[1, 2], [3, 4], [5, 6]])}
    rlds_data = applying.transform_episodes(
        form([episode]),
        [
            padding.PadField('observation/state', 2, 3),
            padding.PadField('action', 1, 1, mask='is_real'),
        ],
    )
    if form is golden.packed:
      golden.assert_packs_hold(self, rlds_data)
    spec = rlds_data.element_spec['steps']
    self.assertEqual(
        spec['observation']['state'], tf.TensorSpec([None, 3], tf.float64)
    )
    steps = next(rlds_data.as_numpy_iterator())['steps']
    self.assertAllEqual(steps['observation']['state_pad_mask'], [[1, 1, 0]] * 3)
    self.assertAllEqual(steps['is_real'], [[1]] * 3)

  def test_common_width_of_a_mixture(self):
    datasets = {
        'one_arm': golden.stacked([_with_action(2)]),
        'two_arms': golden.nested([_with_action(5)]),
    }
    pads = padding.PadField.to_common_width(datasets)
    self.assertEqual(pads['one_arm'], padding.PadField('action', 2, 5))
    self.assertEqual(pads['two_arms'], padding.PadField('action', 5, 5))
    mixed = mixtures.mix_datasets(
        {
            name: applying.transform_episodes(dataset, [pads[name]])
            for name, dataset in datasets.items()
        },
        stop_when='all',
    )
    real = {
        int(element.source): element.element['steps']['action_pad_mask'].numpy()
        for element in mixed
    }
    self.assertAllEqual(real[0], [[1, 1, 0, 0, 0]] * 3)
    self.assertAllEqual(real[1], [[1, 1, 1, 1, 1]] * 3)
    wide = padding.PadField.to_common_width(datasets, width=8)
    self.assertEqual(wide['one_arm'], padding.PadField('action', 2, 8))

  def test_errors(self):
    data = golden.stacked([_with_action(2)])
    with self.assertRaisesRegex(ValueError, 'action must have 3 numbers, but'):
      data.map(padding.PadField('action', 3, 4))
    with self.assertRaisesRegex(ValueError, 'from size=3 to width=2'):
      padding.PadField.to_common_width(
          {'a': golden.stacked([_with_action(3)])}, width=2
      )
    with self.assertRaisesRegex(ValueError, 'reward of the data set a must be'):
      padding.PadField.to_common_width({'a': data}, 'reward')
    with self.assertRaisesRegex(ValueError, "a field 'action' already"):
      data.map(padding.PadField('action', 2, 4, mask='action'))


if __name__ == '__main__':
  tf.test.main()
