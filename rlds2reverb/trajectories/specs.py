"""Specs of trajectories, `policy_info` functions, and table signatures."""

import collections.abc
from collections.abc import Callable
from typing import Any

from absl import logging
import tensorflow as tf
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# Takes the current and the next RLDS step, both dicts without a batch
# dimension. Returns the nest that becomes the policy_info of the current step.
PolicyInfoFn = Callable[[dict[str, Any], dict[str, Any]], Any]


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None
) -> trajectory.Trajectory:
  """Creates the data spec that a Reverb server and a replay buffer need.

  The same function of `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents
  0.19.0) has no `policy_info_fn`.

  Args:
    rlds_data: an RLDS data set: a `tf.data.Dataset` of episodes whose `steps`
      are a nested `tf.data.Dataset` of steps, or steps stacked `[T, ...]`.
    policy_info_fn: the function to be passed to `push_rlds_to_reverb`. The
      spec then includes its `policy_info`.

  Returns:
    A `Trajectory` of the specs of one frame: the step types are int32, the
    discount is float32 in [0, 1], and observation, action and reward are as in
    the data.

  Raises:
    TypeError: if `policy_info_fn` is not callable.
    ValueError: if there are no RLDS steps in `rlds_data`, if the steps lack one
      of their seven features, or if the observation has no tensor.
  """
  return frame_spec(rlds_data.element_spec, policy_info_fn)


def frame_spec(
    episode: Any, policy_info_fn: PolicyInfoFn | None
) -> trajectory.Trajectory:
  """Returns the spec of `create_trajectory_data_spec`.

  Args:
    episode: the element spec of the RLDS data set.
    policy_info_fn: see `create_trajectory_data_spec`.
  """
  check_policy_info_fn(policy_info_fn)
  step = steps_lib.get_steps_spec(episode).step
  if not tf.nest.flatten(step[rlds.OBSERVATION]):
    raise ValueError(
        'A time step must have an observation, but the step field observation'
        f' has no tensor: {step[rlds.OBSERVATION]}. Add one with map_fields.'
    )
  time_step_spec = ts.time_step_spec(step[rlds.OBSERVATION], step[rlds.REWARD])
  info_spec = ()
  if policy_info_fn is not None:
    info_spec = PolicyInfo(policy_info_fn, step).spec
  action_spec = policy_step.PolicyStep(step[rlds.ACTION], info=info_spec)
  return trajectory.from_transition(time_step_spec, action_spec, time_step_spec)


def check_policy_info_fn(value: Any) -> None:
  """Raises a TypeError if a `policy_info_fn` is neither callable nor None."""
  if value is not None and not callable(value):
    raise TypeError(
        'policy_info_fn must be a function of a step and the step that follows'
        f' it, but is {value!r}. Rules of a conversion are passed as options='
        'rlds2reverb.ConversionOptions(rules=rlds2reverb.ConversionRules(...)).'
    )


class PolicyInfo:
  """A `policy_info_fn` vectorized over blocks.

  The function is traced once, to find the fields that it reads and the spec of
  its result.

  Attributes:
    fields: the names of the step fields that the function reads.
    spec: the spec of its result, a nest.
  """

  def __init__(self, policy_info_fn: PolicyInfoFn, step_spec: dict[str, Any]):
    self.fields = set()

    @pipelines.as_library_code
    def call(current, following):
      info = pipelines.as_user_code(policy_info_fn)(current, following)
      return tree.traverse(_to_tensors, info)

    @pipelines.as_library_code
    def call_and_record(*steps):
      return call(*(_RecordingStep(step, self.fields) for step in steps))

    outputs = (
        tf.function(call_and_record)
        .get_concrete_function(step_spec, step_spec)
        .structured_outputs
    )
    self.spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), outputs
    )
    self._fn = tf.function(call)

  def __call__(self, rows: dict[str, Any]) -> Any:
    """Calls the function on each step of a block and the step that follows.

    Args:
      rows: the steps of a block and the next step, `[B + 1, ...]`.

    Returns:
      The results of the function for each step, `[B, ...]`.
    """
    # One more row is passed than needed: in `tf.vectorized_map` with a single
    # row, a `tf.squeeze` in the function would remove the row's own dimension.
    following = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf[1:], leaf[-1:]], 0), rows
    )
    info = tf.vectorized_map(lambda pair: self._fn(*pair), (rows, following))
    return tf.nest.map_structure(
        lambda leaf, spec: tf.ensure_shape(leaf[:-1], [None] + spec.shape),
        info,
        self.spec,
    )


def _to_tensors(part: Any) -> Any:
  """Converts a leaf or a list to a tensor, as tf.data does; else None."""
  if not isinstance(part, list):
    # `tree` descends into nodes for which this returns None.
    return None if tree.is_nested(part) else tf.convert_to_tensor(part)
  try:
    return tf.convert_to_tensor(part)
  except (TypeError, ValueError) as e:
    raise ValueError(
        'policy_info_fn returned a list, which tf.data converts to one tensor,'
        f' but its elements differ: {part}. Return a tuple.'
    ) from e


# `Mapping` comes first, so that `get`, `items` and `values` are recorded, too;
# `dict`, so that tf.nest accepts the step.
class _RecordingStep(collections.abc.Mapping, dict):  # type: ignore[metaclass,misc]
  """A step that records which of its fields are read."""

  def __init__(self, step=(), fields=None):
    dict.__init__(self, step)
    self._fields = set() if fields is None else fields

  def __getitem__(self, key):
    value = dict.__getitem__(self, key)
    self._fields.add(key)
    return value

  def __iter__(self):
    self._fields.update(dict.keys(self))
    return dict.__iter__(self)

  __len__ = dict.__len__


class SpecMismatchError(ValueError):
  """Raised if the signature of a table does not match the data.

  `str(error)` equals the message of TF-Agents 0.19.0.

  Attributes:
    differences: one sentence for each difference, with the path of the field.
  """

  def __init__(self, differences: list[str]):
    super().__init__(
        'Replay buffer table signature spec should match RLDS data spec.'
    )
    self.differences = differences


def check_signature(signature: Any, data_spec: trajectory.Trajectory) -> None:
  """Checks that frames of `data_spec` can be inserted into a table.

  Structures, dtypes and shapes must be compatible; names and bounds may differ.

  Args:
    signature: the signature of the table, whose leaves have an outer dimension
      of time. None, for a table without a signature, matches all data.
    data_spec: the spec of one frame.

  Raises:
    SpecMismatchError: if they do not match. The error lists each difference by
      path.
  """
  if signature is None:
    return
  differences = _differences(signature, data_spec)
  if differences:
    error = SpecMismatchError(differences)
    logging.error('%s\n%s', error, '\n'.join(differences))
    raise error


def _differences(signature, data_spec) -> list[str]:
  # Fields are compared by tuples of keys, as a key may itself contain a slash.
  expected = dict(tree.flatten_with_path(signature))
  actual = dict(tree.flatten_with_path(data_spec))
  differences = []
  for path in sorted(expected.keys() | actual.keys(), key=paths.name_of):
    table, data = expected.get(path), actual.get(path)
    if data is None:
      difference = f'expects {_describe(table)}, the data has no such field'
    elif table is None:
      difference = (
          f'has no such field, the data has {_describe(_with_time(data))}'
      )
    elif table.dtype != data.dtype or not table.shape.is_compatible_with(
        _with_time(data).shape
    ):
      difference = (
          f'expects {_describe(table)}, the data has'
          f' {_describe(_with_time(data))}'
      )
    else:
      continue
    differences.append(f'{paths.name_of(path)}: the table {difference}')
  return differences


def _with_time(spec):
  return tf.TensorSpec([None] + spec.shape, spec.dtype)


def _describe(spec):
  return f'{spec.dtype.name} {spec.shape}'
