"""Tests of padded batches of prompts and responses, and of pairs of these."""

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb import tokens
from rlds2reverb.tokens import batches
from tests.tokens import tokenizers

_TEXTS = {
    'prompt': ['a b c', 'one two', 'x y z w v', 'p'],
    'response': [' d e', ' three four five six', ' u v', ' q'],
}
# What PromptTensorDictTokenizer of TorchRL 0.14.1 (torch 2.13.0) returns for
# these, with max_length=6 and `tokenizers.by_letters`.
_TORCHRL = batches.TokenBatch(
    [
        [1, 2, 3, 4, 5, 0],
        [32, 56, 52, 57, 39, 50],
        [24, 25, 26, 23, 22, 21],
        [16, 17, 0, 0, 0, 0],
    ],
    [
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0, 0],
    ],
    [2, 1, 4, 0],
    [True, False, False, True],
)


_PROMPTS = ['P', 'P', 'Q', 'R', 'S']
_CHOSEN = [
    'a b c d e',
    'a b c d e',
    'a b c d',
    'a  b\tc\nd\u00a0e',
    'a b c d e ',
]
_REJECTED = [
    'a b c d f',
    'a b c d e',
    'a b c d e f',
    '1 2 3 4 5 6',
    'a b c d e',
]
# Which of them TorchRL 0.14.1 keeps, in its `pre_tokenization_hook`.
_KEPT = [True, False, False, True, True]
_SPACES = '\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\u00a0\u1680\u2003\u2028\u3000'


class BatchesTest(parameterized.TestCase, tf.test.TestCase):

  def _convert(self, batch_size=4, **kwargs):
    return tokens.convert_texts_to_batches(
        tf.data.Dataset.from_tensor_slices(_TEXTS),
        tokens.in_python(tokenizers.by_letters),
        6,
        batch_size,
        **kwargs,
    )

  def test_as_torchrl(self):
    (found,) = self._convert(only_valid=False)
    for one, other in zip(found, _TORCHRL):
      self.assertAllEqual(one, other)
    self.assertEqual(found.attention_mask.dtype, tf.int64)

  def test_only_valid_ones(self):
    (found,) = self._convert(3)
    self.assertAllEqual(found.input_ids[:, 0], [1, 16])
    self.assertEqual(
        self._convert(3).element_spec.input_ids,
        tf.TensorSpec([None, 6], tf.int32),
    )
    self.assertEmpty(list(self._convert(3, drop_remainder=True)))

  def test_pad_tokens(self):
    prompts = tf.ragged.constant([[1, 2], [1, 2, 3, 4, 5], []], tf.int64)
    responses = tf.ragged.constant([[3], [6], [9]], tf.int64)
    responses = responses.with_row_splits_dtype(tf.int32)
    eager = tokens.pad_tokens(prompts, responses, 4, pad_id=-1)
    (mapped,) = tf.data.Dataset.from_tensors((prompts, responses)).map(
        lambda *ids: tokens.pad_tokens(*ids, 4, pad_id=-1)
    )
    for found in eager, mapped:
      self.assertAllEqual(
          found.input_ids, [[1, 2, 3, -1], [1, 2, 3, 4], [9, -1, -1, -1]]
      )
      self.assertAllEqual(found.prompt_rindex, [1, 3, -1])
      self.assertAllEqual(found.valid_sample, [True, False, True])

  def test_bad_arguments(self):
    ids = tf.ragged.constant([[1]])
    with self.assertRaisesRegex(ValueError, 'max_length must be a positive'):
      tokens.pad_tokens(ids, ids, 0)
    with self.assertRaisesRegex(ValueError, 'but the responses are int64'):
      tokens.pad_tokens(ids, tf.cast(ids, tf.int64), 1)
    texts = tf.data.Dataset.from_tensor_slices({'prompt': _TEXTS['prompt']})
    for convert, field in (
        (tokens.convert_texts_to_batches, 'response'),
        (tokens.convert_texts_to_pairs, 'chosen'),
    ):
      with self.assertRaisesRegex(ValueError, f"no field '{field}'"):
        convert(texts, tokenizers.by_words, 6, 2)

  def test_pairs_are_those_of_torchrl(self):
    texts = tf.data.Dataset.from_tensor_slices(
        {'prompt': _PROMPTS, 'chosen': _CHOSEN, 'rejected': _REJECTED}
    )
    tokenizer = tokens.in_python(tokenizers.by_letters)
    data = tokens.convert_texts_to_pairs(texts, tokenizer, 7, 2)
    first, second = data
    self.assertEqual(2 + len(second.chosen.input_ids), sum(_KEPT))
    # 'P', a new line, and 'a b c d e'.
    self.assertAllEqual(first.chosen.input_ids[0], [81, 1, 2, 3, 4, 5, 0])
    self.assertAllEqual(first.rejected.input_ids[0], [81, 1, 2, 3, 4, 6, 0])
    self.assertAllEqual(first.rejected.attention_mask, [[1] * 6 + [0], [1] * 7])
    self.assertAllEqual(second.chosen.input_ids.shape, [1, 7])
    spec = data.element_spec.chosen.input_ids
    self.assertEqual(spec, tf.TensorSpec([None, 7], tf.int32))
    short = tf.data.Dataset.from_tensor_slices(
        {'prompt': ['', ''], 'chosen': ['a', 'a'], 'rejected': ['b', 'a']}
    )
    (batch,) = tokens.convert_texts_to_pairs(
        short, tokenizer, 20, 5, min_words=1
    )
    self.assertLen(batch.chosen.input_ids, 1)

  def test_words_are_those_of_python(self):
    texts = ['', ' ', 'a', ' a b ', 'a\u200bb c', 'é\u3000ü']
    texts += [f'{space}a{space}{space}b{space}' for space in _SPACES]
    wanted = [len(text.split()) for text in texts]
    self.assertAllEqual(batches.count_words(texts), wanted)


if __name__ == '__main__':
  tf.test.main()
