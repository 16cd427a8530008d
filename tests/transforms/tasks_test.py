"""Tests of instructions and goals: dropped, marked, and left out."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb import windows
from tests import golden
from tests import ways


def _with_task(steps, words):
  """Returns steps with an instruction, and with the last step for a goal."""
  length = golden.length_of(steps)
  return {
      **steps,
      'words': np.array([words] * length, object),
      'goal': {'image': np.ones([length, 2, 2, 3], np.uint8)},
      'goal_step': np.full(length, 1),
  }


_EPISODES = [
    _with_task(ways.FIVE, b'pick'),
    _with_task(ways.THREE, b''),
    _with_task(ways.FIVE, b'place'),
]


def _apply(transform, episodes, packed):
  data = (
      golden.packed(episodes, pack_size=99)
      if packed
      else golden.stacked(episodes)
  )
  return [
      tf.nest.map_structure(lambda leaf: leaf.numpy(), episode['steps'])
      for episode in transforms.transform_episodes(data, [transform])
  ]


class DropConditioningTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_one_of_the_two_is_kept(self, packed):
    drop = transforms.DropConditioning(instruction='words', seed=3)
    found = _apply(drop, _EPISODES * 40, packed)
    kept = []
    for steps, given in zip(found, _EPISODES * 40):
      has_goal = steps['goal']['image'].any((1, 2, 3))
      self.assertAllEqual(
          steps['words'], np.where(has_goal, b'', given['words'])
      )
      last = golden.length_of(given) - 1
      self.assertAllEqual(steps['goal_step'], np.where(has_goal, 1, last))
      if given['words'][0]:
        kept += list(has_goal)
      else:
        self.assertTrue(has_goal.all())
    self.assertAllClose(np.mean(kept), 0.5, rtol=0, atol=0.1)
    self.assertNotAllEqual(kept[:6], kept[6:12])
    again = _apply(drop, _EPISODES * 40, not packed)
    self.assertAllEqual(
        np.concatenate([steps['words'] for steps in found]),
        np.concatenate([steps['words'] for steps in again]),
    )

  def test_always_and_never(self):
    for keep, words in ((1.0, b''), (0.0, b'pick')):
      (steps,) = _apply(
          transforms.DropConditioning(
              instruction='words', keep_goal=keep, goal_step=None
          ),
          _EPISODES[:1],
          False,
      )
      self.assertAllEqual(steps['words'], [words] * 6)
      self.assertAllEqual(steps['goal']['image'], np.full([6, 2, 2, 3], keep))
      self.assertAllEqual(steps['goal_step'], [1] * 6)

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'keep_goal must be in'):
      transforms.DropConditioning(keep_goal=1.5)
    with self.assertRaisesRegex(ValueError, 'reward must be a string'):
      _apply(
          transforms.DropConditioning(instruction='reward'), _EPISODES, False
      )


class KeepEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_those_with_an_instruction(self, packed):
    late = _with_task(ways.THREE, b'')
    late['words'][-1] = b'late'
    found = _apply(
        transforms.KeepEpisodes(labeled='words'), [*_EPISODES, late], packed
    )
    self.assertEqual(
        [steps['words'][-1] for steps in found], [b'pick', b'place', b'late']
    )


class MarkPaddingTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_what_is_there(self, run):
    image = np.zeros([4, 2, 2, 3], np.uint8)
    image[1, 0, 0, 2] = 1
    steps = {
        **ways.THREE,
        'observation': {
            'image': image,
            'encoded': np.array([b'png', b'', b'', b'png'], object),
            'both': {'a': image, 'b': image[::-1]},
            'state': np.zeros([4, 3]),
        },
    }
    found = run(transforms.MarkPadding(), [steps])[0]['steps']['observation']
    masks = found['pad_mask_dict']
    self.assertAllEqual(masks['image'], [0, 1, 0, 0])
    self.assertAllEqual(masks['encoded'], [1, 0, 0, 1])
    self.assertAllEqual(masks['both'], [0, 1, 1, 0])
    self.assertAllEqual(masks['state'], [1, 1, 1, 1])
    self.assertLen(masks, 4)
    with self.assertRaisesRegex(ValueError, 'reward must be a dict'):
      run(transforms.MarkPadding('reward'), [steps])


class StepsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_timesteps(self, packed):
    found = _apply(transforms.AddTimestep('t'), _EPISODES[:2], packed)
    for steps, expected in zip(found, (np.arange(6), np.arange(4))):
      self.assertAllEqual(steps['t'], expected)
      self.assertEqual(steps['t'].dtype, np.int32)

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_a_start_of_zeros_is_dropped(self, run):
    zeros = {
        **ways.THREE,
        'action': np.float32([[0, 0], [1, 2], [0, 0], [0, 0]]),
    }
    single = {name: leaf[:1] for name, leaf in zeros.items()}
    drop = transforms.DropNoOps(only_first=True)
    found = run(drop, [zeros, ways.THREE, single])
    found = [episode['steps'] for episode in found]
    self.assertAllEqual(found[0]['action'], zeros['action'][1:])
    self.assertAllEqual(found[0]['reward'], zeros['reward'][1:])
    self.assertAllEqual(found[0]['is_first'], [1, 0, 0])
    self.assertAllEqual(found[0]['is_last'], [0, 0, 1])
    for steps, given in zip(found[1:], (ways.THREE, single)):
      self.assertAllEqual(steps['action'], given['action'])
      self.assertAllEqual(steps['is_first'], given['is_first'])

  def test_some_steps_are_drawn(self):
    steps = {'a': tf.range(100), 'b': {'c': tf.range(100) * 2}}
    drawn = [windows.draw_steps(steps, 30, (1, seed)) for seed in range(2)]
    for one in drawn:
      self.assertLen(set(one['a'].numpy()), 30)
      self.assertAllEqual(one['b']['c'], 2 * one['a'])
    self.assertNotAllEqual(drawn[0]['a'], drawn[1]['a'])
    again = windows.draw_steps(steps, 30, (1, 0))
    self.assertAllEqual(again['a'], drawn[0]['a'])
    whole = windows.draw_steps(steps, 100, 5)
    self.assertAllEqual(whole['a'], steps['a'])
    with self.assertRaisesRegex(ValueError, 'num_steps'):
      windows.draw_steps(steps, 0, 5)


class DropEndTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_the_last_step_without_an_action(self, run):
    found = run(transforms.DropEnd(), [ways.FIVE, ways.THREE])
    for episode, made in zip((ways.FIVE, ways.THREE), found):
      steps = made['steps']
      for name in 'observation', 'action', 'reward', 'discount', 'is_first':
        self.assertAllEqual(steps[name], episode[name][:-1])
      for name in 'is_last', 'is_terminal':
        self.assertAllEqual(
            steps[name], [*episode[name][:-2], episode[name][-1]]
        )
      self.assertAllEqual(steps['has_action'], [True] * len(steps['action']))

  def test_one_that_has_an_action_stays(self):
    steps = {**ways.THREE, 'has_action': np.ones(4, bool)}
    found = transforms.DropEnd()(next(iter(golden.stacked([steps]))))['steps']
    self.assertAllEqual(found['observation'], steps['observation'])
    self.assertAllEqual(found['is_last'], steps['is_last'])

  def test_the_only_step_stays(self):
    steps = tf.nest.map_structure(lambda leaf: leaf[-1:], ways.THREE)
    found = transforms.DropEnd()(next(iter(golden.stacked([steps]))))['steps']
    self.assertAllEqual(found['observation'], steps['observation'])
    self.assertAllEqual(found['has_action'], [False])


if __name__ == '__main__':
  tf.test.main()
