"""Tests of tokenizers, padded batches and preference pairs."""

import collections

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb import tokens
from rlds2reverb.tokens import texts as texts_lib
from tests.tokens import tokenizers

_Encoding = collections.namedtuple('_Encoding', 'ids')
_STRINGS = tf.constant(['a bc', '', 'é'])


def _lengths(texts):
  return [list(map(len, text.split())) for text in texts]


class TokenizerTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(
      _lengths,
      lambda texts: [_Encoding(ids) for ids in _lengths(texts)],
      lambda texts: {'input_ids': _lengths(texts), 'attention_mask': []},
  )
  def test_python_tokenizers(self, tokenize):
    tokenizer = tokens.make_python_tokenizer(tokenize, tf.int64)
    expected = tf.ragged.constant([[1, 2], [], [1]], tf.int64)
    self.assertAllEqual(texts_lib.tokenize(tokenizer, _STRINGS), expected)
    (actual,) = tf.data.Dataset.from_tensors(_STRINGS).map(
        lambda texts: texts_lib.tokenize(tokenizer, texts)
    )
    self.assertAllEqual(actual, expected)

  def test_words_of_pieces(self):
    actual = texts_lib.tokenize(
        lambda texts: tf.ragged.constant([[[1, 2], [3]], [], [[4]]]), _STRINGS
    )
    self.assertAllEqual(actual, tf.ragged.constant([[1, 2, 3], [], [4]]))

  def test_bad_tokenizers(self):
    for tokenizer, message in (
        (lambda texts: tf.ones([3, 2]), 'must return integers'),
        (lambda texts: tf.ones([3], tf.int32), 'row of ids for each string'),
        (
            lambda texts: tf.ones([3, 2, 1], tf.int32),
            'row of ids for each string',
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        texts_lib.tokenize(tokenizer, _STRINGS)
    with self.assertRaisesRegex(ValueError, 'one string per field'):
      texts_lib.tokenize(tf.identity, tf.constant([1]))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'given 3 strings'
    ):
      list(
          tf.data.Dataset.from_tensors(_STRINGS).map(
              tokens.make_python_tokenizer(lambda texts: [[1]])
          )
      )


_TEXTS = {
    'prompt': ['a b c', 'one two', 'x y z w v', 'p'],
    'response': [' d e', ' three four five six', ' u v', ' q'],
}
# What PromptTensorDictTokenizer of TorchRL 0.14.1 (torch 2.13.0) returns for
# these, with max_length=6 and `tokenizers.by_letters`.
_TORCHRL = texts_lib.TokenBatch(
    [
        [1, 2, 3, 4, 5, 0],
        [32, 56, 52, 57, 39, 50],
        [24, 25, 26, 23, 22, 21],
        [16, 17, 0, 0, 0, 0],
    ],
    [[1] * 5 + [0], [1] * 6, [1] * 6, [1] * 2 + [0] * 4],
    [2, 1, 4, 0],
    [True, False, False, True],
)
_PAIRS = {
    'prompt': ['P', 'P', 'Q', 'R', 'S'],
    'chosen': ['a b c d e'] * 2
    + ['a b c d', 'a  b\tc\nd\u00a0e', 'a b c d e '],
    'rejected': ['a b c d f', 'a b c d e', 'a b c d e f', '1 2 3 4 5 6']
    + ['a b c d e'],
}
# How many of them TorchRL 0.14.1 keeps, in its `pre_tokenization_hook`.
_NUM_KEPT = 3
_SPACES = '\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\u00a0\u1680\u2003\u2028\u3000'


class BatchesTest(tf.test.TestCase):

  def _convert(self, batch_size, **kwargs):
    texts = tf.data.Dataset.from_tensor_slices(_TEXTS)
    tokenizer = tokens.make_python_tokenizer(tokenizers.by_letters)
    return tokens.convert_texts_to_batches(
        texts, tokenizer, 6, batch_size, **kwargs
    )

  def test_batches_equal_torchrl(self):
    (actual,) = self._convert(4, only_valid=False)
    for actual_value, expected_value in zip(actual, _TORCHRL):
      self.assertAllEqual(actual_value, expected_value)
    self.assertEqual(actual.attention_mask.dtype, tf.int64)
    (actual,) = self._convert(3)
    self.assertAllEqual(actual.input_ids[:, 0], [1, 16])
    spec = self._convert(3).element_spec.input_ids
    self.assertEqual(spec, tf.TensorSpec([None, 6], tf.int32))
    self.assertEmpty(list(self._convert(3, drop_remainder=True)))

  def test_pad_tokens(self):
    prompts = tf.ragged.constant([[1, 2], [1, 2, 3, 4, 5], []], tf.int64)
    responses = tf.ragged.constant([[3], [6], [9]], tf.int64)
    responses = responses.with_row_splits_dtype(tf.int32)
    pad = lambda *ids: tokens.pad_tokens(*ids, 4, pad_id=-1)
    data = tf.data.Dataset.from_tensors((prompts, responses))
    for actual in pad(prompts, responses), *data.map(pad):
      self.assertAllEqual(
          actual.input_ids, [[1, 2, 3, -1], [1, 2, 3, 4], [9, -1, -1, -1]]
      )
      self.assertAllEqual(actual.prompt_rindex, [1, 3, -1])
      self.assertAllEqual(actual.valid_sample, [True, False, True])

  def test_pairs_equal_torchrl(self):
    texts = tf.data.Dataset.from_tensor_slices(_PAIRS)
    tokenizer = tokens.make_python_tokenizer(tokenizers.by_letters)
    data = tokens.convert_texts_to_pairs(texts, tokenizer, 7, 2)
    first, second = data
    self.assertEqual(2 + len(second.chosen.input_ids), _NUM_KEPT)
    # 'P', a new line, and 'a b c d e'.
    self.assertAllEqual(first.chosen.input_ids[0], [81, 1, 2, 3, 4, 5, 0])
    self.assertAllEqual(first.rejected.input_ids[0], [81, 1, 2, 3, 4, 6, 0])
    self.assertAllEqual(first.rejected.attention_mask, [[1] * 6 + [0], [1] * 7])
    spec = data.element_spec.chosen.input_ids
    self.assertEqual(spec, tf.TensorSpec([None, 7], tf.int32))
    few = tokens.convert_texts_to_pairs(texts, tokenizer, 7, 9, min_words=1)
    self.assertLen(next(iter(few)).chosen.input_ids, 4)

  def test_count_words_equals_str_split(self):
    texts = ['', ' ', 'a', ' a b ', 'a\u200bb c', 'é\u3000ü']
    texts += [f'{space}a{space}{space}b{space}' for space in _SPACES]
    wanted = [len(text.split()) for text in texts]
    self.assertAllEqual(texts_lib.count_words(texts), wanted)

  def test_bad_arguments(self):
    ids = tf.ragged.constant([[1]])
    texts = tf.data.Dataset.from_tensors({'prompt': 'a'})
    convert = (tokens.convert_texts_to_batches, tokens.convert_texts_to_pairs)
    both = [
        lambda fn=fn: fn(texts, tokenizers.by_words, 6, 2) for fn in convert
    ]
    for call, message in (
        (lambda: tokens.pad_tokens(ids, ids, 0), 'max_length must be a pos'),
        (
            lambda: tokens.pad_tokens(ids, tf.cast(ids, tf.int64), 1),
            'responses are int64',
        ),
        (both[0], "has no field 'response'"),
        (both[1], "no field 'chosen'"),
    ):
      with self.assertRaisesRegex(ValueError, message):
        call()


if __name__ == '__main__':
  tf.test.main()
