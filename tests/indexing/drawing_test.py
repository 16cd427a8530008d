"""Tests of trees as text and as Graphviz's source."""

import tensorflow as tf

from rlds2reverb import indexing
from tests import contract
from tests import golden


class DrawingTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    index = indexing.TransitionIndex.from_episodes(
        golden.stacked(
            [
                contract.make_steps([0, 1], [0.5], terminal=True),
                contract.make_steps([0, 2, 3], [1, 4], terminal=False),
                contract.make_steps([0, 2], [2], terminal=False),
            ]
        )
    )
    self.tree = index.expand(tf.constant([9.0, 0.0]), 2, 2)
    self.narrow = index.expand(tf.constant([0.0]), 1, 1)

  def test_text(self):
    self.assertEqual(
        indexing.draw_tree(self.tree, 1),
        '0.\n'
        '  1 -> 1.  reward 0.5, once, terminal\n'
        '  1 -> 2.  reward 1.5, 2 times\n'
        '    2 -> 3.  reward 4, once',
    )
    self.assertEqual(indexing.draw_tree(self.tree), '(not recorded)')
    self.assertIn('(1 nodes have no room)', indexing.draw_tree(self.narrow))

  def test_dot(self):
    self.assertEqual(
        indexing.draw_tree(
            self.tree,
            1,
            lambda action, observation: f'"{observation:.0f}',
            as_dot=True,
        ),
        'digraph {\n'
        '  node [shape=box];\n'
        '  n0 [label="\\"0"];\n'
        '  n1 [label="\\"1  reward 0.5, once, terminal", peripheries=2];\n'
        '  n2 [label="\\"2  reward 1.5, 2 times"];\n'
        '  n3 [label="\\"3  reward 4, once"];\n'
        '  n0 -> n1;\n'
        '  n0 -> n2;\n'
        '  n2 -> n3;\n'
        '}',
    )


if __name__ == '__main__':
  tf.test.main()
