"""Tokenizers: callables that make the ids of tokens of strings.

A tokenizer takes strings `[B]` and returns ids, ragged, as those of `tf_text`
do in the graph. `in_python` makes one of a callable that knows only Python.
"""

from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import checks

Tokenizer = Callable[[tf.Tensor], Any]


def in_python(
    tokenize: Callable[[Sequence[str]], Any], dtype: tf.DType = tf.int32
) -> Tokenizer:
  """Returns a tokenizer that calls Python, once for a batch of strings.

  Args:
    tokenize: takes a list of strings, and returns as many lists of ids; or
      objects with `ids`, as `tokenizers.Tokenizer.encode_batch` does; or a dict
      with `input_ids`, as a tokenizer of `transformers` does.
    dtype: the dtype of the ids.

  Returns:
    The tokenizer. A pipeline with it cannot be saved or leave this process.
  """

  def call(strings):
    found = tokenize([string.decode('utf-8') for string in strings.tolist()])
    if not isinstance(found, (list, tuple)) and 'input_ids' in found:
      found = found['input_ids']
    ids = [getattr(one, 'ids', one) for one in found]
    if len(ids) != len(strings):
      raise ValueError(
          f'A tokenizer was given {len(strings)} strings, but returned ids for'
          f' {len(ids)}.'
      )
    lengths = np.array([len(one) for one in ids], np.int64)
    values = np.concatenate(
        [np.zeros([0], dtype.as_numpy_dtype)]
        + [np.asarray(one, dtype.as_numpy_dtype) for one in ids]
    )
    return values, lengths

  def tokenizer(strings):
    values, lengths = tf.numpy_function(call, [strings], (dtype, tf.int64))
    return tf.RaggedTensor.from_row_lengths(
        tf.ensure_shape(values, [None]), tf.ensure_shape(lengths, [None])
    )

  return tokenizer


def tokenize_batch(tokenizer: Tokenizer, strings: tf.Tensor) -> tf.RaggedTensor:
  """Returns the ids of strings `[B]`, ragged `[B, (n)]`.

  Raises:
    ValueError: if the tokenizer returns anything but integers, or not a row for
      each string; or the strings are not strings `[B]`.
  """
  if strings.dtype != tf.string or strings.shape.rank != 1:
    raise ValueError(
        'A text must be one string an element, but it is'
        f' {strings.dtype.name} {strings.shape[1:]}.'
    )
  ids = tokenizer(strings)
  if not isinstance(ids, tf.RaggedTensor):
    ids = tf.convert_to_tensor(ids)
    if ids.shape.rank != 2:
      raise ValueError(
          'A tokenizer must return ids for each string, ragged [B, (n)], but'
          f' returns {ids.dtype.name} {ids.shape}.'
      )
    ids = tf.RaggedTensor.from_tensor(ids)
  if not ids.dtype.is_integer:
    raise ValueError(
        f'A tokenizer must return integers, but returns {ids.dtype.name}.'
    )
  # Tokenizers that split words into pieces return one dimension more.
  return ids.merge_dims(1, -1) if ids.shape.rank > 2 else ids


def take_fields(
    texts: tf.data.Dataset, fields: Sequence[str]
) -> tf.data.Dataset:
  """Returns some fields of texts.

  Raises:
    ValueError: if the elements are not dicts with these fields.
  """
  spec = texts.element_spec
  is_dict = isinstance(spec, dict)
  for field in fields:
    if not is_dict or field not in spec:
      found, near = spec, ''
      if is_dict:
        found, near = sorted(spec), checks.did_you_mean(field, spec)
      raise ValueError(
          f'The texts have no field {field!r}. They have {found}.{near}'
      )
  return texts.map(lambda element: {field: element[field] for field in fields})
