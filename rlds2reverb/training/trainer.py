"""The loop that trains an agent on recorded episodes."""

import contextlib
import dataclasses
import json
import math
import os
from typing import Any, Dict, Tuple

import tensorflow as tf
from tf_agents.agents import tf_agent
from tf_agents.policies import greedy_policy
from tf_agents.policies import policy_saver
from tf_agents.specs import tensor_spec
from tf_agents.train import learner as learner_lib
from tf_agents.train.utils import train_utils
from tf_agents.utils import common
import tqdm

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import checks
from rlds2reverb.training import algorithm as algorithm_lib
from rlds2reverb.training import environments
from rlds2reverb.training import evaluation
from rlds2reverb.training import experience
from rlds2reverb.training import normalization as normalization_lib
from rlds2reverb.training import timed_learner

POLICY_DIR = 'policy'
_SETTINGS_FILE = 'settings.json'
_NUM_CHECKPOINTS = 3


@dataclasses.dataclass(frozen=True)
class Monitoring:
  """Says how often a run is shown, saved and evaluated.

  Attributes:
    summary: after how many train steps TensorBoard summaries are written, and
      the progress is shown.
    checkpoint: after how many a checkpoint is written.
    evaluation: after how many the policy is evaluated; 0 for only at the end.
    num_eval_episodes: how many episodes an evaluation plays.
    progress: whether to show a progress bar.
  """

  summary: int = 100
  checkpoint: int = 1000
  evaluation: int = 0
  num_eval_episodes: int = 20
  progress: bool = False

  def next_stop(self, step: int, num_steps: int) -> int:
    """Returns the next train step after `step` at which something happens."""
    intervals = [self.summary, self.checkpoint, self.evaluation]
    return min(
        num_steps, *((step // each + 1) * each for each in intervals if each)
    )


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """The result of a training.

  Attributes:
    num_steps: how many train steps the agent has done, earlier runs included.
    returns: the returns of the policy at the end.
    waiting_share: the share of this run's train steps that was spent waiting
      for data, from 0 to 1; NaN if this run did no more than one call of the
      learner, which traces the train step.
    policy_dir: where the policy is, a SavedModel of `PolicySaver`.
  """

  num_steps: int
  returns: evaluation.Returns
  waiting_share: float
  policy_dir: str


def train(
    algorithm: algorithm_lib.Algorithm,
    rlds_data: tf.data.Dataset,
    environment: str,
    directory: files.PathLike,
    num_steps: int,
    *,
    batches: experience.BatchOptions = experience.BatchOptions(),
    monitoring: Monitoring = Monitoring(),
    seed: int = 0,
) -> TrainingResult:
  """Trains an agent of TF-Agents on recorded episodes.

      episodes = rlds2reverb.load_episodes('/data/pendulum')
      result = training.train(
          training.CqlSac(cql_alpha=0.2), episodes, 'Pendulum-v1', '/tmp/run',
          num_steps=5000)
      policy = tf.saved_model.load(result.policy_dir)

  Observations and actions of floats are normalised by the data. The policy that
  is saved undoes this: it takes and returns the environment's own values.

  In `directory` are the summaries for TensorBoard, in `train` and `eval`, the
  checkpoints, in `train/checkpoints`, and the policy, in `policy`. A run that
  was interrupted goes on from its last checkpoint when it is started again with
  the same arguments, and with the very batches that it would have had; so does
  a finished one with more `num_steps`. The random numbers that an agent draws
  itself, such as the actions that CQL-SAC samples, differ; and with a Reverb
  server the batches differ, too.

  Args:
    algorithm: the algorithm, such as `BehavioralCloning`, `CqlSac` or
      `RecurrentDqn`.
    rlds_data: an RLDS data set whose observations and actions are those of the
      environment.
    environment: the id of the gym environment in which the policy is evaluated.
    directory: the folder of the run, on the local disk.
    num_steps: how many train steps the agent does, earlier runs included.
    batches: the size of batches, and whether a server makes them.
    monitoring: how often the run is saved, shown and evaluated.
    seed: the seed of the networks, the batches and the environments. It sets
      the global seeds of TensorFlow, NumPy and Python.

  Returns:
    The `TrainingResult`.

  Raises:
    ConnectionError: if there is no answer from the Reverb server.
    ValueError: if the data does not fit the environment, the algorithm does not
      fit either, `directory` has a run with other settings, or a number is not
      positive.
    InvalidArgumentError: if an episode is invalid.
  """
  checks.check_positive('num_steps', num_steps)
  checks.check_positive('batch_size', batches.batch_size)
  directory = files.expand_local(directory, 'The run')
  time_step_spec, action_spec = _specs_of(environment)
  experience.check_fits(rlds_data, environment, time_step_spec, action_spec)
  normalization = normalization_lib.fit_normalization(rlds_data)
  settings = {
      'algorithm': repr(algorithm),
      'environment': environment,
      'batch_size': batches.batch_size,
      'rules': repr(batches.rules),
      'seed': seed,
      'normalization': identity.fingerprint(*normalization),
  }
  _check_settings(directory, settings)
  tf.keras.utils.set_random_seed(seed)
  with contextlib.ExitStack() as stack:
    data = stack.enter_context(
        experience.open_experience(
            rlds_data, algorithm, normalization, batches, seed
        )
    )
    train_step = train_utils.create_train_step()
    agent = algorithm.make_agent(
        *normalization_lib.normalized_specs(time_step_spec, action_spec),
        train_step,
    )
    learner = timed_learner.TimedLearner(
        directory,
        train_step,
        agent,
        data.as_dataset,
        checkpoint_interval=0,  # The checkpoints below also hold the data.
        summary_interval=monitoring.summary,
    )
    policy = normalization_lib.DenormalizedPolicy(
        _greedy(agent), time_step_spec, action_spec, normalization
    )
    whole.write_text(
        os.path.join(directory, _SETTINGS_FILE), json.dumps(settings, indent=1)
    )
    checkpointer = _restored_checkpointer(
        directory,
        agent=agent,
        train_step=train_step,
        replay_buffer=data.replay_buffer,
    )
    evaluator = evaluation.Evaluator(
        policy, environment, monitoring.num_eval_episodes, seed=seed
    )
    stack.callback(evaluator.close)
    returns = _run(
        learner, checkpointer, evaluator, directory, num_steps, monitoring
    )
  policy_dir = os.path.join(directory, POLICY_DIR)
  with whole.new_folder(policy_dir, [], replace=True) as folder:
    policy_saver.PolicySaver(policy, train_step=train_step).save(folder)
  return TrainingResult(
      int(train_step.numpy()), returns, learner.waiting_share, policy_dir
  )


def _run(
    learner: timed_learner.TimedLearner,
    checkpointer: common.Checkpointer,
    evaluator: evaluation.Evaluator,
    directory: str,
    num_steps: int,
    monitoring: Monitoring,
) -> evaluation.Returns:
  """Trains up to `num_steps`, and returns the last returns."""
  writer = tf.summary.create_file_writer(os.path.join(directory, 'eval'))
  step = int(learner.train_step_numpy)
  returns = None
  with tqdm.tqdm(
      total=num_steps,
      initial=step,
      unit=' steps',
      disable=not monitoring.progress,
  ) as bar:
    while step < num_steps:
      stop = monitoring.next_stop(step, num_steps)
      loss = learner.run(stop - step).loss.numpy()
      bar.update(stop - step)
      step = stop
      returns = None
      share = learner.waiting_share
      if not math.isnan(share):
        with learner.train_summary_writer.as_default(step):
          tf.summary.scalar('Data/waiting_share', share)
      if monitoring.evaluation and step % monitoring.evaluation == 0:
        returns = _evaluate(evaluator, writer, step)
        if monitoring.progress:
          bar.write(f'{step} train steps: return {returns}')
      if step % monitoring.checkpoint == 0 or step == num_steps:
        checkpointer.save(step)
      bar.set_postfix_str(
          f'loss {loss:.4g}{timed_learner.describe_waiting(share)}'
      )
  if returns is None:
    returns = _evaluate(evaluator, writer, step)
  writer.close()
  return returns


def _specs_of(environment: str) -> Tuple[Any, Any]:
  """Returns the specs of an environment's time steps and actions."""
  env = environments.make_environment(environment, 0)
  env.close()
  return tuple(
      map(tensor_spec.from_spec, (env.time_step_spec(), env.action_spec()))
  )


def _restored_checkpointer(directory: str, **kept: Any) -> common.Checkpointer:
  """Returns the checkpointer of a run, which goes on from its last one."""
  checkpointer = common.Checkpointer(
      os.path.join(
          directory, learner_lib.TRAIN_DIR, learner_lib.POLICY_CHECKPOINT_DIR
      ),
      _NUM_CHECKPOINTS,
      **kept,
  )
  checkpointer.initialize_or_restore()
  return checkpointer


def _evaluate(evaluator, writer, step) -> evaluation.Returns:
  returns = evaluator.run()
  with writer.as_default(step):
    tf.summary.scalar('Metrics/AverageReturn', returns.mean)
    tf.summary.scalar('Metrics/StandardError', returns.standard_error)
  writer.flush()
  return returns


def _greedy(agent: tf_agent.TFAgent):
  policy = agent.policy
  if isinstance(policy, greedy_policy.GreedyPolicy):
    return policy
  return greedy_policy.GreedyPolicy(policy)


def _check_settings(directory: str, settings: Dict[str, Any]) -> None:
  """Raises a ValueError if a directory has a run with other settings."""
  path = os.path.join(directory, _SETTINGS_FILE)
  if not files.exists(path):
    return
  with files.open_text(path) as f:
    found = json.load(f)
  differences = [
      f'{name} was {found.get(name)!r}, and is {value!r}'
      for name, value in settings.items()
      if found.get(name) != value
  ]
  if differences:
    raise ValueError(
        f'{directory} has a run with other settings: {"; ".join(differences)}.'
        ' Choose a new directory, or the same settings to go on with it.'
    )
