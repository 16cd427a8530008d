"""Pairs of a chosen and a rejected response, for training a reward model."""

from typing import Any, Dict, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.tokens import batches
from rlds2reverb.tokens import token_episodes
from rlds2reverb.tokens import tokenizing

# The characters that Python's `str.split` treats as spaces.
_SPACES = '[\\x09-\\x0d\\x1c-\\x20\\x{85}\\p{Z}]+'


class PaddedTokens(NamedTuple):
  """Texts, padded or cut to one length.

  Attributes:
    input_ids: `[B, L]`.
    attention_mask: int64 `[B, L]`: 1 where there is a token, else 0.
  """

  input_ids: tf.Tensor
  attention_mask: tf.Tensor


class Pairs(NamedTuple):
  """Prompts with a chosen and a rejected response, as `PairwiseDataset`.

  Attributes:
    chosen: `PaddedTokens`.
    rejected: `PaddedTokens`.
  """

  chosen: PaddedTokens
  rejected: PaddedTokens


def convert_texts_to_pairs(
    texts: tf.data.Dataset,
    tokenizer: tokenizing.Tokenizer,
    max_length: int,
    batch_size: int,
    *,
    min_words: int = 5,
    pad_id: int = 0,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
  """Makes padded pairs of a chosen and a rejected response, of strings.

  As in TorchRL's `PairwiseDataset`, pairs of equal responses, and of responses
  with too few words, are left out. Each text is the prompt, a
  new line and the response, tokenized as one.

  Args:
    texts: a data set of dicts with the fields `prompt`, `chosen` and
      `rejected`, strings: the response that was preferred, and the other one.
    tokenizer: makes ids of strings; see `in_python` for one that is Python.
    max_length: `L`. Longer texts are cut.
    batch_size: `B`.
    min_words: how many words each response must have at least, as `str.split`
      of Python counts them.
    pad_id: the id that pads.
    drop_remainder: whether a last batch that is not full is left out.

  Returns:
    A data set of `Pairs`.

  Raises:
    ValueError: if a field is missing or not a string, the tokenizer does not
      return integers, or an argument is not positive.
  """
  checks.check_positive('max_length', max_length)
  checks.check_positive('batch_size', batch_size)
  fields = ('prompt', 'chosen', 'rejected')
  token_episodes.check_fields(texts, fields)

  def tokenize(batch: Dict[str, Any]) -> Pairs:
    def pad(field):
      ids = tokenizing.tokenize_batch(
          tokenizer, tf.strings.join([batch['prompt'], batch[field]], '\n')
      )
      return PaddedTokens(*batches.pad_ids(ids, max_length, pad_id))

    return Pairs(pad('chosen'), pad('rejected'))

  return (
      texts.map(lambda element: {field: element[field] for field in fields})
      .filter(
          lambda element: _is_pair(
              element['chosen'], element['rejected'], min_words
          )
      )
      .batch(batch_size, drop_remainder)
      .map(tokenize)
  )


def _is_pair(chosen, rejected, min_words) -> tf.Tensor:
  """Returns whether two texts differ, and both have `min_words` words."""
  are_long = [count_words(text) >= min_words for text in (chosen, rejected)]
  return (chosen != rejected) & tf.reduce_all(are_long)


def count_words(texts: Any) -> tf.Tensor:
  """Returns how many words texts have, int64 of the shape of `texts`."""
  plain = tf.strings.strip(tf.strings.regex_replace(texts, _SPACES, ' '))
  words = tf.strings.split(tf.reshape(plain, [-1]), ' ')
  counts = tf.reshape(tf.cast(words.row_lengths(), tf.int64), tf.shape(plain))
  return tf.where(plain == '', tf.zeros_like(counts), counts)
