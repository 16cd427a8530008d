"""Tests of padded batches of prompts and responses."""

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
    with self.assertRaisesRegex(ValueError, "no field 'response'"):
      tokens.convert_texts_to_batches(
          tf.data.Dataset.from_tensor_slices({'prompt': _TEXTS['prompt']}),
          tokenizers.by_words,
          6,
          2,
      )


if __name__ == '__main__':
  tf.test.main()
