"""Records episodes of a gym environment as an RLDS data set on disk."""

from typing import Any, Callable, Dict, Iterator, Optional

import gym
import numpy as np
import tensorflow_datasets as tfds
import tqdm

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
      writing.write_episodes(
          (
              {rlds.STEPS: list(_steps(env, policy, max_steps))}
              for _ in tqdm.trange(
                  num_episodes,
                  desc=f'Recording {environment}',
                  disable=not progress,
              )
          ),
          folder,
          name=environment,
          version=writing.name_and_version(directory)[1],
          description=f'Episodes of the gym environment {environment}.',
          features=_features(env, _info_space(policy)),
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


def _info_space(policy: Optional[Policy]) -> Optional[gym.Space]:
  return getattr(policy, 'info_space', None)


def _features(env, info_space):
  features = {
      rlds.OBSERVATION: _feature(env.observation_space),
      rlds.ACTION: _feature(env.action_space),
      rlds.REWARD: np.float32,
      rlds.DISCOUNT: np.float32,
      rlds.IS_FIRST: np.bool_,
      rlds.IS_LAST: np.bool_,
      rlds.IS_TERMINAL: np.bool_,
  }
  if info_space is not None:
    features[_POLICY_INFO] = _feature(info_space)
  return {rlds.STEPS: tfds.features.Dataset(features)}


def _feature(space: gym.Space) -> Any:
  """Returns the TFDS feature of a gym space."""
  if isinstance(space, gym.spaces.Dict):
    return {key: _feature(value) for key, value in space.spaces.items()}
  if space.shape is None or space.dtype is None:
    raise ValueError(f'The space {space} cannot be recorded.')
  return tfds.features.Tensor(shape=space.shape, dtype=space.dtype)


def _steps(env, policy, max_steps) -> Iterator[Dict[str, Any]]:
  """Yields the RLDS steps of one episode."""
  observation = env.reset()
  if hasattr(policy, 'reset'):
    policy.reset()
  info_space = _info_space(policy)
  policy_info = {}
  is_first = True
  num_steps = 0
  while True:
    # Observations and actions are copied at once, because environments and
    # policies may write the next ones into the same arrays, or change their
    # inputs.
    recorded_observation = _copy(env.observation_space, observation)
    action = policy(observation) if policy else env.action_space.sample()
    if info_space is not None:
      action, policy_info = action
      policy_info = {_POLICY_INFO: _copy(info_space, policy_info)}
    recorded_action = _copy(env.action_space, action)
    observation, reward, done, info = env.step(action)
    num_steps += 1
    is_terminal = done and not info.get('TimeLimit.truncated', False)
    discount = 0.0 if is_terminal else 1.0
    yield {
        **_step(
            recorded_observation, recorded_action, reward, discount, is_first
        ),
        **policy_info,
    }
    is_first = False
    if done or num_steps == max_steps:
      last = _step(
          _copy(env.observation_space, observation),
          _zeros(env.action_space),
          0.0,
          discount,
          is_first,
          is_last=True,
          is_terminal=is_terminal,
      )
      if info_space is not None:
        last[_POLICY_INFO] = _zeros(info_space)
      yield last
      return


def _step(
    observation,
    action,
    reward,
    discount,
    is_first,
    is_last=False,
    is_terminal=False,
):
  return {
      rlds.OBSERVATION: observation,
      rlds.ACTION: action,
      rlds.REWARD: np.float32(reward),
      rlds.DISCOUNT: np.float32(discount),
      rlds.IS_FIRST: is_first,
      rlds.IS_LAST: is_last,
      rlds.IS_TERMINAL: is_terminal,
  }


def _zeros(space):
  if isinstance(space, gym.spaces.Dict):
    return {key: _zeros(value) for key, value in space.spaces.items()}
  return np.zeros(space.shape, space.dtype)


def _copy(space, value):
  if isinstance(space, gym.spaces.Dict):
    return {key: _copy(space[key], value[key]) for key in space.spaces}
  # Some environments return float64 although their space is float32.
  return np.array(value, space.dtype)
