"""Tests that docs/sequences.md says what the functions return."""

import inspect

import pytest
import tensorflow as tf

from docs import sequences
from rlds2reverb import windows


class DocsTest(tf.test.TestCase):

  @pytest.mark.long
  def test_text_is_up_to_date(self):
    with open(sequences.PATH, encoding='utf-8') as f:
      written = f.read()
    self.assertMultiLineEqual(
        written,
        sequences.make_text(),
        'docs/sequences.md does not say what the functions return. To write it'
        ' anew: python -m docs.sequences',
    )

  def test_every_function_is_shown(self):
    public = [
        name
        for name, value in vars(windows).items()
        if inspect.isfunction(value)
    ]
    public += [
        'convert_rlds_to_sequences',
        'to_ted',
        'from_ted',
        'TransitionIndex',
        'draw_tree',
        'make_token_episode',
        'pad_tokens',
        'select_agent',
        'stack_agents',
        'unroll_agents',
        'split_by_policy',
    ]
    self.assertCountEqual(public, sequences.functions())


if __name__ == '__main__':
  tf.test.main()
