"""Tests of descriptions as text."""

import tensorflow as tf

from rlds2reverb.jobs import describing
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import text
from tests import golden
from tests.jobs.descriptions import odd_data


class TextTest(tf.test.TestCase):

  def test_as_text(self):
    description = describing.describe(
        golden.stacked(odd_data.with_images()), name='odd'
    )
    found = text.to_text(description)
    self.assertStartsWith(found, 'odd\n\n7 episodes\n')
    self.assertRegex(found, r'observation/position +float32 +\(3\)')
    self.assertRegex(
        found, r'observation/image +uint8 image +\(4, 5, 3\) +- +-\n'
    )
    mean = text.number(description.returns['mean'])
    self.assertRegex(found, rf'\n  returns +{mean} ')
    self.assertIn('In 1 of 7 episodes, observation/position has 2', found)

  def test_nothing_at_all(self):
    found = text.to_text(description_lib.Description('nothing'))
    self.assertEqual(found, 'nothing\n')

  def test_numbers_are_short(self):
    for value, expected in (
        (None, '-'),
        (3.0, '3'),
        (123456, '123,456'),
        (0.125, '0.125'),
        (1 / 3, '0.3333'),
        (-2e-7, '-2e-07'),
        (1.5e9, '1.5e+09'),
        (0, '0'),
    ):
      self.assertEqual(text.number(value), expected)


if __name__ == '__main__':
  tf.test.main()
