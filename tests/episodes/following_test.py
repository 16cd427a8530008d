"""Tests of blocks that are paired with the step that follows them."""

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.episodes import block_cutting
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import following
from rlds2reverb.episodes import judging
from tests import golden


def _blocks(rlds_data, **kwargs):
  """Returns the blocks of episodes that are all valid."""
  return block_cutting.episode_blocks(
      data_sets.packs_or_nested(rlds_data),
      ('observation', 'action'),
      judging.Judge(
          lambda *unused: judging.Verdict(
              tf.constant(True), lambda: tf.constant('unused')
          ),
          'raise',
      ),
      blocks.Cut(**kwargs),
  )


class WithFollowingStepTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.product(form=list(golden.FORMS), join_episodes=[False, True])
  def test_pairs(self, form, join_episodes):
    data = golden.FORMS[form]([golden.COMPLETE, golden.TRUNCATED])
    pairs = list(
        following.with_following_step(
            _blocks(data, block_length=3, join_episodes=join_episodes)
        ).as_numpy_iterator()
    )
    self.assertEqual(
        [
            (block.episode, block.step, len(block.steps['action']))
            for block, _ in pairs
        ],
        [(0, 0, 3), (0, 3, 1), (1, 0, 3), (1, 3, 1)],
    )
    self.assertAllEqual(
        [following['action'] for _, following in pairs],
        [[103], [110], [113], [0]],
    )
    self.assertAllEqual(pairs[-1][1]['observation'], [[0, 0]])
    self.assertAllEqual(
        [block.outline['is_first'][-1] for block, _ in pairs],
        [False, True, False, True],
    )
    self.assertAllClose(
        [block.outline['discount'][-1] for block, _ in pairs],
        [1, 1 if join_episodes else 0, 0.9, 0],
    )


if __name__ == '__main__':
  tf.test.main()
