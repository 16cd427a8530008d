"""Pads prompts and responses to the batches that language models take."""

from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.tokens import token_episodes
from rlds2reverb.tokens import tokenizing


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
  input_ids, mask = pad_ids(
      tf.concat([prompts, responses], 1), max_length, pad_id
  )
  prompt_lengths = prompts.row_lengths()
  lengths = prompt_lengths + responses.row_lengths()
  return TokenBatch(
      input_ids,
      mask,
      tf.minimum(prompt_lengths, max_length) - 1,
      (lengths < max_length) | (input_ids[:, -1] == pad_id),
  )


def pad_ids(ids: tf.RaggedTensor, max_length: int, pad_id: int):
  """Returns ids `[B, L]`, padded or cut, and their mask, int64 `[B, L]`."""
  padded = ids.to_tensor(
      tf.constant(pad_id, ids.dtype), shape=[None, max_length]
  )
  lengths = tf.cast(ids.row_lengths(), tf.int64)
  mask = tf.sequence_mask(lengths, max_length, tf.int64)
  return padded, tf.ensure_shape(mask, [None, max_length])


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
  token_episodes.check_fields(texts, fields)

  def to_tokens(batch):
    ids = [
        tokenizing.tokenize_batch(tokenizer, batch[field]) for field in fields
    ]
    return pad_tokens(*ids, max_length, pad_id)

  tokens = (
      texts.map(lambda element: {field: element[field] for field in fields})
      .batch(batch_size)
      .map(to_tokens)
      .unbatch()
  )
  if only_valid:
    tokens = tokens.filter(lambda sample: sample.valid_sample)
  return tokens.batch(batch_size, drop_remainder)
