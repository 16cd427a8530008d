"""Pads prompts and responses to the batches that language models take."""

from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.tokens import tokenizing

# The characters that Python's `str.split` treats as spaces.
_SPACES = '[\\x09-\\x0d\\x1c-\\x20\\x{85}\\p{Z}]+'


class TokenBatch(NamedTuple):
  """Prompts with their responses, after TorchRL's `PromptData`.

  Attributes:
    input_ids: `[B, L]`: the ids of a prompt, of its response, and padding.
    attention_mask: int64 `[B, L]`: 1 where there is a token, else 0.
    prompt_rindex: int64 `[B]`: the place of the last token of the prompt, -1 if
      it has none.
    valid_sample: bool `[B]`: whether there is room for one token more, or the
      last one is the padding, which often is the end of a text. Others may
      have been cut.
  """

  input_ids: tf.Tensor
  attention_mask: tf.Tensor
  prompt_rindex: tf.Tensor
  valid_sample: tf.Tensor


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


def pad_tokens(
    prompts: Any, responses: Any, max_length: int, pad_id: int = 0
) -> TokenBatch:
  """Returns prompts with their responses, padded or cut to one length.

  max_length=4:

      prompts      p q        p q r        input_ids    p q a 0    p q r a
      responses    a          a b          mask         1 1 1 0    1 1 1 1

  Args:
    prompts: integers, ragged `[B, (P)]`.
    responses: integers, ragged `[B, (R)]`, of the same dtype.
    max_length: `L`.
    pad_id: the id that pads.

  Returns:
    The `TokenBatch`.

  Raises:
    ValueError: if `max_length` is not positive, or the ids differ in dtype.
  """
  checks.check_positive('max_length', max_length)
  if prompts.dtype != responses.dtype:
    raise ValueError(
        f'The prompts are {prompts.dtype.name}, but the responses are'
        f' {responses.dtype.name}. Cast one of them.'
    )
  prompts, responses = (
      ids.with_row_splits_dtype(tf.int64) for ids in (prompts, responses)
  )
  ids = tf.concat([prompts, responses], 1)
  padded = _pad(ids, max_length, pad_id)
  return TokenBatch(
      *padded,
      tf.minimum(prompts.row_lengths(), max_length) - 1,
      (ids.row_lengths() < max_length) | (padded.input_ids[:, -1] == pad_id),
  )


def _pad(ids: tf.RaggedTensor, max_length: int, pad_id: int) -> PaddedTokens:
  padded = ids.to_tensor(
      tf.constant(pad_id, ids.dtype), shape=[None, max_length]
  )
  lengths = tf.cast(ids.row_lengths(), tf.int64)
  mask = tf.sequence_mask(lengths, max_length, tf.int64)
  return PaddedTokens(padded, tf.ensure_shape(mask, [None, max_length]))


def convert_texts_to_batches(
    texts: tf.data.Dataset,
    tokenizer: tokenizing.Tokenizer,
    max_length: int,
    batch_size: int,
    *,
    pad_id: int = 0,
    only_valid: bool = True,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
  """Makes padded batches of prompts and responses that are strings.

  TorchRL's `PromptTensorDictTokenizer` does the same, but tokenizes the prompt
  and the response together.

  Args:
    texts: a data set of dicts with the fields `prompt` and `response`, strings.
    tokenizer: makes ids of strings; see `in_python` for one that is Python.
    max_length: `L`.
    batch_size: `B`.
    pad_id: the id that pads.
    only_valid: whether samples that are not `valid_sample` are left out.
    drop_remainder: whether a last batch that is not full is left out.

  Returns:
    A data set of `TokenBatch`es.

  Raises:
    ValueError: if a field is missing, or an argument is not positive; and see
      `convert_texts_to_episodes`.
  """
  checks.check_positive('batch_size', batch_size)
  fields = ('prompt', 'response')

  def pad(batch):
    ids = [tokenizing.tokenize_batch(tokenizer, batch[one]) for one in fields]
    return pad_tokens(*ids, max_length, pad_id)

  texts = tokenizing.take_fields(texts, fields)
  tokens = texts.batch(batch_size).map(pad).unbatch()
  if only_valid:
    tokens = tokens.filter(lambda sample: sample.valid_sample)
  return tokens.batch(batch_size, drop_remainder)


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

  def is_pair(text):
    both = text['chosen'], text['rejected']
    are_long = [count_words(one) >= min_words for one in both]
    return (both[0] != both[1]) & tf.reduce_all(are_long)

  def pad(batch, field):
    joined = tf.strings.join([batch['prompt'], batch[field]], '\n')
    ids = tokenizing.tokenize_batch(tokenizer, joined)
    return _pad(ids, max_length, pad_id)

  return (
      tokenizing.take_fields(texts, ('prompt', 'chosen', 'rejected'))
      .filter(is_pair)
      .batch(batch_size, drop_remainder)
      .map(lambda batch: Pairs(pad(batch, 'chosen'), pad(batch, 'rejected')))
  )


def count_words(texts: Any) -> tf.Tensor:
  """Returns how many words texts have, int64 of the shape of `texts`."""
  plain = tf.strings.strip(tf.strings.regex_replace(texts, _SPACES, ' '))
  words = tf.strings.split(tf.reshape(plain, [-1]), ' ')
  counts = tf.reshape(tf.cast(words.row_lengths(), tf.int64), tf.shape(plain))
  return tf.where(plain == '', tf.zeros_like(counts), counts)
