"""Tokenizes prompts and responses, and pads them to batches of one length.

A tokenizer is a callable from strings `[B]` to ragged token ids `[B, (n)]`, as
the tokenizers of `tf_text`. `make_python_tokenizer` wraps a tokenizer that runs
in Python only.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import pipelines

Tokenizer = Callable[[tf.Tensor], Any]

# The characters that Python's `str.split` treats as whitespace.
_WHITESPACE = '[\\x09-\\x0d\\x1c-\\x20\\x{85}\\p{Z}]+'


class TokenBatch(NamedTuple):
  """A batch of prompts with their responses, like TorchRL's `PromptData`.

  Attributes:
    input_ids: `[B, L]`: the token ids of the prompt and the response, padded.
    attention_mask: int64 `[B, L]`: 1 for a token, 0 for padding.
    prompt_rindex: int64 `[B]`: the index of the last token of the prompt, -1
      for an empty prompt.
    valid_sample: bool `[B]`: whether the response is complete: there is room
      for another token, or the last id is `pad_id`, which is often also the id
      of the end of a text. Other samples may have been truncated.
  """

  input_ids: tf.Tensor
  attention_mask: tf.Tensor
  prompt_rindex: tf.Tensor
  valid_sample: tf.Tensor


class PaddedTokens(NamedTuple):
  """Texts that are padded or truncated to one length.

  Attributes:
    input_ids: `[B, L]`.
    attention_mask: int64 `[B, L]`: 1 for a token, 0 for padding.
  """

  input_ids: tf.Tensor
  attention_mask: tf.Tensor


class PreferencePairs(NamedTuple):
  """A chosen and a rejected response to each prompt, for reward models.

  Attributes:
    chosen: the preferred responses.
    rejected: the other responses.
  """

  chosen: PaddedTokens
  rejected: PaddedTokens


def make_python_tokenizer(
    tokenize: Callable[[Sequence[str]], Any], dtype: tf.DType = tf.int32
) -> Tokenizer:
  """Wraps a tokenizer that runs in Python. It is called once per batch.

  Args:
    tokenize: a function of a list of strings. It returns a list of lists of
      ids; a list of objects with an attribute `ids`, like
      `tokenizers.Tokenizer.encode_batch`; or a dict with `input_ids`, like the
      tokenizers of `transformers`.
    dtype: the dtype of the ids.

  Returns:
    The tokenizer. A pipeline that uses it cannot be serialized.
  """

  def call(strings):
    encoded = tokenize([string.decode('utf-8') for string in strings.tolist()])
    if not isinstance(encoded, (list, tuple)) and 'input_ids' in encoded:
      encoded = encoded['input_ids']
    ids = [getattr(encoding, 'ids', encoding) for encoding in encoded]
    if len(ids) != len(strings):
      raise ValueError(
          f'A tokenizer was given {len(strings)} strings, but returned ids for'
          f' {len(ids)}.'
      )
    lengths = np.array([len(row) for row in ids], np.int64)
    rows = [np.asarray(row, dtype.as_numpy_dtype) for row in ids]
    empty = np.zeros([0], dtype.as_numpy_dtype)
    return np.concatenate([empty, *rows]), lengths

  @pipelines.do_not_convert
  def tokenizer(strings):
    values, lengths = tf.numpy_function(call, [strings], (dtype, tf.int64))
    return tf.RaggedTensor.from_row_lengths(
        tf.ensure_shape(values, [None]), tf.ensure_shape(lengths, [None])
    )

  return tokenizer


def tokenize(tokenizer: Tokenizer, strings: tf.Tensor) -> tf.RaggedTensor:
  """Returns the token ids of strings `[B]`, ragged `[B, (n)]`.

  Raises:
    ValueError: if `strings` are not strings `[B]`, or the tokenizer does not
      return a row of integers for each string.
  """
  if strings.dtype != tf.string or strings.shape.rank != 1:
    raise ValueError(
        'Each element must have one string per field, but a field is'
        f' {strings.dtype.name} {strings.shape[1:]}.'
    )
  ids = tokenizer(strings)
  if not isinstance(ids, tf.RaggedTensor):
    ids = tf.convert_to_tensor(ids)
    if ids.shape.rank != 2:
      raise ValueError(
          'A tokenizer must return a row of ids for each string, ragged'
          f' [B, (n)], but returned {ids.dtype.name} {ids.shape}.'
      )
    ids = tf.RaggedTensor.from_tensor(ids)
  if not ids.dtype.is_integer:
    raise ValueError(
        f'A tokenizer must return integers, but returned {ids.dtype.name}.'
    )
  # Tokenizers that split words into pieces return an additional dimension.
  return ids.merge_dims(1, -1) if ids.shape.rank > 2 else ids


@pipelines.do_not_convert
def select_fields(
    texts: tf.data.Dataset, fields: Sequence[str]
) -> tf.data.Dataset:
  """Keeps only the named fields of a data set of dicts.

  Raises:
    ValueError: if the elements are not dicts with these fields.
  """
  spec = texts.element_spec
  if not isinstance(spec, dict):
    raise ValueError(
        f'texts must be a data set of dicts with the fields {list(fields)},'
        f' but its elements are {spec}.'
    )
  for field in fields:
    checks.check_known('An element of texts', 'field', field, spec)
  return texts.map(lambda element: {field: element[field] for field in fields})


def pad_tokens(
    prompts: Any, responses: Any, max_length: int, pad_id: int = 0
) -> TokenBatch:
  """Concatenates prompts and responses, and pads or truncates to one length.

  max_length=4:

      prompts      p q        p q r        input_ids    p q a 0    p q r a
      responses    a          a b          mask         1 1 1 0    1 1 1 1

  Args:
    prompts: integers, ragged `[B, (P)]`.
    responses: integers, ragged `[B, (R)]`, of the same dtype.
    max_length: `L`, the padded length.
    pad_id: the id of padding.

  Returns:
    The batch.

  Raises:
    ValueError: if `max_length` is not positive, or the dtypes differ.
  """
  checks.check_positive('max_length', max_length)
  if prompts.dtype != responses.dtype:
    raise ValueError(
        'prompts and responses must have the same dtype, but prompts are'
        f' {prompts.dtype.name} and responses are {responses.dtype.name}. Cast'
        ' one.'
    )
  prompts, responses = (
      ids.with_row_splits_dtype(tf.int64) for ids in (prompts, responses)
  )
  ids = tf.concat([prompts, responses], 1)
  padded = _pad(ids, max_length, pad_id)
  return TokenBatch(
      *padded,
      prompt_rindex=tf.minimum(prompts.row_lengths(), max_length) - 1,
      valid_sample=(ids.row_lengths() < max_length)
      | (padded.input_ids[:, -1] == pad_id),
  )


def _pad(ids: tf.RaggedTensor, max_length: int, pad_id: int) -> PaddedTokens:
  padding = tf.constant(pad_id, ids.dtype)
  lengths = tf.cast(ids.row_lengths(), tf.int64)
  mask = tf.sequence_mask(lengths, max_length, tf.int64)
  return PaddedTokens(
      ids.to_tensor(padding, shape=[None, max_length]),
      tf.ensure_shape(mask, [None, max_length]),
  )


def convert_texts_to_batches(
    texts: tf.data.Dataset,
    tokenizer: Tokenizer,
    max_length: int,
    batch_size: int,
    *,
    pad_id: int = 0,
    only_valid: bool = True,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
  """Tokenizes prompts and responses, and makes padded batches of them.

  Unlike TorchRL's `PromptTensorDictTokenizer`, which tokenizes the prompt and
  the response together, this tokenizes them separately.

  Args:
    texts: a data set of dicts with the fields `prompt` and `response`, strings.
    tokenizer: a tokenizer; see `make_python_tokenizer` for one in Python.
    max_length: `L`, the padded length.
    batch_size: `B`.
    pad_id: the id of padding.
    only_valid: whether to drop samples that are not `valid_sample`.
    drop_remainder: whether to drop a last batch that is not full.

  Returns:
    A data set of `TokenBatch`es.

  Raises:
    ValueError: if a field is missing, a text is not a string, the tokenizer
      does not return integers, or `max_length` or `batch_size` is not positive.
  """
  checks.check_positive('batch_size', batch_size)

  @pipelines.as_library_code
  def pad(batch):
    prompts = tokenize(tokenizer, batch['prompt'])
    responses = tokenize(tokenizer, batch['response'])
    return pad_tokens(prompts, responses, max_length, pad_id)

  texts = select_fields(texts, ('prompt', 'response'))
  samples = texts.batch(batch_size).map(pad).unbatch()
  if only_valid:
    samples = samples.filter(
        pipelines.as_library_code(lambda sample: sample.valid_sample)
    )
  return samples.batch(batch_size, drop_remainder)


def convert_texts_to_pairs(
    texts: tf.data.Dataset,
    tokenizer: Tokenizer,
    max_length: int,
    batch_size: int,
    *,
    min_words: int = 5,
    pad_id: int = 0,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
  """Tokenizes pairs of a chosen and a rejected response, for reward models.

  Like TorchRL's `PairwiseDataset`, it drops pairs of equal responses and pairs
  with a short response, and tokenizes the prompt, a newline and the response
  as one text.

  Args:
    texts: a data set of dicts with the fields `prompt`, `chosen` (the preferred
      response) and `rejected`, strings.
    tokenizer: a tokenizer; see `make_python_tokenizer` for one in Python.
    max_length: `L`, the padded length. Longer texts are truncated.
    batch_size: `B`.
    min_words: the minimum number of words of each response, counted as Python's
      `str.split` does.
    pad_id: the id of padding.
    drop_remainder: whether to drop a last batch that is not full.

  Returns:
    A data set of `PreferencePairs`.

  Raises:
    ValueError: if a field is missing or not a string, the tokenizer does not
      return integers, or `max_length` or `batch_size` is not positive.
  """
  checks.check_positive('max_length', max_length)
  checks.check_positive('batch_size', batch_size)

  @pipelines.as_library_code
  def is_pair(text):
    chosen, rejected = text['chosen'], text['rejected']
    num_words = tf.minimum(count_words(chosen), count_words(rejected))
    return (chosen != rejected) & (num_words >= min_words)

  def pad(batch, response):
    joined = tf.strings.join([batch['prompt'], batch[response]], '\n')
    return _pad(tokenize(tokenizer, joined), max_length, pad_id)

  return (
      select_fields(texts, ('prompt', 'chosen', 'rejected'))
      .filter(is_pair)
      .batch(batch_size, drop_remainder)
      .map(
          pipelines.as_library_code(
              lambda b: PreferencePairs(pad(b, 'chosen'), pad(b, 'rejected'))
          )
      )
  )


def count_words(texts: Any) -> tf.Tensor:
  """Returns the number of words of each text, int64, like `str.split`."""
  stripped = tf.strings.regex_replace(texts, _WHITESPACE, ' ')
  stripped = tf.strings.strip(stripped)
  words = tf.strings.split(tf.reshape(stripped, [-1]), ' ')
  counts = tf.cast(words.row_lengths(), tf.int64)
  counts = tf.reshape(counts, tf.shape(stripped))
  return tf.where(stripped == '', tf.zeros_like(counts), counts)
