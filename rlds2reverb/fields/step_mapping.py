"""From a data set's own step fields to those of an RLDS step.

Hardly a data set has the seven fields of an RLDS step under their names, in
one shape, and nothing else. A `StepMapping` says, field by field, what they are
made of.
"""

import dataclasses
import functools
from typing import Any, Dict, Optional

import gin
import rlds
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import field_sources
from rlds2reverb.fields.field_sources import Source

POLICY_INFO = 'policy_info'
_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
_CAN_BE_FILLED = (rlds.REWARD, rlds.DISCOUNT, *_FLAGS)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class StepMapping:
  """What the fields of an RLDS step are made of.

      StepMapping(
          observation={'image': 'observation/image', 'robot': 'state'},
          action=['action/world_vector', 'action/open_gripper'],
          discount=None,
          cast={'float64': 'float32'})

  A field's source is

  - a string: the path of a field of the data set's step, its keys joined by
    `/`, as error messages write it. It may name a whole nest. A path that
    begins with `../` is that of a field of the episode, which every step gets.
  - a tuple: the keys of the path, one by one. Needed only where two paths read
    the same when joined, as a key itself may contain a `/`.
  - a dict: a nest of sources.
  - a list of sources: their numbers, in this order, as one vector. A nest in
    the list counts as all its leaves, dicts in the order of their keys. Of
    several dtypes the widest float is taken.
  - a number or bool: itself, in every step.
  - a function: called in graph mode with the whole episode, its `steps`
    stacked; returns the field for all steps, `[T, ...]`.
  - None: the data has no such field, or one that is wrong. It is filled in:

        step             |  0     1    ...  T-1    T   |
        is_first         |  1     0          0     0   |  by position
        is_last          |  0     0          0     1   |  by position
        is_terminal      |  0     0          0     0   |  never
        reward           |  0     0          0     0   |  zeros, float32
        discount         |  1     1          1     1   |  not terminal
                         |  1     1          0     0   |  is_terminal at T

  Step fields that no source names are dropped.

  Attributes:
    observation: a source.
    action: a source.
    reward: a source. A reward of shape `(1,)` becomes one number.
    discount: a source of one number, which becomes float32.
    is_first: a source of one number, which becomes bool.
    is_last: as `is_first`.
    is_terminal: as `is_first`.
    policy_info: a source; None for no such field. Pushed where
      `step_policy_info` is the conversion's `policy_info_fn`.
    cast: from names of dtypes to those that they become, in every field.
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

  def __post_init__(self):
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
      episode: a dict with `steps`, stacked or a nested data set.

    Returns:
      The episode with its `steps` mapped, stacked `[T, ...]`.

    Raises:
      ValueError: if a source does not fit, all of which it lists; or if what is
        read for the reward, the discount or a flag is not of numbers.
      InvalidArgumentError: if the stacked fields that are used differ in
        length, or a function returns another length.
    """
    sources = self._resolve(episode)
    steps = _stack(episode[rlds.STEPS], sources)
    steps, length = field_sources.measured(steps, sources)
    stacked = {**episode, rlds.STEPS: steps}
    mapped = {}
    for field, value in sources.items():
      if value is None:
        continue
      value = field_sources.read(value, stacked, length, self._cast, field)
      if field in _FLAGS:
        value = steps_lib.one_a_step(field, value, tf.bool)
      elif field == rlds.DISCOUNT:
        value = steps_lib.one_a_step(field, value, tf.float32)
      elif field == rlds.REWARD:
        steps_lib.check_numeric(field, value)
        value = tf.nest.map_structure(_squeeze, value)
      mapped[field] = value
    return {**episode, rlds.STEPS: _fill_in(mapped, length)}

  def check(self, episode_spec: Any) -> None:
    """Checks that every path is one of `episode_spec`; see `map_fields`."""
    self._resolve(episode_spec)

  def _resolve(self, episode) -> Dict[str, Any]:
    """Returns the sources by field, with a `Field` for each path in them."""
    nest = field_sources.nest_of(episode)
    sources = {}
    problems = []
    for field in dataclasses.fields(self):
      if field.name == 'cast':
        continue
      source = getattr(self, field.name)
      if source is None and field.name in (rlds.OBSERVATION, rlds.ACTION):
        problems.append(f'{field.name}: It cannot be filled in.')
        continue
      found = []
      sources[field.name] = field_sources.resolve(source, nest, found)
      hint = ' None fills it in.' if field.name in _CAN_BE_FILLED else ''
      problems += [f'{field.name}: {problem}{hint}' for problem in found]
    if problems:
      raise ValueError(
          'The mapping does not fit the data set.\n  '
          + '\n  '.join(problems)
          + '\nThe data set has:\n  '
          + '\n  '.join(field_sources.describe(episode))
      )
    return sources

  def _cast(self, leaf):
    return tf.cast(leaf, self.cast.get(leaf.dtype.name, leaf.dtype))


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TerminalOnSuccess:
  """A source for `is_terminal`: an episode that ends in success is terminal.

      success          |  0  0  0  1 |  0  0  1  0 |  0  1  0  0 |
      is_terminal      |  0  0  0  1 |  0  0  0  1 |  0  0  0  0 |

  Some recorders set a success with the transition into the last step, some with
  that step; both count. Success earlier than that does not end the episode.

  Attributes:
    success: a source of one number or bool.
  """

  success: Source

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns bool `[T]` for an episode with stacked steps."""
    problems = []
    nest = field_sources.nest_of(episode)
    source = field_sources.resolve(self.success, nest, problems)
    if problems:
      raise ValueError('TerminalOnSuccess: ' + ' '.join(problems))
    steps, length = field_sources.measured(episode[rlds.STEPS], source)
    success = field_sources.read(
        source, {**episode, rlds.STEPS: steps}, length, tf.identity, 'success'
    )
    success = steps_lib.one_a_step('success', success, tf.bool)
    at_end = tf.reduce_any(success[-2:])
    return _is_last(length) & at_end


def map_fields(
    rlds_data: tf.data.Dataset, mapping: Optional[StepMapping] = None
) -> tf.data.Dataset:
  """Makes RLDS steps of the steps of a data set that has others.

  Args:
    rlds_data: a data set of episodes: dicts with `steps`, a nested
      `tf.data.Dataset` of steps or steps stacked `[T, ...]`, of any fields.
    mapping: what the fields of a step are made of. By default what it is called
      with, or what gin binds to it.

  Returns:
    A data set of episodes whose `steps` are stacked and have the seven fields
    of RLDS. The other fields of an episode stay.

  Raises:
    ValueError: if the mapping does not fit the spec of `rlds_data`. Lists every
      path that is not there with the nearest names, and all paths that are.
  """
  episode = rlds_data.element_spec
  if not isinstance(episode, dict) or rlds.STEPS not in episode:
    raise ValueError(
        'The elements of an RLDS data set must be dicts with'
        f' {rlds.STEPS!r}, but their spec is {episode}.'
    )
  mapping = StepMapping() if mapping is None else mapping
  mapping.check(episode)
  mapped = rlds_data.map(mapping, num_parallel_calls=tf.data.AUTOTUNE)
  steps_lib.steps_spec(mapped)
  return mapped


def step_policy_info(
    current: Dict[str, Any], following: Dict[str, Any]
) -> Any:
  """The `policy_info_fn` for steps mapped with a `policy_info`."""
  del following
  return current[POLICY_INFO]


def _squeeze(leaf):
  return leaf[:, 0] if leaf.shape.rank == 2 and leaf.shape[1] == 1 else leaf


def _stack(steps, sources):
  """Stacks steps, without unused fields that cannot be stacked."""
  if not isinstance(steps, tf.data.Dataset):
    return steps
  used = field_sources.used(sources)

  def is_used(keys):
    return any(keys[: len(path)] == path for path in used)

  dropped = {
      # Whole, where nothing of it is used.
      keys if any(path[0] == keys[0] for path in used) else keys[:1]: None
      for keys, spec in tree.flatten_with_path(steps.element_spec)
      if not steps_lib.has_one_shape(spec) and not is_used(keys)
  }
  if dropped:
    steps = steps.map(
        lambda step: functools.reduce(paths_lib.remove, dropped, step)
    )
  return steps_lib.stack_steps(steps)


def _is_last(length) -> tf.Tensor:
  return tf.equal(tf.range(length), length - 1)


def _fill_in(mapped, length):
  """Adds to mapped steps the fields that have no source."""
  filled = dict(mapped)
  filled.setdefault(rlds.IS_FIRST, tf.equal(tf.range(length), 0))
  filled.setdefault(rlds.IS_LAST, _is_last(length))
  filled.setdefault(rlds.IS_TERMINAL, tf.zeros([length], tf.bool))
  filled.setdefault(rlds.REWARD, tf.zeros([length]))
  if rlds.DISCOUNT not in filled:
    is_end = filled[rlds.IS_LAST] & filled[rlds.IS_TERMINAL]
    ends_next = tf.concat([is_end[1:], tf.zeros_like(is_end[:1])], 0)
    filled[rlds.DISCOUNT] = tf.where(is_end | ends_next, 0.0, 1.0)
  return filled
