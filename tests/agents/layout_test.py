"""Tests of the layout of the steps of many agents."""

import numpy as np
import tensorflow as tf

from rlds2reverb.agents import layout


class LayoutTest(tf.test.TestCase):

  def test_agents_of(self):
    steps = {
        'observation': {'a': 1, 'b': 2},
        'is_present': {'b': True, 'c': True},
    }
    self.assertEqual(layout.agents_of(steps), ['b', 'c'])
    self.assertEqual(layout.agents_of(steps, 'presence'), ['a', 'b'])
    with self.assertRaisesRegex(ValueError, 'There are no agents'):
      layout.agents_of({'observation': np.zeros(3)})

  def test_is_by_agent(self):
    self.assertTrue(layout.is_by_agent('x', {'a': 1, 'b': 2}, ['a', 'b']))
    self.assertFalse(layout.is_by_agent('x', {'pose': 1}, ['a', 'b']))
    self.assertFalse(layout.is_by_agent('x', 1, ['a', 'b']))
    with self.assertRaisesRegex(ValueError, r"'x' is by agent, but lacks \['b"):
      layout.is_by_agent('x', {'a': 1}, ['a', 'b'])
    with self.assertRaisesRegex(ValueError, r"has \['c'\] beside the agents"):
      layout.is_by_agent('x', {'a': 1, 'c': 2}, ['a'])


if __name__ == '__main__':
  tf.test.main()
