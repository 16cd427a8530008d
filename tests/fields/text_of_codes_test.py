"""Tests of strings that are kept as the codes of their characters."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.fields import step_mapping
from rlds2reverb.fields import text_of_codes


def _codes(*texts, size=8):
  rows = [list(map(ord, text)) + [0] * (size - len(text)) for text in texts]
  return np.array(rows, np.int32)


def _episode(codes):
  return {
      'steps': {
          'observation': {'codes': codes, 'pair': {'a': codes, 'b': codes}},
          'action': np.zeros([len(codes), 2], np.float32),
      }
  }


class TextOfCodesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(
      ('push', b'push'),
      ('', b''),
      ('12345678', b'12345678'),
      ('a\0bc', b'a'),
      ('a\nb\0c', b'a\nb'),
      ('né', 'né'.encode('utf-8')),
  )
  def test_text(self, text, expected):
    source = text_of_codes.TextOfCodes('observation/codes')
    found = source(_episode(_codes(text, 'x')))
    self.assertAllEqual(found, [expected, b'x'])

  def test_in_a_mapping(self):
    mapping = step_mapping.StepMapping(
        discount=None,
        reward=None,
        is_first=None,
        is_last=None,
        is_terminal=None,
        policy_info={'text': text_of_codes.TextOfCodes('observation/codes')},
    )
    data = tf.data.Dataset.from_tensors(_episode(_codes('left', 'up')))
    (episode,) = step_mapping.map_fields(data, mapping)
    self.assertAllEqual(
        episode['steps']['policy_info']['text'], [b'left', b'up']
    )

  @parameterized.parameters(
      ('action', r"'action' is float32 \(2,\)"),
      ('observation/pair', "'observation/pair' is a nest"),
      ('observation/cods', 'no field .* Did you mean observation/codes'),
  )
  def test_what_has_no_codes(self, source, message):
    with self.assertRaisesRegex(ValueError, message):
      text_of_codes.TextOfCodes(source)(_episode(_codes('left')))


if __name__ == '__main__':
  tf.test.main()
