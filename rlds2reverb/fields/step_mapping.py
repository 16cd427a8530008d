"""Defines the fields of an RLDS step by the fields of a data set.

Few data sets have exactly the seven fields of an RLDS step, with their names
and shapes. A `StepMapping` defines the source of each field.
"""

import dataclasses
import functools
from typing import Any

import gin
import tensorflow as tf
import tree

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import sources as sources_lib
from rlds2reverb.fields.sources import FieldSource

POLICY_INFO = 'policy_info'
_OPTIONAL = (rlds.REWARD, rlds.DISCOUNT, *rlds.FLAGS)
# The attributes of a mapping that are not sources.
_SETTINGS = ('cast', 'last_reward', 'last_action')


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class StepMapping:
  """Defines the source of each field of an RLDS step.

      StepMapping(
          observation={'image': 'observation/image', 'robot': 'state'},
          action=['action/world_vector', 'action/open_gripper'],
          discount=None,
          cast={'float64': 'float32'})

  The source of a field is one of:

  - a string: the path of a field of the data set's step, with keys joined by
    `/`, as in errors. It may lead to a nest. A path that begins with `../`
    leads to a field of the episode, which is repeated for every step.
    `[start:stop]` after the path slices a vector, as in `action[:6]` and
    `state[-1:]`.
  - a tuple: the keys of a path. It is needed only if a key contains a `/`, so
    that two paths are equal when their keys are joined.
  - a dict of sources: a nest of fields.
  - a list of sources: one vector of all their numbers, in this order. A nest in
    the list contributes all its leaves, in the order of its keys. With several
    dtypes, the vector has the widest float.
  - a number or bool: a constant for every step.
  - a function: it is called in graph mode with the entire episode, whose
    `steps` are stacked, and returns the field for all steps, `[T, ...]`.
  - None: the data does not have this field, or has wrong values. The field gets
    these values:

        step             |  0     1    ...  T-1    T   |
        is_first         |  1     0          0     0   |  by position
        is_last          |  0     0          0     1   |  by position
        is_terminal      |  0     0          0     0   |  never
        reward           |  0     0          0     0   |  zeros, float32
        discount         |  1     1          1     1   |  not terminal
                         |  1     1          0     0   |  is_terminal at T

  Step fields that are not part of any source are dropped.

  In RLDS, the action and the reward of an episode's last step are meaningless.
  `last_reward` and `last_action` are for data in which they have a meaning:

      step                        |  0     1     2     3 (last) |
      reward, "step"              |  0     0     0     1        |
      reward, "transition"        |  0     0     1     0        |
      has_action, of last_action  |  1     1     1     1        |

  Attributes:
    observation: the source of the observation.
    action: the source of the action.
    reward: the source of the reward. A reward of shape `(1,)` becomes a scalar.
    discount: the source of the discount, one number, cast to float32.
    is_first: the source of the flag, one number or bool, cast to bool.
    is_last: the source of the flag, as `is_first`.
    is_terminal: the source of the flag, as `is_first`.
    policy_info: the source of an additional field `policy_info`, or None for no
      such field. Pass `step_policy_info` to a conversion as `policy_info_fn` to
      add it to the trajectories.
    cast: a dict from names of dtypes to the names of the dtypes to cast to, in
      all fields.
    last_reward: where a reward of the last step belongs. `"step"` keeps it in
      the last step, where it is part of no transition: a conversion counts it,
      and warns. `"transition"` adds it to the reward of the transition into the
      last step, for data that rewards success with the last step.
    last_action: whether the action of the last step is meaningful. If so, the
      steps have an additional field `has_action`, which statistics, transforms
      and windows use. Conversions to trajectories ignore it, because agents do
      not act in the last step of an episode.
  """

  observation: FieldSource = rlds.OBSERVATION
  action: FieldSource = rlds.ACTION
  reward: FieldSource = rlds.REWARD
  discount: FieldSource = rlds.DISCOUNT
  is_first: FieldSource = rlds.IS_FIRST
  is_last: FieldSource = rlds.IS_LAST
  is_terminal: FieldSource = rlds.IS_TERMINAL
  policy_info: FieldSource = None
  cast: dict[str, str] = dataclasses.field(default_factory=dict)
  last_reward: str = batch_lib.STEP
  last_action: bool = False

  def __post_init__(self):
    checks.check_choice(
        'last_reward', self.last_reward, batch_lib.REWARD_LOCATIONS
    )
    for dtype in (*self.cast, *self.cast.values()):
      try:
        tf.as_dtype(dtype)
      except TypeError as e:
        raise ValueError(
            'cast must map names of dtypes, such as float64, but has'
            f' {dtype!r}.'
        ) from e

  @pipelines.as_library_code
  def __call__(self, episode: dict[str, Any]) -> dict[str, Any]:
    """Maps the steps of one episode, eagerly or in `dataset.map`.

    Args:
      episode: a dict whose `steps` are stacked or a nested data set.

    Returns:
      The episode with mapped `steps`, stacked `[T, ...]`.

    Raises:
      ValueError: if sources do not fit the episode, all of which the error
        lists; or if the source of the reward, the discount or a flag does not
        have numbers.
      InvalidArgumentError: if stacked fields that are read differ in length, or
        a function returns another length.
    """
    episode = self.stack_used(episode)
    steps, _ = self._map(episode)
    return {**episode, rlds.STEPS: steps}

  def stack_used(self, episode: dict[str, Any]) -> dict[str, Any]:
    """Stacks nested steps, and drops unused fields that cannot be stacked."""
    resolver, _ = self._resolve(episode)
    steps = episode[rlds.STEPS]
    if not isinstance(steps, tf.data.Dataset):
      return episode
    used = resolver.used
    dropped = {
        # A field of which no leaf is used is dropped entirely.
        keys if any(path[0] == keys[0] for path in used) else keys[:1]: None
        for keys, spec in tree.flatten_with_path(steps.element_spec)
        if not steps_lib.has_static_shape(spec)
        and not sources_lib.is_below(keys, used)
    }
    if dropped:
      steps = steps.map(
          functools.partial(functools.reduce, paths_lib.remove, dropped)
      )
    return {**episode, rlds.STEPS: steps_lib.stack_steps(steps)}

  def map_batch(self, batch: batch_lib.EpisodeBatch) -> batch_lib.EpisodeBatch:
    """Maps the steps of all episodes of a batch.

    Raises:
      ValueError: as `__call__` does.
      InvalidArgumentError: as `__call__` does.
    """
    episodes = {**batch.fields, rlds.STEPS: batch.steps}
    steps, row_splits = self._map(episodes, batch.row_splits)
    return batch._replace(steps=steps, row_splits=row_splits)

  def supports_batches(self, episode_spec: Any) -> bool:
    """Returns whether `map_batch` can be used: no source is a function.

    Raises:
      ValueError: if a path does not exist in `episode_spec`; see `map_fields`.
    """
    resolver, _ = self._resolve(episode_spec)
    return not resolver.has_functions

  def _map(self, episode, row_splits=None):
    """Returns the mapped steps of episodes, and their row splits."""
    resolver, readers = self._resolve(episode)
    rows = sources_lib.make_rows(episode, resolver.used, row_splits)
    mapped = {}
    for field, read in readers.items():
      value = read(rows)
      if field in (*rlds.FLAGS, rlds.DISCOUNT):
        dtype = tf.bool if field in rlds.FLAGS else tf.float32
        value = steps_lib.to_column(field, value, dtype)
      elif field == rlds.REWARD:
        steps_lib.check_numeric(field, value)
        value = tf.nest.map_structure(_squeeze, value)
        if self.last_reward == batch_lib.TRANSITION:
          value = batch_lib.move_reward(value, rows.is_first, rows.is_last)
      mapped[field] = value
    if self.last_action:
      mapped[batch_lib.HAS_ACTION] = tf.ones_like(rows.is_last)
    return _fill_missing(mapped, rows.is_first, rows.is_last), rows.row_splits

  def _resolve(self, episode):
    """Returns the resolver of the sources, and the reader of each field.

    Raises:
      ValueError: if the mapping does not fit the episode, or its spec.
    """
    resolver, readers = sources_lib.SourceResolver(episode), {}
    problems = [
        f'{name}: It needs a source, and cannot be None.'
        for name in (rlds.OBSERVATION, rlds.ACTION)
        if getattr(self, name) is None
    ]
    for name, source in vars(self).items():
      if name in _SETTINGS or source is None:
        continue
      num_problems = len(resolver.problems)
      readers[name] = resolver.make_reader(source, name, self._cast)
      hint = ' With None it gets default values.' if name in _OPTIONAL else ''
      problems += [
          f'{name}: {problem}{hint}'
          for problem in resolver.problems[num_problems:]
      ]
    if problems:
      raise ValueError(
          'The mapping does not fit the data set.\n  '
          + '\n  '.join(problems)
          + '\nThe data set has:\n  '
          + '\n  '.join(sources_lib.describe(episode))
      )
    return resolver, readers

  def _cast(self, leaf):
    return tf.cast(leaf, self.cast.get(leaf.dtype.name, leaf.dtype))


def step_policy_info(current: dict[str, Any], following: dict[str, Any]) -> Any:
  """Returns a step's `policy_info`; a `policy_info_fn` for conversions.

  Args:
    current: a step that was mapped with a `policy_info`.
    following: the next step, which is not used.
  """
  del following
  return current[POLICY_INFO]


def _squeeze(leaf):
  return leaf[:, 0] if leaf.shape.rank == 2 and leaf.shape[1] == 1 else leaf


def _fill_missing(mapped, is_first, is_last):
  """Adds fields without a source to mapped steps.

  Args:
    mapped: the fields with a source.
    is_first: bool `[T]`: the first step of each episode, by its position.
    is_last: bool `[T]`: the last step of each episode, by its position.
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
