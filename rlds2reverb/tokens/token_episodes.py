"""Makes RLDS episodes of prompts and responses, one token a step."""

from typing import Any, Dict, Optional, Tuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.tokens import tokenizing

ALL, NEW = 'all', 'new'
OBSERVATIONS = (ALL, NEW)

PENALTY = 'penalty'
PROMPT = 'prompt_ids'


def make_token_episode(
    prompt: Any,
    response: Any,
    *,
    score: Any = 0.0,
    penalty: Any = 0.0,
    is_terminal: Any = True,
    observation: str = ALL,
    max_length: Optional[int] = None,
    pad_id: int = 0,
) -> Dict[str, Any]:
  """Returns the RLDS episode in which a response is written, token by token.

  Prompt p q, response a b, with the score s and the penalties l and m:

      step          0       1       2
      "all"         p q     p q a   p q a b    padded, with a mask
      "new"         q       a       b
      action        a       b       -
      reward        -l      s-m     -

  Args:
    prompt: integers `[P]`: the ids of its tokens.
    response: integers `[R]`, of the same dtype; `R > 0`.
    score: float `[]`: the reward for the whole response, at its last token.
    penalty: floats `[R]`: the cost of each token, such as a coefficient times
      the log of its probability under the policy over that under the reference;
      or `[]`, the same for every token.
    is_terminal: bool `[]`: whether the response was finished, rather than cut.
    observation: `"all"` tokens so far, or only the `"new"` one. The prompt is a
      field of the episode in any case.
    max_length: `L`, the ids of an observation of all tokens. By default
      `P + R`, which differs from episode to episode.
    pad_id: the id that pads an observation, and that is the last step's action.

  Returns:
    The episode, `R + 1` stacked steps. The observation is a dict of
    `input_ids`, `[R + 1, L]`, and `attention_mask`, bool `[R + 1, L]`; or
    `token`, `[R + 1]`, and `position`, int64 `[R + 1]`, its place in the text.
    `reward` is float32, and `penalty` the part of it that is not the score.
    `prompt_ids`, a field of the episode, is the prompt.

  Raises:
    ValueError: if the ids are not integers of one dtype and dimension, or
      `observation` is neither of the two.
    InvalidArgumentError: if the response has no tokens, or not a penalty for
      each; if there are more than `max_length`; or if the prompt has none
      and the observation is the new token.
  """
  checks.check_choice('observation', observation, OBSERVATIONS)
  if max_length is not None:
    checks.check_positive('max_length', max_length)
  prompt, response = _to_ids(prompt, response)
  length = tf.size(response, tf.int64)
  response = graphs.asserted(
      response, length > 0, 'A response must have a token, but has none.'
  )
  penalty = tf.cast(penalty, tf.float32)
  if penalty.shape.rank == 0:
    penalty = tf.fill([length], penalty)
  penalty = graphs.asserted(
      penalty,
      tf.equal(tf.size(penalty, tf.int64), length),
      'A response must have a penalty for each token, but has',
      *(tf.size(penalty), 'for', length),
  )
  penalty = tf.reshape(penalty, [-1])
  # There is an observation before the first token, and one after each.
  step = tf.range(length + 1)
  ends = tf.size(prompt, tf.int64) + step
  if observation == ALL:
    ids = tf.concat([prompt, response], 0)
    made = _all_tokens(ids, ends, max_length, pad_id)
  else:
    prompt = graphs.asserted(
        prompt,
        tf.size(prompt) > 0,
        'A prompt must have a token, or no token is new at the first step.',
    )
    token = tf.concat([prompt[-1:], response], 0)
    made = {'token': token, 'position': ends - 1}
  penalty = tf.pad(-penalty, [[0, 1]])
  score = tf.where(step == length - 1, tf.cast(score, tf.float32), 0.0)
  is_last = step == length
  is_terminal = tf.cast(is_terminal, tf.bool)
  last = tf.constant(pad_id, response.dtype)[tf.newaxis]
  steps = {
      rlds.OBSERVATION: made,
      rlds.ACTION: tf.concat([response, last], 0),
      rlds.REWARD: penalty + score,
      rlds.DISCOUNT: tf.where((step >= length - 1) & is_terminal, 0.0, 1.0),
      rlds.IS_FIRST: step == 0,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_last & is_terminal,
      PENALTY: penalty,
  }
  return {rlds.STEPS: steps, PROMPT: prompt}


def _to_ids(prompt: Any, response: Any) -> Tuple[tf.Tensor, tf.Tensor]:
  prompt, response = map(tf.convert_to_tensor, (prompt, response))
  for name, ids in ('prompt', prompt), ('response', response):
    if not ids.dtype.is_integer or not ids.shape.is_compatible_with([None]):
      raise ValueError(
          f'The {name} must be the ids of its tokens, but is'
          f' {ids.dtype.name} {ids.shape}.'
      )
  if prompt.dtype != response.dtype:
    raise ValueError(
        f'The prompt is {prompt.dtype.name}, but the response is'
        f' {response.dtype.name}. Cast one of them.'
    )
  return prompt, response


def _all_tokens(ids, ends, max_length, pad_id) -> Dict[str, Any]:
  """Returns observations of all tokens before each of the `ends`."""
  length = tf.size(ids, tf.int64)
  width = length if max_length is None else tf.constant(max_length, tf.int64)
  width = graphs.asserted(
      width,
      length <= width,
      'A prompt and its response have more tokens than max_length. They have',
      *(length, 'and max_length is', width),
  )
  mask = tf.sequence_mask(ends, width)
  row = tf.gather(ids, tf.minimum(tf.range(width), length - 1))
  input_ids = tf.where(mask, row, tf.constant(pad_id, ids.dtype))
  return {
      'input_ids': tf.ensure_shape(input_ids, [None, max_length]),
      'attention_mask': tf.ensure_shape(mask, [None, max_length]),
  }


def convert_texts_to_episodes(
    texts: tf.data.Dataset,
    tokenizer: tokenizing.Tokenizer,
    *,
    kl_coefficient: Any = 0.1,
    observation: str = ALL,
    max_length: Optional[int] = None,
    pad_id: int = 0,
    texts_at_once: int = 64,
) -> tf.data.Dataset:
  """Makes an RLDS data set of prompts and responses that are strings.

  Args:
    texts: a data set of dicts with the fields `prompt` and `response`, strings;
      and, where they are known, `score`, the reward for the whole response;
      `log_ratio`, floats `[R]`, for each token of the response the log of its
      probability under the policy over that under the reference; and
      `is_terminal`, whether the response was finished. All others become fields
      of the episodes.
    tokenizer: makes ids of strings; see `in_python` for one that is Python.
      The prompt and the response are tokenized apart.
    kl_coefficient: float `[]`: the cost of a log ratio of 1.
    observation: `"all"` or `"new"`, see `make_token_episode`.
    max_length: the ids of an observation of all tokens.
    pad_id: the id that pads it.
    texts_at_once: how many texts the tokenizer is given at once.

  Returns:
    A data set of the episodes of `make_token_episode`.

  Raises:
    ValueError: if a field is missing, a text is not a string, or the tokenizer
      does not return integers; and see `make_token_episode`.
    InvalidArgumentError: while iterating, as `make_token_episode` does.
  """
  checks.check_positive('texts_at_once', texts_at_once)
  names = ('prompt', 'response')
  tokenizing.take_fields(texts, names)

  def tokenize(batch):
    ids = [tokenizing.tokenize_batch(tokenizer, batch[name]) for name in names]
    return (*ids, batch)

  def to_episode(prompt_ids, response_ids, element):
    given = dict(observation=observation, max_length=max_length, pad_id=pad_id)
    fields = dict(element)
    for name in ('score', 'is_terminal'):
      if name in fields:
        given[name] = fields.pop(name)
    if 'log_ratio' in fields:
      log_ratio = tf.cast(fields.pop('log_ratio'), tf.float32)
      given[PENALTY] = tf.cast(kl_coefficient, tf.float32) * log_ratio
    made = make_token_episode(prompt_ids, response_ids, **given)
    for key in made.keys() & fields.keys():
      raise ValueError(
          f'There is a field {key!r} already, and an episode has one of that'
          ' name. Rename it first.'
      )
    return {**fields, **made}

  return (
      texts.ragged_batch(texts_at_once)
      .map(tokenize)
      .unbatch()
      .map(to_episode, num_parallel_calls=tf.data.AUTOTUNE)
  )
