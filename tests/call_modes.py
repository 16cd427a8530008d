"""Call modes for functions of an episode, and two example episodes.

A call mode is a function `run(transform, [FIVE, THREE])`. It calls `transform`
on each episode, eagerly or in `Dataset.map`, with nested or stacked steps or on
a batch of episodes, and returns the results as NumPy arrays.

`FIVE` has 6 steps with the observations 0 to 5 and the rewards 1 to 5. It
terminates, and the discounts of its last two steps are 0. `THREE` has 4 steps
with the observations 10 to 13 and the rewards 10, 20 and 30, and is truncated.
The reward of the last step is 99, and has no meaning. An action is two floats:
the observation plus 0.5 and minus 0.5.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rlds2reverb import transforms
from rlds2reverb.episodes import episode_dataset
from tests import contract
from tests import golden


def _with_vector_actions(steps: golden.Episode) -> golden.Episode:
  return {**steps, 'action': steps['observation'][:, None] + [0.5, -0.5]}


def make(observations, rewards, *, terminal: bool) -> golden.Episode:
  """Returns an episode of `len(rewards) + 1` steps."""
  return _with_vector_actions(
      contract.make_steps(observations, rewards, terminal=terminal)
  )


class Empty:
  """A callable whose truth value is False, such as a model without layers."""

  def __init__(self, function: Callable[..., Any]):
    self._function = function

  def __call__(self, *args: Any) -> Any:
    return self._function(*args)

  def __len__(self) -> int:
    return 0


FIVE = _with_vector_actions(contract.A_WITH_ZERO_DISCOUNTS)
THREE = _with_vector_actions(contract.B)


def _eagerly(fn, rlds_data):
  return [_to_numpy(fn(episode)) for episode in rlds_data]


def _in_map(fn, rlds_data):
  return list(rlds_data.map(fn).as_numpy_iterator())


def _to_numpy(nest):
  return tf.nest.map_structure(lambda leaf: leaf.numpy(), nest)


def _make_call_mode(form, call):
  def run(
      fn: Callable[[dict[str, Any]], Any], episodes: list[golden.Episode]
  ) -> list[Any]:
    """Returns the result of `fn` for each episode, as NumPy arrays."""
    return call(fn, form(episodes))

  return run


# Names and call modes, for `parameterized.named_parameters`.
ALL = tuple(
    (f'{form_name}_{call_name}', _make_call_mode(form, call))
    for form_name, form in golden.FORMS.items()
    for call_name, call in (('eagerly', _eagerly), ('in_map', _in_map))
)


def _in_batches(transform, episodes):
  """Transforms a batch of episodes; returns the episodes as NumPy arrays."""
  transformed = transforms.transform_episodes(
      golden.batched(episodes), [transform]
  )
  assert golden.has_batches(
      transformed
  ), f'{transform} does not support batches.'
  return list(
      episode_dataset.unbatch(
          episode_dataset.batches_of(transformed)
      ).as_numpy_iterator()
  )


# All call modes with single episodes, and one with batches of episodes.
WITH_BATCHES = (*ALL, ('batched', _in_batches))
