"""Tests that docs/sequences.md says what the functions return."""

import inspect

import rlds2reverb
import tensorflow as tf

from docs import sequences

_PLACES = ('rlds2reverb.trajectories.sequences', 'rlds2reverb.windows.')


class DocsTest(tf.test.TestCase):

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
        for name, value in vars(rlds2reverb).items()
        if inspect.isfunction(value)
        and value.__module__.startswith(_PLACES)
    ]
    self.assertCountEqual(public, sequences.functions())


if __name__ == '__main__':
  tf.test.main()
