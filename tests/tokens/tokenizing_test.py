"""Tests of tokenizers."""

import collections

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.tokens import tokenizing

_Encoding = collections.namedtuple('_Encoding', 'ids')
_TEXTS = tf.constant(['a bc', '', 'é'])


def _lengths(texts):
  return [list(map(len, text.split())) for text in texts]


class TokenizingTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      _lengths,
      lambda texts: [_Encoding(ids) for ids in _lengths(texts)],
      lambda texts: {'input_ids': _lengths(texts), 'attention_mask': []},
  )
  def test_what_python_tokenizers_return(self, tokenize):
    tokenizer = tokenizing.in_python(tokenize, tf.int64)
    expected = tf.ragged.constant([[1, 2], [], [1]], tf.int64)
    self.assertAllEqual(tokenizing.tokenize_batch(tokenizer, _TEXTS), expected)
    (found,) = tf.data.Dataset.from_tensors(_TEXTS).map(
        lambda texts: tokenizing.tokenize_batch(tokenizer, texts)
    )
    self.assertAllEqual(found, expected)

  def test_words_of_pieces(self):
    found = tokenizing.tokenize_batch(
        lambda texts: tf.ragged.constant([[[1, 2], [3]], [], [[4]]]), _TEXTS
    )
    self.assertAllEqual(found, tf.ragged.constant([[1, 2, 3], [], [4]]))

  def test_bad_tokenizers(self):
    for tokenizer, message in (
        (lambda texts: tf.ones([3, 2]), 'must return integers'),
        (lambda texts: tf.ones([3], tf.int32), 'ids for each string'),
        (lambda texts: tf.ones([3, 2, 1], tf.int32), 'ids for each string'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        tokenizing.tokenize_batch(tokenizer, _TEXTS)
    with self.assertRaisesRegex(ValueError, 'one string an element'):
      tokenizing.tokenize_batch(tf.identity, tf.constant([1]))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'given 3 strings'
    ):
      list(
          tf.data.Dataset.from_tensors(_TEXTS).map(
              tokenizing.in_python(lambda texts: [[1]])
          )
      )


if __name__ == '__main__':
  tf.test.main()
