"""Converts episodes in Python dicts, as environment loops collect them."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sized
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes

_LAST_OBSERVATION = _REQUIRED, _MISSING = ('required', 'missing')
_COMPUTED = {rlds.IS_FIRST, rlds.IS_LAST, rlds.DISCOUNT}


def from_episodes(
    episodes: (
        Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]
    ),
    *,
    last_observation: str = 'required',
) -> tf.data.Dataset:
  """Converts dicts of `T` actions and `T + 1` observations to RLDS episodes.

  Environment loops of most libraries collect such dicts. The steps of an
  episode are as follows, where `e` is 1 if the episode is terminal:

      observation  | o0  o1  o2  o3  |
      action       | a0  a1  a2  0   |
      reward       | r0  r1  r2  0   |
      discount     | 1   1   1-e 1-e |
      is_terminal  | 0   0   0   e   |

      def collect():
        for seed in range(100):
          ...
          yield {'observation': observations, 'action': actions,
                 'reward': rewards, 'is_terminal': terminated}

      episodes = formats.load(collect)

  Args:
    episodes: an iterable of episodes, such as a list, or a function that
      returns an iterable, such as a generator function. It is iterated once for
      the types of the first episode, and once for each iteration of the data
      set. An episode is a dict of

      - `observation`: `T + 1` rows, including the final observation.
      - `action`: `T` rows.
      - `reward`: `T` rows; float32 zeros by default.
      - `is_terminal`: whether the environment terminated, a bool. By default
        the episode is truncated.
      - any other name, such as `infos`: `T + 1` rows, or `T` rows, to which a
        row of zeros is appended. A value of None is skipped.

      A field is an array of rows, a list of rows, or a dict or tuple of fields.
      The rows of a list may also be dicts and tuples. All episodes must have
      the fields of the first.
    last_observation: `"required"`, or `"missing"` if episodes have as many
      observations as actions, as is common in data for behavior cloning. The
      last observation of a truncated episode then becomes its last step, whose
      action is ignored unless `StepMapping.last_action` includes it, and a step
      of zeros is appended to a terminal episode.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of `episodes`, with stacked steps `[T + 1, ...]`. `episode_id` counts
    from 0. Dtypes are kept; text and bytes become strings. Only the episodes
    that are being read are in memory.

  Raises:
    ValueError: if `episodes` is not such an iterable or function, if it can be
      iterated only once, if it is empty, or if the first episode is invalid.
    InvalidArgumentError: while iterating, if another episode differs from the
      first in its fields or dtypes.
  """
  checks.check_choice('last_observation', last_observation, _LAST_OBSERVATION)
  is_iterator = isinstance(episodes, Iterator)
  if (
      is_iterator
      or isinstance(episodes, (Mapping, str))
      or not (callable(episodes) or isinstance(episodes, Iterable))
  ):
    once = ', which can be iterated only once' if is_iterator else ''
    raise ValueError(
        'Episodes in Python must be an iterable of dicts, or a function that'
        f' returns one, but are a {type(episodes).__name__}{once}. Pass a list,'
        ' or the function that creates it.'
    )

  def read():
    items = episodes() if callable(episodes) else episodes
    for index, episode in enumerate(items):
      yield python_episodes.attempt(
          _from_dict, episode, index, last_observation
      )

  is_sized = isinstance(episodes, Sized)
  return python_episodes.to_dataset(
      read,
      len(episodes) if isinstance(episodes, Sized) else None,
      is_last_dropped=last_observation == _MISSING,
      # A function may run an environment to create an episode.
      **({} if is_sized else {'num_compared': 1}),
  )


def _from_dict(
    episode: Mapping[str, Any], index: int, last_observation: str
) -> python_episodes.PythonEpisode:
  """Returns the episode of a dict; see `from_episodes`."""
  names = list(episode) if isinstance(episode, Mapping) else []
  columns_lib.check_has(
      f'Episode {index}, a {type(episode).__name__},',
      (rlds.OBSERVATION, rlds.ACTION),
      names,
  )
  reserved = sorted(_COMPUTED & set(names))
  if reserved:
    raise ValueError(
        f'Episode {index} has {", ".join(reserved)}, which is computed from the'
        ' length of the episode and is_terminal. Remove it.'
    )
  steps = {
      name: stack(value)
      for name, value in episode.items()
      if name != rlds.IS_TERMINAL and value is not None
  }
  is_terminal = np.asarray(episode.get(rlds.IS_TERMINAL, False))
  if is_terminal.ndim or is_terminal not in (False, True):
    raise ValueError(
        'is_terminal must be one bool, whether the environment terminated, but'
        f' is {is_terminal} in episode {index}.'
    )
  num_observations, num_actions = (
      len(tf.nest.flatten(steps[name])[0])
      if tf.nest.flatten(steps[name])
      else 0
      for name in (rlds.OBSERVATION, rlds.ACTION)
  )
  if last_observation == _REQUIRED and num_observations == num_actions > 0:
    raise ValueError(
        f'Episode {index} has {num_actions} rows of observation, but'
        f' {num_actions} of actions: expected {num_actions + 1}, including the'
        ' final observation. If it was not recorded, as in behavior cloning,'
        " pass last_observation='missing'."
    )
  return python_episodes.make_episode(
      steps, index, is_terminal, has_last=last_observation == _REQUIRED
  )


def stack(rows: Any) -> Any:
  """Stacks rows: lists of dicts become dicts of arrays."""
  if isinstance(rows, Mapping):
    return {key: stack(value) for key, value in rows.items()}
  if isinstance(rows, tuple):
    return tuple(map(stack, rows))
  first = rows[0] if isinstance(rows, list) and rows else None
  if isinstance(first, (Mapping, tuple)):
    for row in rows:
      tree.assert_same_structure(first, row)
    if isinstance(first, tuple):
      return tuple(stack(list(parts)) for parts in zip(*rows))
    return {key: stack([row[key] for row in rows]) for key in first}
  # NumPy strings would drop trailing zeros.
  return np.asarray(rows, object if isinstance(first, bytes) else None)
