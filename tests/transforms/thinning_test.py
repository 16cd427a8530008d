"""Tests of leaving out steps."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.transforms import thinning
from tests import golden
from tests import ways


def _loop(episode, keep):
  """Thins an episode in numpy, run by run."""
  length = golden.length_of(episode)
  kept = [t for t in range(length) if keep[t] or t == length - 1]
  rows = []
  for index, t in enumerate(kept):
    end = kept[index + 1] if index + 1 < len(kept) else length
    row = golden.step_of(episode, t)
    row['reward'] = sum(episode['reward'][t:end])
    row['discount'] = np.prod(episode['discount'][t:end])
    row['is_first'] = index == 0
    rows.append(row)
  return rows


class ThinningTest(tf.test.TestCase, parameterized.TestCase):

  def _assert_steps(self, steps, expected):
    self.assertLen(steps['is_first'], len(expected))
    for t, row in enumerate(expected):
      for name in row:
        found = tf.nest.map_structure(lambda leaf, t=t: leaf[t], steps[name])
        for one, other in zip(tree.flatten(found), tree.flatten(row[name])):
          if isinstance(other, bytes):
            self.assertEqual(one, other)
          else:
            self.assertAllClose(one, other)

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_frame_skip(self, run):
    a, b = run(thinning.FrameSkip(2), [ways.FIVE, ways.THREE])
    a, b = a['steps'], b['steps']
    self.assertAllEqual(a['observation'], [0, 2, 4, 5])
    self.assertAllEqual(a['reward'], [3, 7, 5, 99])
    self.assertAllEqual(a['discount'], [1, 1, 0, 0])
    self.assertAllEqual(a['is_first'], [True, False, False, False])
    self.assertAllEqual(a['is_last'], [False, False, False, True])
    self.assertAllEqual(a['is_terminal'], [False, False, False, True])
    self.assertAllEqual(b['observation'], [10, 12, 13])
    self.assertAllEqual(b['reward'], [30, 30, 99])
    self.assertAllEqual(b['discount'], [1, 1, 1])
    self.assertFalse(b['is_terminal'].any())
    for name, leaf in a.items():
      self.assertEqual(leaf.dtype, ways.FIVE[name].dtype)

  @parameterized.parameters(1, 3, 5, 100)
  def test_frame_skip_keeps_the_return(self, skip):
    episodes = golden.random_episodes(np.random.default_rng(skip), 8)
    rlds_data = golden.stacked(episodes).map(thinning.FrameSkip(skip))
    for result, episode in zip(rlds_data.as_numpy_iterator(), episodes):
      length = golden.length_of(episode)
      keep = [t % skip == 0 for t in range(length)]
      self._assert_steps(result['steps'], _loop(episode, keep))
      self.assertAllClose(
          result['steps']['reward'][:-1].sum(), episode['reward'][:-1].sum()
      )

  @parameterized.named_parameters(*ways.WITH_PACKS)
  def test_drop_no_ops(self, run):
    episode = dict(
        ways.FIVE,
        action=np.array([0, 0, 3, -1, 0, 0], np.int32),
        discount=np.array([1, 1, 0.5, 1, 0.5, 0], np.float32),
    )
    steps = run(thinning.DropNoOps(), [episode])[0]['steps']
    self.assertAllEqual(steps['observation'], [2, 3, 5])
    self.assertAllEqual(steps['action'], [3, -1, 0])
    self.assertAllEqual(steps['reward'], [3, 9, 99])
    self.assertAllEqual(steps['discount'], [0.5, 0.5, 0])
    self.assertAllEqual(steps['is_first'], [True, False, False])
    self.assertAllEqual(steps['is_last'], [False, False, True])
    self.assertAllEqual(steps['is_terminal'], [False, False, True])

  def test_random_no_ops(self):
    rng = np.random.default_rng(3)
    episodes = golden.random_episodes(rng, 12, nested_fields=True, max_length=9)
    drop = thinning.DropNoOps('action/2', [0.25, -0.25], tolerance=0.9)
    rlds_data = golden.stacked(episodes).map(drop)
    dropped = 0
    for result, episode in zip(rlds_data.as_numpy_iterator(), episodes):
      keep = [
          max(abs(action[0] - 0.25), abs(action[1] + 0.25)) > 0.9
          for action in episode['action'][2]
      ]
      self._assert_steps(result['steps'], _loop(episode, keep))
      dropped += len(keep) - len(result['steps']['is_last'])
    self.assertGreater(dropped, 5)

  def test_nothing_but_no_ops(self):
    episode = dict(ways.FIVE, action=np.zeros([6, 2], np.float32))
    dataset = golden.nested([episode]).map(thinning.DropNoOps())
    steps = next(dataset.as_numpy_iterator())['steps']
    self.assertAllEqual(steps['observation'], [5])
    for flag in ('is_first', 'is_last', 'is_terminal'):
      self.assertAllEqual(steps[flag], [True])

  def test_predicate(self):
    drop = thinning.DropNoOps(
        predicate=lambda steps: steps['observation'] % 2 == 1
    )
    steps = drop({'steps': ways.FIVE})['steps']
    self.assertAllEqual(steps['observation'], [0, 2, 4, 5])

  def test_predicate_of_another_length(self):
    drop = thinning.DropNoOps(
        predicate=lambda steps: steps['observation'][:-1] > 1
    )
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'predicate: 5'):
      drop({'steps': ways.FIVE})
    data = golden.stacked([ways.FIVE]).map(drop)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, r'predicate:\D*5'
    ):
      list(data)

  def test_no_steps(self):
    empty = tf.nest.map_structure(lambda leaf: tf.constant(leaf[:0]), ways.FIVE)
    for transform in (thinning.FrameSkip(2), thinning.DropNoOps()):
      steps = transform({'steps': empty})['steps']
      for name, leaf in steps.items():
        self.assertAllEqual(leaf, empty[name])

  def test_a_cut_episode_keeps_its_flags(self):
    cut = tf.nest.map_structure(lambda leaf: leaf[1:4], ways.FIVE)
    steps = thinning.FrameSkip(2)({'steps': cut})['steps']
    self.assertAllEqual(steps['is_first'], [False, False])
    self.assertAllEqual(steps['is_last'], [False, False])
    self.assertAllEqual(steps['reward'], [5, 4])

  def test_static_shapes_and_dtypes(self):
    episode = dict(
        ways.FIVE,
        discount=np.ones([6, 1], np.int32),
        reward=np.ones([6, 1], np.float64),
    )
    dataset = golden.stacked([episode]).map(thinning.FrameSkip(4))
    spec = dataset.element_spec['steps']
    self.assertEqual(spec['discount'], tf.TensorSpec([None, 1], tf.int32))
    self.assertEqual(spec['reward'], tf.TensorSpec([None, 1], tf.float64))
    steps = next(dataset.as_numpy_iterator())['steps']
    self.assertAllEqual(steps['reward'], [[4], [1], [1]])

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'skip must be 1 or more'):
      thinning.FrameSkip(0)
    words = dict(ways.FIVE, action=np.array([b'x'] * 6, object))
    with self.assertRaisesRegex(ValueError, 'is a string'):
      golden.stacked([words]).map(thinning.DropNoOps())
    with self.assertRaisesRegex(ValueError, 'a bool for every step'):
      golden.stacked([ways.FIVE]).map(
          thinning.DropNoOps(predicate=lambda steps: True)
      )

  def test_only_whole_episodes(self):
    step = golden.step_of(ways.FIVE, 0)
    without = {**ways.FIVE}
    del without['discount']
    for transform in (thinning.FrameSkip(2), thinning.DropNoOps()):
      for steps, message in (
          ({'observation': np.zeros([3])}, r"no \['reward', 'discount', 'is_f"),
          (without, r"there are no \['discount'\]"),
          (step, 'leading time dimension'),
      ):
        with self.assertRaisesRegex(ValueError, message):
          transform.transform(steps)

  def test_steps_of_unequal_lengths(self):
    # Which a transform before it can make of them, in one Compose.
    for action in (
        ways.FIVE['action'][1:],
        ways.FIVE['action'].repeat(2, axis=0),
    ):
      steps = [{**ways.FIVE, 'action': action}]
      data = golden.stacked(steps)
      for transform in (
          thinning.FrameSkip(2).transform,
          thinning.DropNoOps().transform,
      ):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, 'must have a row for every step'
        ):
          # pylint: disable-next=cell-var-from-loop
          list(data.map(lambda e: transform(e['steps'])))

  def test_no_op_that_does_not_fit(self):
    for field, action in (
        ('action', ways.FIVE['action']),
        ('action/arm', {'arm': ways.FIVE['action']}),
    ):
      drop = thinning.DropNoOps(field, no_op=[0.0, 0.0, 0.0])
      with self.assertRaisesRegex(ValueError, f'^{field} has the shape'):
        drop.transform({**ways.FIVE, 'action': action})


if __name__ == '__main__':
  tf.test.main()
