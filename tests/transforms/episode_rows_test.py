"""Tests of transforms that look at the other steps of an episode."""

import dataclasses

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import base
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import normalization
from tests import golden
from tests import ways


@dataclasses.dataclass(frozen=True, eq=False)
class _ShowRows(base.EpisodeTransform):
  """As a user writes one."""

  def transform_rows(self, steps, rows):
    return {
        **steps,
        'step': rows.row - rows.first,
        'left': rows.last - rows.row,
        'next': tf.gather(steps['reward'], rows.next()),
        'last_action': tf.gather(steps['action'], rows.last_action()),
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Draw(base.EpisodeTransform):
  """As a user writes one that draws."""

  draws = True

  def transform_rows(self, steps, rows):
    return {
        **steps,
        'index': rows.episode_index,
        'one': rows.fractions(3),
        'other': rows.fractions(3, 1),
    }


def _episodes():
  return [
      golden.make_episode([1.0] * length, terminal=True, base=100 * index)
      for index, length in enumerate([3, 1, 5, 2, 1, 4, 6])
  ]


class EpisodeRowsTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*ways.WITH_BATCHES)
  def test_rows(self, run):
    for found, episode in zip(run(_ShowRows(), _episodes()), _episodes()):
      steps = found['steps']
      reward, action = episode['reward'], episode['action']
      length = len(reward)
      self.assertAllEqual(steps['step'], np.arange(length))
      self.assertAllEqual(steps['left'], np.arange(length)[::-1])
      self.assertAllEqual(steps['next'], [*reward[1:], reward[-1]])
      self.assertAllEqual(
          steps['last_action'], [action[max(length - 2, 0)]] * length
      )

  def test_data_sets(self):
    scale, keep = normalization.ScaleReward(2.0), filters.KeepEpisodes
    compose = applying.Compose([scale, _ShowRows(), _Draw()])
    data = golden.batched(_episodes()).repeat(2)
    made = applying.transform_episodes(data, [keep(min_length=1), compose])
    found = [e['steps'] for e in golden.assert_batches_hold(self, made)]
    kept = [e for e in _episodes() if len(e['reward']) > 1] * 2
    self.assertLen(found, len(kept))
    for index, (steps, episode) in enumerate(zip(found, kept)):
      self.assertAllEqual(steps['index'], [index] * len(steps['step']))
      self.assertAllEqual(steps['next'][0], 2 * episode['reward'][1])
    # The index counts the episodes that come to the transform, and the draws
    # are those of a call on one of them. Episodes that come again draw anew.
    alone = applying.Compose([_Draw()])({'steps': kept[2]}, 2)['steps']
    self.assertAllEqual(alone['one'], found[2]['one'])
    numbers = np.concatenate([[*s['one'], *s['other']] for s in found])
    self.assertLen(set(numbers), len(numbers))

  def test_a_class_of_two_methods(self):
    methods = {'transform': lambda self, steps: steps}
    with self.assertRaisesRegex(
        TypeError, 'Both has the methods .* but must have one of them'
    ):
      type('Both', (_ShowRows,), methods)
    with self.assertRaisesRegex(NotImplementedError, 'None needs a method tr'):
      type('None', (base.EpisodeTransform,), {})().transform(golden.COMPLETE)

  def test_draws_need_an_index(self):
    for call in (_Draw(), _Draw().transform, applying.Compose([_Draw()])):
      with self.assertRaisesRegex(ValueError, 'Use.*transform_episodes'):
        call({'steps': golden.COMPLETE})

  @parameterized.parameters(
      (True, [-1, 1, 1, -1, -1, 5]), (False, [1, 1, -1, 5, 5, 5])
  )
  def test_nearest_marked(self, backward, expected):
    class Nearest(base.EpisodeTransform):

      def transform_rows(self, steps, rows):
        return rows.nearest(steps['marked'], backward=backward)

    batch = episode_batches.EpisodeBatch(
        {'marked': tf.constant([False, True, False, False, False, True])},
        tf.constant([0, 3, 3, 6], tf.int64),
        {},
    )
    self.assertAllEqual(Nearest().transform_batch(batch).steps, expected)
    nothing = {'marked': tf.zeros([4], tf.bool)}
    self.assertAllEqual(Nearest().transform(nothing), [-1] * 4)


if __name__ == '__main__':
  tf.test.main()
