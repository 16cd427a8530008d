"""Records episodes of a gym environment as an RLDS data set on disk."""

from typing import Any, Callable, Dict, Iterator, Optional

import gym
import numpy as np
import tensorflow_datasets as tfds
import tqdm
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import rlds

# A policy takes an observation and returns an action; see `record_episodes`.
Policy = Callable[[Any], Any]

# The field of a step that holds a policy's info, which it returns beside its
# action.
_POLICY_INFO = 'policy_info'


def record_episodes(
    environment: str,
    directory: files.PathLike,
    num_episodes: int,
    *,
    policy: Optional[Policy] = None,
    max_steps: Optional[int] = None,
    split: str = 'train',
    seed: int = 0,
    progress: bool = False,
) -> str:
  """Records episodes of a gym environment as an RLDS data set.

  An episode of `T` transitions has `T + 1` steps. The action, reward and
  discount of its last step are zeros that carry no meaning. An episode that the
  environment ends is terminal: `is_terminal` is set on its last step, and the
  discount of the transition into that step is 0. An episode that a time limit
  cuts is not terminal, and its discounts are 1.

  Args:
    environment: the id of a gym environment, for example `CartPole-v1`.
    directory: the path of a directory that does not exist yet or is empty, or
      a URL that TensorFlow can write to. The directory becomes visible when it
      is complete.
    num_episodes: the number of episodes to record.
    policy: a function from an observation to an action. By default actions are
      uniformly random. If it has a method `reset`, that is called before the
      first observation of each episode. If it has an attribute `info_space`
      that is a gym space, and not None, it returns pairs of an action and an
      element of that space, which becomes the field `policy_info` of the step;
      in an episode's last step this is zeros.
    max_steps: the number of transitions after which an episode is cut, as by a
      time limit.
    split: the name of the split.
    seed: the seed of the environment and of the random actions, an int.
    progress: whether to show a progress bar.

  Returns:
    The directory, for `load_episodes`.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    OSError: if `directory` cannot be written. This is checked before the
      environment is made.
    ValueError: if `num_episodes` or `max_steps` is not positive, or if there is
      no such environment.
  """
  if num_episodes < 1 or (max_steps is not None and max_steps < 1):
    raise ValueError(
        'num_episodes and max_steps must be positive, but are'
        f' {num_episodes} and {max_steps}.'
    )
  directory = files.expand(directory)
  with whole.new_folder(directory, [versions.INFO_FILE]) as folder:
    env = make_gym(environment)
    try:
      env.seed(seed)
      env.action_space.seed(seed)
      empty = _empty_step(env, policy)
      steps = tfds.features.Dataset(tree.map_structure(_feature, empty))
      numbers = tqdm.trange(
          num_episodes, desc=f'Recording {environment}', disable=not progress
      )
      writing.write_episodes(
          ({rlds.STEPS: [*_steps(env, policy, max_steps)]} for _ in numbers),
          folder,
          name=environment,
          version=writing.name_and_version(directory)[1],
          description=f'Episodes of the gym environment {environment}.',
          features={rlds.STEPS: steps},
          split=split,
      )
    finally:
      env.close()
  return directory


def make_gym(environment: str) -> gym.Env:
  """Makes a gym environment.

  Args:
    environment: its id.

  Raises:
    ValueError: if there is no such environment.
  """
  try:
    return gym.make(environment)
  except gym.error.Error as e:
    raise ValueError(f'There is no gym environment {environment!r}: {e}') from e


def _empty_step(env: gym.Env, policy: Optional[Policy]) -> Dict[str, Any]:
  """Returns a step of zeros."""
  info_space = getattr(policy, 'info_space', None)
  flags = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
  return {
      rlds.OBSERVATION: _zeros(env.observation_space),
      rlds.ACTION: _zeros(env.action_space),
      **dict.fromkeys((rlds.REWARD, rlds.DISCOUNT), np.float32(0)),
      **dict.fromkeys(flags, np.bool_(False)),
      **({} if info_space is None else {_POLICY_INFO: _zeros(info_space)}),
  }


def _zeros(space: gym.Space) -> Any:
  """Returns the zeros of a gym space."""
  if isinstance(space, gym.spaces.Dict):
    return {key: _zeros(value) for key, value in space.spaces.items()}
  if space.shape is None or space.dtype is None:
    raise ValueError(f'The space {space} cannot be recorded.')
  return np.zeros(space.shape, space.dtype)


def _feature(zeros: Any) -> Any:
  """Returns the TFDS feature of a field of a step."""
  if isinstance(zeros, np.generic):
    return zeros.dtype.type
  return tfds.features.Tensor(shape=zeros.shape, dtype=zeros.dtype)


def _steps(
    env: gym.Env, policy: Optional[Policy], max_steps: Optional[int]
) -> Iterator[Dict[str, Any]]:
  """Yields the RLDS steps of one episode."""
  empty = _empty_step(env, policy)

  def recorded(**values):
    return {name: _copy(empty[name], value) for name, value in values.items()}

  observation = env.reset()
  if hasattr(policy, 'reset'):
    policy.reset()
  num_steps, done = 0, False
  while not done and num_steps != max_steps:
    # Observations and actions are copied at once, because environments and
    # policies may write the next ones into the same arrays, or change their
    # inputs.
    step = recorded(observation=observation)
    action = policy(observation) if policy else env.action_space.sample()
    if _POLICY_INFO in empty:
      action, policy_info = action
      step.update(recorded(policy_info=policy_info))
    step.update(recorded(action=action))
    observation, reward, done, info = env.step(action)
    is_terminal = done and not info.get('TimeLimit.truncated', False)
    end = {rlds.DISCOUNT: np.float32(not is_terminal)}
    step[rlds.REWARD] = np.float32(reward)
    yield {**empty, **step, **end, rlds.IS_FIRST: not num_steps}
    num_steps += 1
  end.update({rlds.IS_LAST: True, rlds.IS_TERMINAL: is_terminal})
  yield {**empty, **recorded(observation=observation), **end}


def _copy(like: Any, value: Any) -> Any:
  if isinstance(like, dict):
    return {key: _copy(part, value[key]) for key, part in like.items()}
  # Some environments return float64 although their space is float32.
  return np.array(value, like.dtype)
