"""The loop that trains an agent, saves it and evaluates it."""

import json
import os
from typing import Any, Dict

import tensorflow as tf
from tf_agents.policies import policy_saver
from tf_agents.train import learner as learner_lib
from tf_agents.utils import common
import tqdm

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import checks
from rlds2reverb.training import evaluation

# These may be others when a run goes on.
_FREE_SETTINGS = (
    *('dataset', 'directory', 'num_steps', 'checkpoint_interval'),
    *('eval_interval', 'num_eval_episodes'),
)
_SETTINGS_FILE = 'settings.json'
_NUM_CHECKPOINTS = 3
_PROGRESS_INTERVAL = 100


def train(
    learner: learner_lib.Learner,
    evaluator: evaluation.Evaluator,
    directory: files.PathLike,
    num_steps: int,
    *,
    checkpoint_interval: int = 1000,
    eval_interval: int = 0,
    **saved: Any,
) -> evaluation.Returns:
  """Trains up to a number of train steps, evaluates and saves the policy.

  In `directory` are the summaries for TensorBoard, in `train` and `eval`, the
  checkpoints, in `train/checkpoints`, and the evaluated policy, in `policy`, as
  `PolicySaver` writes it. A run goes on from its last checkpoint. With the
  replay buffer among what is saved, it goes on with the very batches that it
  would have had.

  Args:
    learner: the learner, made with `checkpoint_interval=0`.
    evaluator: the evaluator of the policy.
    directory: the folder of the run, that of the learner.
    num_steps: how many train steps are done, earlier runs included.
    checkpoint_interval: after how many train steps a checkpoint is written.
    eval_interval: after how many the policy is evaluated; 0 for only at the
      end.
    **saved: what a checkpoint holds, by its name: the agent, its train step and
      the replay buffer.

  Returns:
    The returns of the policy at the end.

  Raises:
    ValueError: if a number is not positive.
  """
  checks.check_positive('num_steps', num_steps)
  checks.check_positive('checkpoint_interval', checkpoint_interval)
  directory = files.expand_local(directory, 'The run')
  folders = learner_lib.TRAIN_DIR, learner_lib.POLICY_CHECKPOINT_DIR
  checkpointer = common.Checkpointer(
      os.path.join(directory, *folders), _NUM_CHECKPOINTS, **saved
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
  # The bar is shown where there is a terminal.
  with tqdm.tqdm(
      total=num_steps, initial=step, unit=' steps', disable=None
  ) as bar:
    while step < num_steps:
      stop = min(num_steps, *((step // n + 1) * n for n in intervals if n))
      loss = learner.run(stop - step).loss.numpy()
      bar.set_postfix_str(f'loss {loss:.4g}', refresh=False)
      bar.update(stop - step)
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
  folder = os.path.join(directory, 'policy')
  with whole.new_folder(folder, [], replace=True) as new:
    saver.save(new)
  return returns


def open_run(directory: files.PathLike, settings: Dict[str, Any]) -> str:
  """Writes the settings of a new run, or compares them with those of its start.

  Args:
    directory: the folder of the run, on the local disk.
    settings: the arguments of a trainer, and for example its `Normalization`,
      of which a fingerprint is written. `dataset`, `directory`, `num_steps`,
      `checkpoint_interval`, `eval_interval` and `num_eval_episodes` may differ.

  Returns:
    The path of the folder, without a `~`.

  Raises:
    ValueError: if `directory` has a run with other settings. The error lists
      each difference.
  """
  directory = files.expand_local(directory, 'The run')
  path = os.path.join(directory, _SETTINGS_FILE)
  kept = {k: v for k, v in settings.items() if k not in _FREE_SETTINGS}
  text = json.dumps(kept, default=identity.fingerprint, indent=1)
  if not files.exists(path):
    whole.write_text(path, text)
    return directory
  with files.open_text(path) as f:
    found = json.load(f)
  differences = [
      f'{name} was {found.get(name)!r}, and is {value!r}'
      for name, value in json.loads(text).items()  # Tuples are lists in JSON.
      if found.get(name) != value
  ]
  if differences:
    raise ValueError(
        f'{directory} has a run with other settings: {"; ".join(differences)}.'
        ' Choose a new directory, or the same settings to go on with it.'
    )
  return directory
