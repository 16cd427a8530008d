"""Tests of sources that are derived from another field."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.fields import derived_sources


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
    source = derived_sources.TextOfCodes('observation/codes')
    found = source(_episode(_codes(text, 'x')))
    self.assertAllEqual(found, [expected, b'x'])

  @parameterized.parameters(
      ('action', r"'action' is float32 \(2,\)"),
      ('observation/pair', "'observation/pair' is a nest"),
      ('observation/cods', 'no field .* Did you mean observation/codes'),
  )
  def test_what_has_no_codes(self, source, message):
    with self.assertRaisesRegex(ValueError, message):
      derived_sources.TextOfCodes(source)(_episode(_codes('left')))


class TerminalOnSuccessTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters(
      ([0, 0, 0, 1], True),
      ([0, 0, 1, 0], True),
      ([0, 1, 0, 0], False),
      ([1], True),
      ([0], False),
  )
  def test_success_at_the_end_is_terminal(self, success, terminal):
    success = np.array(success, np.float32)[:, np.newaxis]
    episode = {'steps': {'a:success': success}, 'success': success[-1, 0]}
    expected = [False] * (len(success) - 1) + [terminal]
    for source in 'a:success', ('a:success',):
      found = derived_sources.TerminalOnSuccess(source)(episode)
      self.assertAllEqual(found, expected)
    of_episode = derived_sources.TerminalOnSuccess('../success')(episode)
    self.assertAllEqual(of_episode[:-1], expected[:-1])
    self.assertAllEqual(of_episode[-1], success[-1, 0] > 0)

  def test_success_that_is_not_there(self):
    with self.assertRaisesRegex(ValueError, 'Did you mean reached?'):
      derived_sources.TerminalOnSuccess('reach')(
          {'steps': {'reached': np.zeros(3, bool)}}
      )


if __name__ == '__main__':
  tf.test.main()
