"""Tests of pairs of responses."""

import tensorflow as tf

from rlds2reverb import tokens
from rlds2reverb.tokens import batches
from tests.tokens import tokenizers

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


class PairsTest(tf.test.TestCase):

  def test_filters_are_those_of_torchrl(self):
    data = tokens.convert_texts_to_pairs(
        tf.data.Dataset.from_tensor_slices(
            {
                'prompt': _PROMPTS,
                'chosen': _CHOSEN,
                'rejected': _REJECTED,
            }
        ),
        tokens.in_python(tokenizers.by_letters),
        20,
        5,
    )
    (batch,) = data
    self.assertLen(batch.chosen.input_ids, sum(_KEPT))
    data = tokens.convert_texts_to_pairs(
        tf.data.Dataset.from_tensor_slices(
            {
                'prompt': ['', ''],
                'chosen': ['a', 'a'],
                'rejected': ['b', 'a'],
            }
        ),
        tokens.in_python(tokenizers.by_letters),
        20,
        5,
        min_words=1,
    )
    (batch,) = data
    self.assertLen(batch.chosen.input_ids, 1)

  def test_words_are_those_of_python(self):
    texts = [
        '',
        ' ',
        'a',
        ' a b ',
        'a\u200bb c',
        'é\u3000ü',
        *(f'{space}a{space}{space}b{space}' for space in _SPACES),
    ]
    self.assertAllEqual(
        batches.count_words(texts), [len(text.split()) for text in texts]
    )

  def test_texts(self):
    texts = tf.data.Dataset.from_tensor_slices(
        {'prompt': _PROMPTS, 'chosen': _CHOSEN, 'rejected': _REJECTED}
    )
    data = tokens.convert_texts_to_pairs(
        texts, tokens.in_python(tokenizers.by_letters), 7, 2
    )
    first, second = data
    # 'P', a new line, and 'a b c d e'.
    self.assertAllEqual(first.chosen.input_ids[0], [81, 1, 2, 3, 4, 5, 0])
    self.assertAllEqual(first.rejected.input_ids[0], [81, 1, 2, 3, 4, 6, 0])
    self.assertAllEqual(first.rejected.attention_mask, [[1] * 6 + [0], [1] * 7])
    self.assertAllEqual(second.chosen.input_ids.shape, [1, 7])
    self.assertEqual(
        data.element_spec.chosen.input_ids, tf.TensorSpec([None, 7], tf.int32)
    )
    with self.assertRaisesRegex(ValueError, "no field 'rejected'"):
      tokens.convert_texts_to_pairs(
          texts.map(
              lambda text: {
                  'prompt': text['prompt'],
                  'chosen': text['chosen'],
                  'rejectd': text['rejected'],
              }
          ),
          tokenizers.by_words,
          7,
          2,
      )


if __name__ == '__main__':
  tf.test.main()
