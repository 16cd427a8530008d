"""The ways in which a function on an episode is called, and two episodes.

A way is called as `run(transform, [FIVE, THREE])`, and returns the episodes
that come out, in numpy.

`FIVE` has 6 steps with the observations 0 to 5 and the rewards 1 to 5. It
terminates, with discounts of 0 in its last two steps. `THREE` has 4 steps with
the observations 10 to 13 and the rewards 10, 20 and 30, and is truncated. The
reward of each last step is 99, which means nothing. An action is two floats:
the observation plus and minus a half.
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
  """Returns an episode with a step more than there are rewards."""
  return _with_vector_actions(
      contract.make_steps(observations, rewards, terminal=terminal)
  )


class Empty:
  """A function that is false, as a model is to which no layer was added."""

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


def _way(form, call):
  def run(
      fn: Callable[[dict[str, Any]], Any], episodes: list[golden.Episode]
  ) -> list[Any]:
    """Returns what `fn` makes of each episode, in numpy."""
    return call(fn, form(episodes))

  return run


# For `parameterized.named_parameters`.
ALL = tuple(
    (f'{form_name}_{call_name}', _way(form, call))
    for form_name, form in golden.FORMS.items()
    for call_name, call in (('eagerly', _eagerly), ('in_map', _in_map))
)


def _in_batches(transform, episodes):
  """Returns what a transform makes of many episodes at once, in numpy."""
  made = transforms.transform_episodes(golden.batched(episodes), [transform])
  assert golden.has_batches(made), f'{transform} takes single episodes.'
  return list(
      episode_dataset.unbatch(
          episode_dataset.batches_of(made)
      ).as_numpy_iterator()
  )


# The same, and many episodes at once.
WITH_BATCHES = (*ALL, ('batched', _in_batches))
