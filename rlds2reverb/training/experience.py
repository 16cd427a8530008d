"""The batches that an agent learns from."""

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Union

import tensorflow as tf
from tf_agents.replay_buffers import replay_buffer as replay_buffer_lib
from tf_agents.trajectories import time_step as ts

from rlds2reverb import replay
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.training import algorithm as algorithm_lib
from rlds2reverb.training import normalization as normalization_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib


@dataclasses.dataclass(frozen=True)
class BatchOptions:
  """The options of the batches that an agent learns from.

  Attributes:
    batch_size: `B`, how many items a batch has.
    reverb_server: False for a replay buffer in this process; True for a Reverb
      server that is started and filled, and stopped at the end; or the address
      `host:port` of a server that runs and holds items of the same data, not
      normalised, of the algorithm's `sequence_length`.
    rules: how episodes are converted, unless they are in a running server. By
      default the discount of the transition into a terminal state is 0, because
      agents leave out the frame of an episode's last step.
  """

  batch_size: int = 256
  reverb_server: Union[bool, str] = False
  rules: rules_lib.ConversionRules = rules_lib.ConversionRules(
      terminal_discount='transition'
  )


class Experience(NamedTuple):
  """The data that an agent learns from.

  Attributes:
    replay_buffer: the replay buffer, which a checkpoint holds.
    as_dataset: makes a data set of pairs of a normalised `Trajectory`
      `[B, T, ...]` and a `SampleInfo`.
  """

  replay_buffer: replay_buffer_lib.ReplayBuffer
  as_dataset: Callable[[], tf.data.Dataset]


@contextlib.contextmanager
def open_experience(
    rlds_data: tf.data.Dataset,
    algorithm: algorithm_lib.Algorithm,
    normalization: normalization_lib.Normalization,
    batches: BatchOptions,
    seed: int,
) -> Iterator['Experience']:
  """Opens the replay buffer with the items that an algorithm learns from.

  Args:
    rlds_data: an RLDS data set, not normalised.
    algorithm: the algorithm.
    normalization: the normalisation of the batches.
    batches: the options of the batches.
    seed: the seed of the batches, without a server.

  Yields:
    The `Experience`.

  Raises:
    ConnectionError: if there is no answer from the server.
    ValueError: if the data lacks what the algorithm needs.
  """
  uses_info = algorithm.uses_policy_info
  if uses_info:
    fields = steps_lib.steps_spec(rlds_data.element_spec).step
    if step_mapping.POLICY_INFO not in fields:
      raise ValueError(
          f'{algorithm} needs a policy_info, but the steps of the data have'
          f' only {sorted(fields)}.'
      )
  is_running = isinstance(batches.reverb_server, str)
  arguments: Dict[str, Any] = {}
  if not is_running:
    arguments['options'] = options_lib.ConversionOptions(
        batches.rules, step_mapping.step_policy_info if uses_info else None
    )
    if not batches.reverb_server:
      arguments.update(seed=seed)
  replay_buffer = replay.open_replay_buffer(
      None if is_running else normalization.apply(rlds_data),
      windows_lib.Windows(
          algorithm.sequence_length, end=algorithm.end_of_episode
      ),
      reverb_server=batches.reverb_server,
      **arguments,
  )

  def as_dataset():
    dataset = replay_buffer.as_dataset(
        sample_batch_size=batches.batch_size,
        num_steps=algorithm.sequence_length,
    )
    if not is_running:
      return dataset

    def normalize(frames, info):
      frames = normalization.apply_to_frames(frames)
      return frames if uses_info else frames._replace(policy_info=()), info

    return dataset.map(normalize)

  try:
    yield Experience(replay_buffer, as_dataset)
  finally:
    if batches.reverb_server:
      replay_buffer.close()


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
  step = steps_lib.steps_spec(rlds_data.element_spec).step
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
