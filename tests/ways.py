"""The ways in which a function on an episode is called, and two episodes.

Episodes A and B are those of the worked arrays of the transforms: A has five
transitions and terminates, B has three and is truncated.
"""

from typing import Any, Callable, Dict, List

import numpy as np
import tensorflow as tf

from tests import golden


def make(observations, rewards, *, terminal: bool) -> golden.Episode:
  """Returns an episode with a step more than there are rewards."""
  length = len(observations)
  step = np.arange(length)
  discount = np.ones(length, np.float32)
  if terminal:
    discount[-2:] = 0
  return {
      'observation': np.array(observations, np.float32),
      'action': np.array(observations, np.float32)[:, None] + [0.5, -0.5],
      'reward': np.array([*rewards, 99], np.float32),  # 99 has no meaning
      'discount': discount,
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & terminal,
  }


A = make(range(6), [1, 2, 3, 4, 5], terminal=True)
B = make(range(10, 14), [10, 20, 30], terminal=False)


def _eagerly(fn, rlds_data):
  return [_to_numpy(fn(episode)) for episode in rlds_data]


def _in_map(fn, rlds_data):
  return list(rlds_data.map(fn).as_numpy_iterator())


def _to_numpy(nest):
  return tf.nest.map_structure(lambda leaf: leaf.numpy(), nest)


def _way(form, call):
  def run(
      fn: Callable[[Dict[str, Any]], Any], episodes: List[golden.Episode]
  ) -> List[Any]:
    """Returns what `fn` makes of each episode, in numpy."""
    return call(fn, form(episodes))

  return run


# For `parameterized.named_parameters`.
ALL = tuple(
    (f'{form_name}_{call_name}', _way(form, call))
    for form_name, form in golden.FORMS.items()
    for call_name, call in (('eagerly', _eagerly), ('in_map', _in_map))
)
