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

  def test_fields_by_agent(self):
    two = {'is_present': {'a': 1, 'b': 2}, 'observation': {'pose': 1}}
    found = layout.layout_of({**two, 'x': {'a': 1, 'b': 2}, 'y': 1})
    self.assertEqual(found.agents, ['a', 'b'])
    self.assertEqual(found.by_agent, {'x': {'a': 1, 'b': 2}})
    self.assertEqual(found.shared, {'observation': {'pose': 1}, 'y': 1})
    with self.assertRaisesRegex(ValueError, r"'x' is by agent, but lacks \['b"):
      layout.layout_of({**two, 'x': {'a': 1}})
    with self.assertRaisesRegex(ValueError, r"has \['c'\] beside the agents"):
      layout.layout_of({**two, 'x': {'a': 1, 'b': 2, 'c': 2}})


if __name__ == '__main__':
  tf.test.main()
