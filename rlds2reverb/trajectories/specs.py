"""Specs of the trajectories that an RLDS data set converts to."""

from typing import Any, Callable, Dict, List, Optional

from absl import logging
import rlds
import tensorflow as tf
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import steps as steps_lib

# Called with the current and the next RLDS step, both dicts without a batch
# dimension; returns the nest that becomes the current step's policy_info.
PolicyInfoFn = Callable[[Dict[str, Any], Dict[str, Any]], Any]


def create_trajectory_data_spec(
    rlds_data: tf.data.Dataset, policy_info_fn: Optional[PolicyInfoFn] = None
) -> trajectory.Trajectory:
  """Creates the data spec to initialise a Reverb server and replay buffer with.

  After `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents 0.19.0), which has
  no `policy_info_fn` here.

  Args:
    rlds_data: an RLDS data set: a `tf.data.Dataset` of episodes whose `steps`
      are a nested `tf.data.Dataset` of steps, or steps stacked `[T, ...]`.
    policy_info_fn: the function that `push_rlds_to_reverb` will be given, so
      that the spec has its `policy_info`.

  Returns:
    A `Trajectory` of the specs of one frame: step types int32, discount float32
    in [0, 1], observation, action and reward as in the data.

  Raises:
    ValueError: if there are no RLDS steps in `rlds_data`, if they lack one of
      the seven features of a step, or if there is nothing in the observation.
  """
  step = steps_lib.steps_spec(rlds_data).step
  if not tf.nest.flatten(step[rlds.OBSERVATION]):
    raise ValueError(
        'A time step must have an observation, but step field observation has'
        f' no tensor in it: {step[rlds.OBSERVATION]}. Put one there with'
        ' map_fields.'
    )
  time_step_spec = ts.time_step_spec(step[rlds.OBSERVATION], step[rlds.REWARD])
  info_spec = PolicyInfo(policy_info_fn, step).spec if policy_info_fn else ()
  action_spec = policy_step.PolicyStep(step[rlds.ACTION], info=info_spec)
  return trajectory.from_transition(time_step_spec, action_spec, time_step_spec)


class PolicyInfo:
  """A `policy_info_fn`, traced once: what it reads and what it returns.

  Attributes:
    fields: the names of the step fields that it reads.
    spec: the nest of `tf.TensorSpec`s that it returns.
  """

  def __init__(self, policy_info_fn: PolicyInfoFn, step_spec: Dict[str, Any]):
    self.fields = set()

    def recorded(current, following):
      return tf.nest.map_structure(
          tf.convert_to_tensor,
          policy_info_fn(
              _ReadFields(current, self.fields),
              _ReadFields(following, self.fields),
          ),
      )

    outputs = (
        tf.function(recorded)
        .get_concrete_function(step_spec, step_spec)
        .structured_outputs
    )
    self.spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), outputs
    )
    self._fn = tf.function(policy_info_fn)

  def __call__(self, steps: Dict[str, Any], following: Dict[str, Any]) -> Any:
    """Calls the function on each of a block's steps and the one that follows.

    Args:
      steps: steps `[B, ...]`.
      following: the step after them, `[1, ...]`.

    Returns:
      What the function returned, `[B, ...]`.
    """
    # One more row than is needed, as in a single one `tf.vectorized_map` lets
    # `tf.squeeze` squeeze the row away.
    rows = blocks.concat(steps, following)
    next_rows = blocks.concat(
        tf.nest.map_structure(lambda leaf: leaf[1:], rows), following
    )
    info = tf.vectorized_map(lambda pair: self._fn(*pair), (rows, next_rows))
    return tf.nest.map_structure(
        lambda leaf, spec: tf.ensure_shape(leaf[:-1], [None] + spec.shape),
        info,
        self.spec,
    )


class _ReadFields(dict):
  """A step that notes which of its fields are read."""

  def __init__(self, step=(), fields=None):
    super().__init__(step)
    self._fields = set() if fields is None else fields

  def __getitem__(self, key):
    value = super().__getitem__(key)
    self._fields.add(key)
    return value

  def __contains__(self, key):
    if not super().__contains__(key):
      return False
    self._fields.add(key)
    return True

  def get(self, key, default=None):
    return self[key] if key in self else default

  def _all_read(self):
    self._fields.update(super().keys())
    return super()

  def __iter__(self):
    return self._all_read().__iter__()

  def keys(self):
    return self._all_read().keys()

  def items(self):
    return self._all_read().items()

  def values(self):
    return self._all_read().values()


class SpecMismatchError(ValueError):
  """A table's signature does not fit the data.

  `str(error)` is the sentence of TF-Agents 0.19.0.

  Attributes:
    differences: a sentence a difference, each with the path of the field.
  """

  def __init__(self, differences: List[str]):
    super().__init__(
        'Replay buffer table signature spec should match RLDS data spec.'
    )
    self.differences = differences


def check_signature(signature: Any, data_spec: trajectory.Trajectory) -> None:
  """Checks that frames of `data_spec` fit a table with `signature`.

  Structure, dtype and shape must be compatible; names and bounds may differ.

  Args:
    signature: the signature, every leaf with an outer dimension of time. None,
      of a table that has no signature, fits everything.
    data_spec: the spec of one frame.

  Raises:
    SpecMismatchError: if they do not fit. It lists each difference by path.
  """
  if signature is None:
    return
  differences = _differences(signature, data_spec)
  if differences:
    error = SpecMismatchError(differences)
    logging.error('%s\n%s', error, '\n'.join(differences))
    raise error


def _differences(signature, data_spec) -> List[str]:
  # By tuples: a key may itself contain what joins the keys of a path.
  expected = dict(tree.flatten_with_path(signature))
  found = dict(tree.flatten_with_path(data_spec))
  differences = []
  for path in sorted(expected.keys() | found.keys(), key=steps_lib.field_path):
    table, data = expected.get(path), found.get(path)
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
    differences.append(f'{steps_lib.field_path(path)}: the table {difference}')
  return differences


def _with_time(spec):
  return tf.TensorSpec([None] + spec.shape, spec.dtype)


def _describe(spec):
  return f'{spec.dtype.name} {spec.shape}'
