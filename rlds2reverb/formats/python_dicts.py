"""Makes RLDS episodes of dicts, as loops around environments collect them."""

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
_MADE_HERE = {rlds.IS_FIRST, rlds.IS_LAST, rlds.DISCOUNT}


def from_episodes(
    episodes: (
        Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]
    ),
    *,
    last_observation: str = 'required',
) -> tf.data.Dataset:
  """Makes RLDS episodes of dicts with `T` actions and `T + 1` observations.

  A loop around an environment collects such dicts, as most libraries do. The
  steps of an episode are, where `e` says whether it is terminal:

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
      returns one, such as a generator function. It is iterated once for the
      types of the first episode, and then whenever the data set is. An episode
      is a dict of

      - `observation`: `T + 1` rows, the last of which is what the last action
        leads to.
      - `action`: `T` rows.
      - `reward`: `T` rows; it is float32 zeros if there is none.
      - `is_terminal`: whether the environment ended there, a bool. By default
        the episode is truncated.
      - any other name, such as `infos`: `T + 1` rows, or `T`, after which there
        is a row of zeros. A value of None is left out.

      A field is an array of rows, a list of them, or a dict or tuple of such.
      The elements of a list may be dicts and tuples too, as an environment
      returns them. All episodes must have the fields of the first.
    last_observation: `"required"`, or `"missing"` if episodes have as many
      observations as actions, as data for behavior cloning often has. The last
      observation of a truncated episode is then its last step, whose action
      does not count unless `StepMapping.last_action` says so, and a terminal
      episode gets a step of zeros.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of `episodes`, their steps stacked `[T + 1, ...]`. `episode_id` counts
    them from 0. Fields keep their dtypes; text and bytes become strings. Only
    the episodes that are being read are in memory.

  Raises:
    ValueError: if `episodes` is neither, if it can be iterated only once, as a
      generator, if it has no episode, or if the first is not as said above.
    InvalidArgumentError: while iterating, if another episode is not like it.
  """
  checks.check_choice('last_observation', last_observation, _LAST_OBSERVATION)
  is_once = isinstance(episodes, Iterator)
  if (
      is_once
      or isinstance(episodes, (Mapping, str))
      or not (callable(episodes) or isinstance(episodes, Iterable))
  ):
    once = ', which can be iterated only once' if is_once else ''
    raise ValueError(
        'Episodes in Python must be an iterable of dicts, or a function that'
        f' returns one, but are a {type(episodes).__name__}{once}. Pass a list,'
        ' or the function that makes it.'
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
      is_last_left_out=last_observation == _MISSING,
      # A function may run an environment for each episode.
      **({} if is_sized else {'num_compared': 1}),
  )


def _from_dict(
    episode: Mapping[str, Any], index: int, last_observation: str
) -> python_episodes.PythonEpisode:
  """Returns the episode of a dict that was given to `from_episodes`."""
  names = list(episode) if isinstance(episode, Mapping) else []
  columns_lib.check_has(
      f'Episode {index}, a {type(episode).__name__},',
      (rlds.OBSERVATION, rlds.ACTION),
      names,
  )
  reserved = sorted(_MADE_HERE & set(names))
  if reserved:
    raise ValueError(
        f'Episode {index} has {", ".join(reserved)}, which is made from the'
        ' length of the episode and is_terminal. Leave it out.'
    )
  steps = {
      name: stack(value)
      for name, value in episode.items()
      if name != rlds.IS_TERMINAL and value is not None
  }
  is_terminal = np.asarray(episode.get(rlds.IS_TERMINAL, False))
  if is_terminal.ndim or is_terminal not in (False, True):
    raise ValueError(
        'is_terminal must be one bool, which says whether the environment ended'
        f' the episode, but of episode {index} it is {is_terminal}.'
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
        f' {num_actions} of actions: expected {num_actions + 1}, as the last'
        ' action leads to an observation, too. If that was not recorded, as in'
        " behavior cloning, pass last_observation='missing'."
    )
  return python_episodes.make_episode(
      steps, index, is_terminal, has_last=last_observation == _REQUIRED
  )


def stack(rows: Any) -> Any:
  """Returns rows as columns: lists of dicts become dicts of arrays."""
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
  # NumPy's own strings lose zeros at their ends.
  return np.asarray(rows, object if isinstance(first, bytes) else None)
