"""The training loop, with checkpoints, evaluation and a saved policy."""

import json
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tf_agents.environments import batched_py_environment
from tf_agents.policies import policy_saver
from tf_agents.policies import tf_policy
from tf_agents.train import learner as learner_lib
from tf_agents.utils import common

from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import json_files
from rlds2reverb.datasets import progress_bar
from rlds2reverb.episodes import checks
from rlds2reverb.training import environments

# Settings that may change when a run is resumed.
_MUTABLE_SETTINGS = (
    *('dataset', 'directory', 'num_steps', 'checkpoint_interval'),
    *('eval_interval', 'num_eval_episodes'),
)
_SETTINGS_FILE = 'settings.json'
_NUM_CHECKPOINTS = 3
_PROGRESS_INTERVAL = 100


class Returns(NamedTuple):
  """The undiscounted returns of the episodes of an evaluation.

  Attributes:
    returns: float64 `[N]`, one per episode.
  """

  returns: np.ndarray

  @property
  def mean(self) -> float:
    return float(np.mean(self.returns))

  @property
  def standard_error(self) -> float:
    """The standard error of the mean; NaN for a single episode."""
    if len(self.returns) < 2:
      return float('nan')
    return float(np.std(self.returns, ddof=1) / np.sqrt(len(self.returns)))

  def __str__(self) -> str:
    return (
        f'{self.mean:.1f} +- {self.standard_error:.1f}'
        f' ({len(self.returns)} episodes)'
    )


class Evaluator:
  """Runs episodes of a policy in parallel, with batched actions.

  Each environment runs one episode. If environments were reset until there are
  enough episodes, short episodes would be counted more often than long ones.

  Attributes:
    policy: the policy.
  """

  def __init__(
      self,
      policy: tf_policy.TFPolicy,
      environment: str,
      num_episodes: int = 20,
      *,
      seed: int = 0,
  ):
    """Makes the environments.

    Args:
      policy: the policy, with the specs of the environment.
      environment: the id of a Gym environment.
      num_episodes: the number of episodes.
      seed: the seed of the first environment; each further environment has the
        next seed.

    Raises:
      ValueError: if `num_episodes` is not positive, or there is no such
        environment.
    """
    checks.check_positive('num_episodes', num_episodes)
    self.policy = policy
    self._action = common.function(policy.action)
    self._seed = seed
    self._environments = batched_py_environment.BatchedPyEnvironment(
        [
            environments.make_environment(environment)
            for _ in range(num_episodes)
        ],
        multithreading=False,
    )

  def run(self) -> Returns:
    """Runs the episodes, from the same initial states each time."""
    for i, env in enumerate(self._environments.envs):
      env.seed(self._seed + i)
    step = self._environments.reset()
    state = self.policy.get_initial_state(self._environments.batch_size)
    returns = np.zeros(self._environments.batch_size)
    is_done = step.is_last()
    while not is_done.all():
      step = tf.nest.map_structure(tf.convert_to_tensor, step)
      action, state, _ = self._action(step, state)
      # Environments that are done are reset, and their rewards ignored.
      step = self._environments.step(
          tf.nest.map_structure(lambda leaf: leaf.numpy(), action)
      )
      returns += np.where(is_done, 0, step.reward)
      is_done |= step.is_last()
    return Returns(returns)


def train(
    learner: learner_lib.Learner,
    evaluator: Evaluator,
    directory: files.PathLike,
    num_steps: int,
    *,
    checkpoint_interval: int = 1000,
    eval_interval: int = 0,
    **checkpointed: Any,
) -> Returns:
  """Trains up to a number of train steps, then evaluates and saves the policy.

  `directory` has the TensorBoard summaries in `train` and `eval`, checkpoints
  in `train/checkpoints`, and the evaluated policy, written by `PolicySaver`, in
  `policy`. A run resumes from its last checkpoint. If the replay buffer is
  checkpointed, too, the batches equal the batches of an uninterrupted run.

  Args:
    learner: the learner, created with `checkpoint_interval=0`.
    evaluator: the evaluator of the policy.
    directory: the folder of the run and of the learner.
    num_steps: the number of train steps, including those of earlier runs.
    checkpoint_interval: the number of train steps between checkpoints.
    eval_interval: the number of train steps between evaluations; 0 to evaluate
      only at the end.
    **checkpointed: the objects to checkpoint: the agent, its train step and the
      replay buffer.

  Returns:
    The returns of the final policy.

  Raises:
    ValueError: if `num_steps` or `checkpoint_interval` is not positive.
  """
  checks.check_positive('num_steps', num_steps)
  checks.check_positive('checkpoint_interval', checkpoint_interval)
  directory = files.expand_local(directory, 'The run')
  folders = learner_lib.TRAIN_DIR, learner_lib.POLICY_CHECKPOINT_DIR
  checkpointer = common.Checkpointer(
      os.path.join(directory, *folders), _NUM_CHECKPOINTS, **checkpointed
  )
  checkpointer.initialize_or_restore()
  writer = tf.summary.create_file_writer(os.path.join(directory, 'eval'))

  def evaluate():
    returns = evaluator.run()
    with writer.as_default(step):
      tf.summary.scalar('Metrics/AverageReturn', returns.mean)
      tf.summary.scalar('Metrics/StandardError', returns.standard_error)
    writer.flush()
    return returns

  intervals = [_PROGRESS_INTERVAL, checkpoint_interval, eval_interval]
  step, returns = int(learner.train_step_numpy), None
  with progress_bar.ProgressBar(num_steps, initial=step, unit='steps') as bar:
    while step < num_steps:
      stop = min(num_steps, *((step // n + 1) * n for n in intervals if n))
      loss = learner.run(stop - step).loss.numpy()
      bar.update(stop, f'loss {loss:.4g}')
      step, returns = stop, None
      if eval_interval and step % eval_interval == 0:
        returns = evaluate()
      if step % checkpoint_interval == 0 or step == num_steps:
        checkpointer.save(step)
  returns = evaluate() if returns is None else returns
  writer.close()
  saver = policy_saver.PolicySaver(
      evaluator.policy, train_step=learner.train_step
  )
  policy_folder = os.path.join(directory, 'policy')
  with files.new_folder(policy_folder, [], replace=True) as folder:
    saver.save(folder)
  return returns


def open_run(directory: files.PathLike, settings: dict[str, Any]) -> str:
  """Saves the settings of a new run, or checks the settings of a resumed run.

  Args:
    directory: the folder of the run, on a local disk.
    settings: the arguments of a trainer; and other objects that determine the
      run, such as its `Normalization`, whose fingerprints are saved. `dataset`,
      `directory`, `num_steps`, `checkpoint_interval`, `eval_interval` and
      `num_eval_episodes` may change.

  Returns:
    The path of the folder, without a `~`.

  Raises:
    ValueError: if `directory` has a run with other settings. The error lists
      each difference.
  """
  directory = files.expand_local(directory, 'The run')
  path = os.path.join(directory, _SETTINGS_FILE)
  settings = {k: v for k, v in settings.items() if k not in _MUTABLE_SETTINGS}
  text = json.dumps(settings, default=fingerprints.fingerprint, indent=1)
  if not files.exists(path):
    files.write_text(path, text)
    return directory
  previous = json_files.read_json(
      path, f'Choose another directory, or remove {directory}.'
  )
  differences = [
      f'{name} was {previous.get(name)!r}, and is {value!r}'
      for name, value in json.loads(text).items()  # Tuples are lists in JSON.
      if previous.get(name) != value
  ]
  if differences:
    raise ValueError(
        f'{directory} has a run with other settings: {"; ".join(differences)}.'
        ' Choose a new directory, or the same settings to resume the run.'
    )
  return directory
