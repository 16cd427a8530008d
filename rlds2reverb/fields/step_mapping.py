"""Makes the fields of an RLDS step from a data set's own step fields.

Few data sets have exactly the seven fields of an RLDS step, under their names
and with their shapes. A `StepMapping` says for each field what it is made from.
"""

import dataclasses
import functools
from typing import Any, Dict

import gin
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import sources as sources_lib
from rlds2reverb.fields.sources import Source

POLICY_INFO = 'policy_info'
_CAN_BE_FILLED = (rlds.REWARD, rlds.DISCOUNT, *rlds.FLAGS)
# The fields of a mapping that are not sources.
_SETTINGS = ('cast', 'last_reward', 'last_action')


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class StepMapping:
  """Says what each field of an RLDS step is made from.

      StepMapping(
          observation={'image': 'observation/image', 'robot': 'state'},
          action=['action/world_vector', 'action/open_gripper'],
          discount=None,
          cast={'float64': 'float32'})

  The source of a field is one of:

  - a string: the path of a field of the data set's step, with its keys joined
    by `/`, as in error messages. It may name a whole nest. A path that begins
    with `../` names a field of the episode, which is repeated for every step.
    `[begin:end]` behind the path takes some numbers of a vector, as in
    `action[:6]` and `state[-1:]`.
  - a tuple: the keys of a path, one by one. It is needed only where a key
    contains a `/`, so that two paths look the same when they are joined.
  - a dict of sources: a nest of fields.
  - a list of sources: one vector of all their numbers, in this order. A nest in
    the list stands for all its leaves; the leaves of a dict are in the order of
    its keys. If there are several dtypes, the vector has the widest float.
  - a number or bool: a constant, which is the same in every step.
  - a function: it is called in graph mode with the whole episode, whose `steps`
    are stacked, and returns the field for all steps, `[T, ...]`.
  - None: the data does not have this field, or has a wrong one. The field is
    filled in:

        step             |  0     1    ...  T-1    T   |
        is_first         |  1     0          0     0   |  by position
        is_last          |  0     0          0     1   |  by position
        is_terminal      |  0     0          0     0   |  never
        reward           |  0     0          0     0   |  zeros, float32
        discount         |  1     1          1     1   |  not terminal
                         |  1     1          0     0   |  is_terminal at T

  Step fields that no source names are dropped.

  In RLDS the action and the reward of an episode's last step mean nothing.
  `last_reward` and `last_action` are for data in which they mean something:

      step                        |  0     1     2     3 (last) |
      reward, "step"              |  0     0     0     1        |
      reward, "transition"        |  0     0     1     0        |
      has_action, of last_action  |  1     1     1     1        |

  Attributes:
    observation: the source of the observation.
    action: the source of the action.
    reward: the source of the reward. A reward of shape `(1,)` becomes one
      number.
    discount: the source of the discount, one number, which becomes float32.
    is_first: the source of the flag, one number or bool, which becomes bool.
    is_last: likewise.
    is_terminal: likewise.
    policy_info: the source of a further field `policy_info`, or None for no
      such field. Pass `step_policy_info` to a conversion as `policy_info_fn` to
      put it into the trajectories.
    cast: a dict from names of dtypes to the names of the dtypes that they
      become, in every field.
    last_reward: where a reward of the last step belongs. `"step"` leaves it
      there, where it is in no transition: a conversion counts it, and warns.
      `"transition"` adds it to that of the transition into the last step. It is
      for data that gives the reward of success with the last step.
    last_action: whether the action of the last step has a meaning. Then the
      steps have a further field `has_action`, which statistics, transforms and
      windows follow. A conversion to trajectories does not, because agents do
      not act in the last step of an episode.
  """

  observation: Source = rlds.OBSERVATION
  action: Source = rlds.ACTION
  reward: Source = rlds.REWARD
  discount: Source = rlds.DISCOUNT
  is_first: Source = rlds.IS_FIRST
  is_last: Source = rlds.IS_LAST
  is_terminal: Source = rlds.IS_TERMINAL
  policy_info: Source = None
  cast: Dict[str, str] = dataclasses.field(default_factory=dict)
  last_reward: str = last_steps.STEP
  last_action: bool = False

  def __post_init__(self):
    checks.check_choice('last_reward', self.last_reward, last_steps.PLACES)
    for dtype in (*self.cast, *self.cast.values()):
      try:
        tf.as_dtype(dtype)
      except TypeError as e:
        raise ValueError(
            'cast must map names of dtypes, such as float64, but has'
            f' {dtype!r}.'
        ) from e

  def __call__(self, episode: Dict[str, Any]) -> Dict[str, Any]:
    """Maps the steps of one episode; for `dataset.map`, and eagerly.

    Args:
      episode: a dict whose `steps` are stacked or a nested data set.

    Returns:
      The episode with mapped `steps`, which are stacked `[T, ...]`.

    Raises:
      ValueError: if sources do not fit the episode, all of which the message
        lists; or if the source of the reward, the discount or a flag does not
        have numbers.
      InvalidArgumentError: if stacked fields that are used differ in length, or
        if a function returns another length.
    """
    episode = self.stack_used(episode)
    steps, _ = self._map(episode)
    return {**episode, rlds.STEPS: steps}

  def stack_used(self, episode: Dict[str, Any]) -> Dict[str, Any]:
    """Stacks the steps of an episode, and drops what cannot be stacked."""
    finder, _ = self._find(episode)
    return {**episode, rlds.STEPS: _stack(episode[rlds.STEPS], finder.used)}

  def map_batch(
      self, batch: episode_batches.EpisodeBatch
  ) -> episode_batches.EpisodeBatch:
    """Maps all episodes of a batch, as a call maps one.

    Raises:
      ValueError: as `__call__` does.
      InvalidArgumentError: as `__call__` does.
    """
    episodes = {**batch.fields, rlds.STEPS: batch.steps}
    steps, row_splits = self._map(episodes, batch.row_splits)
    return batch._replace(steps=steps, row_splits=row_splits)

  def takes_batches(self, episode_spec: Any) -> bool:
    """Returns whether `map_batch` can be used: no source must be a function.

    Raises:
      ValueError: if a path is none of `episode_spec`; see `map_fields`.
    """
    finder, _ = self._find(episode_spec)
    return not finder.calls_functions

  def _map(self, episode, row_splits=None):
    """Returns the mapped steps of episodes, and their row splits."""
    finder, readers = self._find(episode)
    rows = sources_lib.rows_of(episode, finder.used, row_splits)
    mapped = {}
    for field, read in readers.items():
      value = read(rows)
      if field in (*rlds.FLAGS, rlds.DISCOUNT):
        dtype = tf.bool if field in rlds.FLAGS else tf.float32
        value = steps_lib.one_a_step(field, value, dtype)
      elif field == rlds.REWARD:
        steps_lib.check_numeric(field, value)
        value = tf.nest.map_structure(_squeeze, value)
        if self.last_reward == last_steps.TRANSITION:
          value = last_steps.move_reward(value, rows.first, rows.last)
      mapped[field] = value
    if self.last_action:
      mapped[last_steps.HAS_ACTION] = tf.ones_like(rows.last)
    return _fill_in(mapped, rows.first, rows.last), rows.row_splits

  def _find(self, episode):
    """Returns the finder of the sources, and the reader of each field.

    Raises:
      ValueError: if the mapping does not fit the episode, or its spec.
    """
    finder, readers = sources_lib.Finder(episode), {}
    problems = [
        f'{name}: It cannot be filled in.'
        for name in (rlds.OBSERVATION, rlds.ACTION)
        if getattr(self, name) is None
    ]
    for name, source in vars(self).items():
      if name in _SETTINGS or source is None:
        continue
      known = len(finder.problems)
      readers[name] = finder.reader_of(source, name, self._cast)
      hint = ' None fills it in.' if name in _CAN_BE_FILLED else ''
      found = finder.problems[known:]
      problems += [f'{name}: {problem}{hint}' for problem in found]
    if problems:
      raise ValueError(
          'The mapping does not fit the data set.\n  '
          + '\n  '.join(problems)
          + '\nThe data set has:\n  '
          + '\n  '.join(sources_lib.describe(episode))
      )
    return finder, readers

  def _cast(self, leaf):
    return tf.cast(leaf, self.cast.get(leaf.dtype.name, leaf.dtype))


def step_policy_info(current: Dict[str, Any], following: Dict[str, Any]) -> Any:
  """Returns a step's `policy_info`; a `policy_info_fn` for conversions.

  Args:
    current: a step that was mapped with a `policy_info`.
    following: the step after it, which is not used.
  """
  del following
  return current[POLICY_INFO]


def _squeeze(leaf):
  return leaf[:, 0] if leaf.shape.rank == 2 and leaf.shape[1] == 1 else leaf


def _stack(steps, used):
  """Stacks steps, and drops unused fields that cannot be stacked."""
  if not isinstance(steps, tf.data.Dataset):
    return steps
  dropped = {
      # A field of which no part is used is dropped whole.
      keys if any(path[0] == keys[0] for path in used) else keys[:1]: None
      for keys, spec in tree.flatten_with_path(steps.element_spec)
      if not steps_lib.has_one_shape(spec)
      and not sources_lib.is_below(keys, used)
  }
  if dropped:
    drop = functools.partial(functools.reduce, paths_lib.remove, dropped)
    steps = steps.map(drop)
  return stacked_steps.stack_steps(steps)


def _fill_in(mapped, is_first, is_last):
  """Adds the fields that have no source to mapped steps.

  Args:
    mapped: the other fields.
    is_first: bool `[T]`: which steps are the first ones by their position.
    is_last: bool `[T]`: which steps are the last ones by their position.
  """
  filled = {
      **mapped,  # This keeps their order.
      rlds.IS_FIRST: is_first,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: tf.zeros_like(is_first),
      rlds.REWARD: tf.zeros(tf.shape(is_first)),
      **mapped,
  }
  if rlds.DISCOUNT not in filled:
    is_end = filled[rlds.IS_LAST] & filled[rlds.IS_TERMINAL]
    ends_next = tf.concat([is_end[1:], tf.zeros_like(is_end[:1])], 0)
    filled[rlds.DISCOUNT] = tf.where(is_end | (ends_next & ~is_last), 0.0, 1.0)
  return filled
