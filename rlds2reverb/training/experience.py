"""The batches that an agent learns from."""

import contextlib
from typing import Any, Iterator, Optional, Union

import rlds
import tensorflow as tf
from tf_agents.replay_buffers import replay_buffer as replay_buffer_lib
from tf_agents.trajectories import time_step as ts

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.replay.local import replay_buffer
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.training import algorithm as algorithm_lib


@contextlib.contextmanager
def open_experience(
    rlds_data: tf.data.Dataset,
    algorithm: algorithm_lib.Algorithm,
    *,
    reverb: Union[None, bool, str],
    rules: rules_lib.ConversionRules,
    seed: int,
) -> Iterator[replay_buffer_lib.ReplayBuffer]:
  """Yields a replay buffer with the items that an algorithm learns from.

  Args:
    rlds_data: an RLDS data set.
    algorithm: the algorithm.
    reverb: None for a replay buffer in this process; True for a Reverb server
      that is started and filled, and stopped at the end; or the address
      `host:port` of a server that runs.
    rules: how episodes are converted.
    seed: the seed of the batches, without a server.

  Raises:
    ValueError: if the data lacks what the algorithm needs.
  """
  del reverb
  policy_info_fn = None
  if algorithm.uses_policy_info:
    if step_mapping.POLICY_INFO not in steps_lib.steps_spec(rlds_data).step:
      raise ValueError(
          f'{algorithm} needs a policy_info, but the steps of the data have'
          f' only {sorted(steps_lib.steps_spec(rlds_data).step)}.'
      )
    policy_info_fn = step_mapping.step_policy_info
  yield replay_buffer.EpisodesReplayBuffer(
      rlds_data,
      algorithm.sequence_length,
      end_of_episode=algorithm.end_of_episode,
      policy_info_fn=policy_info_fn,
      rules=rules,
      seed=seed,
  )


def check_fits(
    rlds_data: tf.data.Dataset,
    environment: str,
    time_step_spec: ts.TimeStep,
    action_spec: Any,
) -> None:
  """Checks that data has the observations and actions of an environment.

  Args:
    rlds_data: an RLDS data set.
    environment: the name of the environment, for the message.
    time_step_spec: the spec of its time steps.
    action_spec: the spec of its actions.

  Raises:
    ValueError: if it has others. The error lists each difference.
  """
  step = steps_lib.steps_spec(rlds_data).step
  fields = rlds.OBSERVATION, rlds.ACTION
  found = paths.leaves({field: step[field] for field in fields})
  expected = paths.leaves(
      {rlds.OBSERVATION: time_step_spec.observation, rlds.ACTION: action_spec}
  )

  def describe(spec: Optional[tf.TensorSpec]) -> str:
    return 'nothing' if spec is None else f'{spec.dtype.name} {spec.shape}'

  differences = [
      f'{path} is {describe(found.get(path))} in the data, and'
      f' {describe(expected.get(path))} in the environment'
      for path in sorted(found.keys() | expected.keys())
      if describe(found.get(path)) != describe(expected.get(path))
  ]
  if differences:
    raise ValueError(
        f'The data does not fit {environment}: {"; ".join(differences)}. Map'
        ' its fields with a StepMapping, which can cast them, too.'
    )
