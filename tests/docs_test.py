"""Tests that docs/sequences.md says what the functions return."""

import inspect

import rlds2reverb
import tensorflow as tf

from docs import sequences

_MODULES = (
    'fragments', 'horizon', 'returns', 'sequences', 'slices', 'stacking',
    'unroll', 'views', 'windows',
)


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
        and value.__module__
        in [f'rlds2reverb.trajectories.{module}' for module in _MODULES]
    ]
    self.assertCountEqual(public, sequences.functions())


if __name__ == '__main__':
  tf.test.main()
