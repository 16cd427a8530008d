"""Tests of the facts of one episode, eagerly and in `dataset.map`."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import facts
from rlds2reverb.statistics import accumulation as accumulation_lib
from tests import golden
from tests.jobs.descriptions import odd_data


def _facts(episode, index=7):
  spec = golden.stacked([episode])
  accumulation = accumulation_lib.Accumulation(
      steps_lib.steps_spec(spec.element_spec).step
  )
  limits = np.full([2, accumulation.width - 4], [[-np.inf], [np.inf]])
  limits[:, :2] = [[-1], [1]]  # the columns of the action

  def make(episode):
    steps, is_cut = facts.cut_to_shortest(episode['steps'])
    return facts.facts_of(
        tf.constant(index, tf.int64),
        steps,
        is_cut,
        accumulation,
        limits,
    )

  return spec, make


class FactsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      odd_data.GOOD, odd_data.OUTSIDE, odd_data.WITH_NAN, odd_data.EMPTY
  )
  @pytest.mark.few(2)
  def test_numbers(self, index):
    episode = odd_data.EPISODES[index]
    data, make = _facts(episode)
    (mapped,) = data.map(make)
    for found in (mapped, make(next(iter(data)))):
      length = golden.length_of(episode)
      self.assertEqual((found.episode, found.num_steps), (7, length))
      reward = episode['reward'][:-1]
      self.assertAllClose(found.outcome, [reward.sum(), max(length - 1, 0), 0])
      action = episode['action'][:-1]
      self.assertAllEqual(found.outside[:2], (np.abs(action) > 1).sum(0))
      expected = [1, 3] if index == odd_data.OUTSIDE else [-1, -1]
      self.assertAllEqual(found.outside_steps[:2], expected)
      position = np.isfinite(episode['observation']['position'])
      # The action and the discount come before the observation.
      self.assertAllEqual(
          found.not_finite[5:8],
          np.where(position.all(0), -1, np.argmin(position, 0))
          if length
          else [-1] * 3,
      )
      self.assertAllEqual(found.not_finite[:3], [-1] * 3)

  def test_content_is_that_of_observations_actions_and_rewards(self):
    def content(episode):
      data, make = _facts(episode)
      return int(make(next(iter(data))).content)

    same = content(odd_data.make(0))
    changed = odd_data.make(0)
    changed['discount'][0] = 0.5
    self.assertEqual(content(changed), same)
    for path in (('action',), ('reward',), ('observation', 'position')):
      changed = odd_data.make(0)
      leaf = changed
      for key in path:
        leaf = leaf[key]
      leaf[2] += 1
      self.assertNotEqual(content(changed), same)


if __name__ == '__main__':
  tf.test.main()
