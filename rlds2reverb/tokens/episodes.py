"""Episodes of prompts and responses, one token per step, for RLHF."""

from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.tokens import texts as texts_lib

ALL, NEW = 'all', 'new'
OBSERVATIONS = (ALL, NEW)

PENALTY = 'penalty'
PROMPT_IDS = 'prompt_ids'

# The relative error of the KL divergence is clipped to this, as in the paper.
_MAX_ERROR = 0.2


def make_token_episode(
    prompt: Any,
    response: Any,
    *,
    score: Any = 0.0,
    penalty: Any = 0.0,
    is_terminal: Any = True,
    observation: str = ALL,
    max_length: int | None = None,
    pad_id: int = 0,
) -> dict[str, Any]:
  """Makes the RLDS episode that generates a response, one token per step.

  Prompt p q, response a b, score s, penalties l and m:

      step          0       1       2
      "all"         p q     p q a   p q a b    padded, with a mask
      "new"         q       a       b
      action        a       b       -
      reward        -l      s-m     -

  Args:
    prompt: integers `[P]`: the token ids of the prompt.
    response: integers `[R]`, of the same dtype; `R > 0`.
    score: float `[]`: the reward of the response, given with its last token.
    penalty: floats `[R]`, or `[]` for all tokens: the cost of each token, such
      as a coefficient times the log ratio of the token's probabilities under
      the policy and under the reference policy.
    is_terminal: bool `[]`: whether the response is complete, not truncated.
    observation: `"all"` tokens so far, or only the `"new"` one. The prompt is a
      field of the episode in either case.
    max_length: `L`, the padded length of `"all"`. By default `P + R`, which
      differs from episode to episode.
    pad_id: the id of padding, and the action of the last step.

  Returns:
    The episode of `R + 1` stacked steps. The observation is a dict of
    `input_ids`, `[R + 1, L]`, and `attention_mask`, bool `[R + 1, L]`; or of
    `token`, `[R + 1]`, and `position`, int64 `[R + 1]`, its index in the text.
    `reward` is float32, and `penalty` its part without the score. The field
    `prompt_ids` of the episode is the prompt.

  Raises:
    ValueError: if the ids are not vectors of integers of one dtype, or there is
      no such `observation`.
    InvalidArgumentError: if the response is empty, has another number of
      penalties than tokens, or is longer than `max_length` with the prompt; or
      if the prompt is empty and the observation is `"new"`.
  """
  checks.check_choice('observation', observation, OBSERVATIONS)
  if max_length is not None:
    checks.check_positive('max_length', max_length)
  prompt, response = _check_ids(prompt, response)
  length = tf.size(response, tf.int64)
  response = errors.assert_true(
      response, length > 0, 'A response must have at least one token.'
  )
  penalty = tf.cast(penalty, tf.float32)
  if penalty.shape.rank == 0:
    penalty = tf.fill([length], penalty)
  penalty = errors.assert_true(
      penalty,
      tf.equal(tf.size(penalty, tf.int64), length),
      'There must be one penalty per token of the response. Penalties and'
      ' tokens:',
      *(tf.size(penalty), length),
  )
  penalty = tf.reshape(penalty, [-1])
  step = tf.range(length + 1)  # One observation before each token, and the last
  num_tokens = tf.size(prompt, tf.int64) + step
  if observation == ALL:
    ids = tf.concat([prompt, response], 0)
    observations = _observe_all(ids, num_tokens, max_length, pad_id)
  else:
    prompt = errors.assert_true(
        prompt,
        tf.size(prompt) > 0,
        'A prompt must have at least one token with observation="new", for the'
        ' first step.',
    )
    token = tf.concat([prompt[-1:], response], 0)
    observations = {'token': token, 'position': num_tokens - 1}
  penalty = tf.pad(-penalty, [[0, 1]])
  score = tf.where(step == length - 1, tf.cast(score, tf.float32), 0.0)
  is_last = step == length
  is_terminal = tf.cast(is_terminal, tf.bool)
  last_action = tf.constant(pad_id, response.dtype)[tf.newaxis]
  steps = {
      rlds.OBSERVATION: observations,
      rlds.ACTION: tf.concat([response, last_action], 0),
      rlds.REWARD: penalty + score,
      rlds.DISCOUNT: tf.where((step >= length - 1) & is_terminal, 0.0, 1.0),
      rlds.IS_FIRST: step == 0,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_last & is_terminal,
      PENALTY: penalty,
  }
  return {rlds.STEPS: steps, PROMPT_IDS: prompt}


def _check_ids(prompt: Any, response: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns both as tensors, and raises a ValueError if they do not fit."""
  prompt, response = map(tf.convert_to_tensor, (prompt, response))
  for name, ids in ('prompt', prompt), ('response', response):
    if not ids.dtype.is_integer or not ids.shape.is_compatible_with([None]):
      raise ValueError(
          f'The {name} must be a vector of integer token ids, but is'
          f' {ids.dtype.name} {ids.shape}.'
      )
  if prompt.dtype != response.dtype:
    raise ValueError(
        'The prompt and the response must have the same dtype, but the prompt'
        f' is {prompt.dtype.name} and the response is {response.dtype.name}.'
        ' Cast one.'
    )
  return prompt, response


def _observe_all(ids, num_tokens, max_length, pad_id) -> dict[str, Any]:
  """Returns the observations of the first `num_tokens[t]` ids, padded."""
  length = tf.size(ids, tf.int64)
  width = length if max_length is None else tf.constant(max_length, tf.int64)
  width = errors.assert_true(
      width,
      length <= width,
      'A prompt and its response must not have more tokens than max_length.'
      ' Tokens and max_length:',
      *(length, width),
  )
  mask = tf.sequence_mask(num_tokens, width)
  row = tf.gather(ids, tf.minimum(tf.range(width), length - 1))
  input_ids = tf.where(mask, row, tf.constant(pad_id, ids.dtype))
  return {
      'input_ids': tf.ensure_shape(input_ids, [None, max_length]),
      'attention_mask': tf.ensure_shape(mask, [None, max_length]),
  }


def convert_texts_to_episodes(
    texts: tf.data.Dataset,
    tokenizer: texts_lib.Tokenizer,
    *,
    kl_coefficient: Any = 0.1,
    observation: str = ALL,
    max_length: int | None = None,
    pad_id: int = 0,
    batch_size: int = 64,
) -> tf.data.Dataset:
  """Tokenizes prompts and responses, and makes RLDS episodes of them.

  Args:
    texts: a data set of dicts with the fields `prompt` and `response`, strings.
      Optional fields are `score`, the reward of the response; `log_ratio`,
      floats `[R]`, the log ratio of each token's probabilities under the policy
      and under the reference policy; and `is_terminal`, whether the response is
      complete. Other fields become fields of the episodes.
    tokenizer: a tokenizer; see `make_python_tokenizer` for one in Python. The
      prompt and the response are tokenized separately.
    kl_coefficient: float `[]`: the penalty of a token is this times its
      `log_ratio`.
    observation: `"all"` or `"new"`; see `make_token_episode`.
    max_length: the padded length of `"all"`.
    pad_id: the id of padding.
    batch_size: the number of texts per call of the tokenizer.

  Returns:
    A data set of the episodes of `make_token_episode`.

  Raises:
    ValueError: if a field is missing, a text is not a string, the tokenizer
      does not return integers, an element has a field that episodes have, or as
      `make_token_episode` does.
    InvalidArgumentError: while iterating, as `make_token_episode` does.
  """
  checks.check_positive('batch_size', batch_size)
  texts_lib.select_fields(texts, ('prompt', 'response'))

  @pipelines.as_library_code
  def tokenize(batch):
    prompt_ids = texts_lib.tokenize(tokenizer, batch['prompt'])
    return prompt_ids, texts_lib.tokenize(tokenizer, batch['response']), batch

  @pipelines.as_library_code
  def to_episode(prompt_ids, response_ids, element):
    fields = dict(element)
    arguments = {
        name: fields.pop(name)
        for name in ('score', 'is_terminal')
        if name in fields
    }
    if 'log_ratio' in fields:
      log_ratio = tf.cast(fields.pop('log_ratio'), tf.float32)
      arguments['penalty'] = tf.cast(kl_coefficient, tf.float32) * log_ratio
    episode = make_token_episode(
        prompt_ids,
        response_ids,
        observation=observation,
        max_length=max_length,
        pad_id=pad_id,
        **arguments,
    )
    for name in episode.keys() & fields.keys():
      raise ValueError(
          f'An element of texts must not have a field {name!r}, which is a'
          ' field of the episodes. Rename it first.'
      )
    return {**fields, **episode}

  return (
      texts.ragged_batch(batch_size)
      .map(tokenize)
      .unbatch()
      .map(to_episode, num_parallel_calls=tf.data.AUTOTUNE)
  )


def update_kl_coefficient(
    coefficient: Any, kl: Any, *, target: float, horizon: float
) -> tf.Tensor:
  """Returns a coefficient that moves the KL divergence toward a target.

      error = clip(mean(kl) / target - 1, -0.2, 0.2)
      coefficient * (1 + error * n / horizon)

  This is the controller of Ziegler et al., Fine-Tuning Language Models from
  Human Preferences (2019), section 2.2. TorchRL's `AdaptiveKLController` takes
  penalties instead of divergences: `kl = -penalty / coefficient`.

  Args:
    coefficient: float `[]`: the current coefficient.
    kl: floats `[n]`: the divergences that were observed with it, in nats.
    target: the mean divergence at which the coefficient does not change.
    horizon: the number of observations after which the coefficient has changed
      by the clipped error.

  Returns:
    float32 `[]`: the new coefficient.

  Raises:
    ValueError: if `target` or `horizon` is not positive, or `kl` is a scalar.
    InvalidArgumentError: if `kl` is empty, or `kl` or the coefficient is not
      finite, which the coefficient would never recover from.
  """
  if target <= 0 or horizon <= 0:
    raise ValueError(
        f'target and horizon must be positive, but are {target} and {horizon}.'
    )
  kl, coefficient = tf.cast(kl, tf.float32), tf.cast(coefficient, tf.float32)
  if kl.shape.rank == 0:
    raise ValueError('kl must be a vector, one number per observation.')
  count = tf.size(kl)
  kl = errors.assert_true(
      kl, count > 0, 'kl must have at least one observation, but is empty.'
  )
  kl = errors.assert_true(
      kl,
      tf.reduce_all(tf.math.is_finite(kl)) & tf.math.is_finite(coefficient),
      'kl and the coefficient must be finite, or the coefficient stays NaN.'
      ' They are:',
      *(kl, coefficient),
  )
  error = tf.reduce_mean(kl) / target - 1.0
  error = tf.clip_by_value(error, -_MAX_ERROR, _MAX_ERROR)
  return coefficient * (1.0 + error * tf.cast(count, tf.float32) / horizon)
