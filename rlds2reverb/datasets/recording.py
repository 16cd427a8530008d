"""Records episodes of an environment as an RLDS data set on disk."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import environments
from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import policies
from rlds2reverb.datasets import progress_bar
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds

# The field of a step for the info that a policy returns with its action.
_POLICY_INFO = 'policy_info'


def record_episodes(
    environment: environments.EnvironmentLike,
    directory: files.PathLike,
    num_episodes: int,
    *,
    policy: Any = None,
    max_steps: int | None = None,
    split: str = 'train',
    seed: int = 0,
    progress: bool = False,
    file_format: str = saving.TFRECORD,
) -> str:
  """Records episodes of an environment as an RLDS data set.

      record_episodes('CartPole-v1', '~/data/cartpole', 50)
      record_episodes('ALE/Breakout-v5', '~/data/breakout', 5)
      record_episodes('dm_control/walker-walk', '~/data/walker', 20)
      record_episodes(gymnasium.make_vec('CartPole-v1', 8), directory, 1000)

  An episode of `T` transitions has `T + 1` steps. The action and reward of its
  last step are zeros, and its discount is the discount of the last transition;
  they carry no meaning. An episode that the environment terminates is terminal:
  `is_terminal` is set on its last step, and the discount of the transition into
  that step is 0. An episode that is truncated, as by a time limit, is not
  terminal, and its discounts are 1, or the discounts of dm_env and TF-Agents.

  Observations and actions have the structure, shapes and dtypes of the
  environment's spaces or specs; tuples become dicts with the keys '0', '1', ...
  because the TFDS format has no tuples. Images (uint8 or uint16, with 1, 3 or 4
  channels) are stored as PNG. Rewards and discounts are float32.

  Args:
    environment: the id of a Gymnasium environment, such as `CartPole-v1`, or
      `dm_control/DOMAIN-TASK`; an environment of Gymnasium, Gym 0.23 to 0.26,
      dm_env or TF-Agents (a `PyEnvironment`); or a function that makes one. The
      environments of a vectorized one (of Gymnasium, or a batched one of
      TF-Agents) record at the same time, as many episodes each or one more, so
      that short episodes are not preferred. Episodes are written in the order
      in which they end. An environment that is made here is closed.
    directory: the path of a directory that does not exist yet or is empty, or
      a URL that TensorFlow can write to. The directory becomes visible when it
      is complete.
    num_episodes: the number of episodes to record.
    policy: a function from an observation to an action, a policy of TF-Agents,
      or the folder of a saved one. By default actions are uniformly random. If
      it has a method `reset`, that is called before the first observation of
      each episode. If it has an attribute `info_space` that is a space of
      Gymnasium or Gym, and not None, it returns pairs of an action and an
      element of that space, which becomes the field `policy_info` of the step;
      in an episode's last step this is zeros. With a vectorized environment
      observations, actions and infos are batched, and `reset` is called with a
      bool array that marks the environments that begin an episode.
    max_steps: the number of transitions after which an episode is truncated.
    split: the name of the split.
    seed: the seed of the environment and of the random actions, an int. An
      environment of dm_env is seeded when it is made.
    progress: whether to show a progress bar; lines in a log.
    file_format: the format of the files, `tfrecord` or `array_record`, which
      TFDS's `data_source` and Grain read.

  Returns:
    The directory, for `load_episodes`.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    FileNotFoundError: if there is no saved policy in the policy's folder.
    OSError: if `directory` cannot be written. This is checked before the
      environment is made.
    ValueError: if `num_episodes` or `max_steps` is not a positive integer; if
      there is no such environment or `file_format`, or a package is not
      installed; if a space has elements without a fixed shape; if an
      observation, action or reward does not fit its space; or if `max_steps` is
      shorter than an episode of a vectorized environment that resets itself.
  """
  checks.check_choice('file_format', file_format, saving.FILE_FORMATS)
  checks.check_positive('num_episodes', num_episodes)
  if max_steps is not None:
    checks.check_positive('max_steps', max_steps)
  directory = files.expand(directory)
  with files.new_folder(directory, [loading.INFO_FILE]) as folder:
    env = environments.make_environment(environment, seed)
    try:
      recorder = _Recorder(env, policies.make_policy(policy, env.num_envs))
      episodes = recorder.episodes(num_episodes, max_steps, seed)
      if progress:
        episodes = progress_bar.ProgressBar.track(
            episodes,
            num_episodes,
            unit='episodes',
            description=f'Recording {env.name}',
        )
      saving.write_episodes(
          episodes,
          folder,
          name=env.name,
          version=saving.name_and_version(directory)[1],
          description=f'Episodes of the environment {env.name}.',
          features=features_lib.features_from_spec(recorder.episode_spec()),
          split=split,
          file_format=file_format,
      )
    finally:
      env.close()
  return directory


class _Recorder:
  """Runs a policy in one or more environments, and makes RLDS episodes."""

  def __init__(
      self, env: environments.Environment, policy: policies.Policy | None
  ):
    self._env, self._policy = env, policy
    self._reset_policy = getattr(policy, 'reset', None)
    self._info = None
    info_space = getattr(policy, 'info_space', None)
    if info_space is not None:
      self._info = environments.zeros_of_space(info_space, _POLICY_INFO)
    # A step of zeros.
    self._empty = {
        rlds.OBSERVATION: _copy(env.zero_observation, env.zero_observation),
        rlds.ACTION: _copy(env.zero_action, env.zero_action),
        **dict.fromkeys((rlds.REWARD, rlds.DISCOUNT), np.float32(0)),
        **dict.fromkeys(rlds.FLAGS, np.bool_(False)),
    }
    if self._info is not None:
      self._empty[_POLICY_INFO] = _copy(self._info, self._info)

  def episode_spec(self) -> dict[str, Any]:
    """Returns the spec of an episode with stacked steps."""

    def spec(zeros):
      dtype = tf.string if zeros.dtype == object else zeros.dtype
      return tf.TensorSpec([None, *zeros.shape], dtype)

    return {rlds.STEPS: tree.map_structure(spec, self._empty)}

  def episodes(
      self, num_episodes: int, max_steps: int | None, seed: int
  ) -> Iterator[dict[str, Any]]:
    """Yields episodes in the order in which they end."""
    env = self._env
    num_envs = env.num_envs or 1
    # What each environment still has to record.
    remaining = np.full(num_envs, num_episodes // num_envs)
    remaining[: num_episodes % num_envs] += 1
    steps: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]
    observation = env.reset(seed)
    env.action_space.seed(seed)
    is_first = np.ones(num_envs, bool)
    while True:
      if self._reset_policy and is_first.any():
        self._reset_policy(*(() if env.num_envs is None else (is_first,)))
      started = self._start_steps(observation)
      action, infos = self._act(observation)
      actions = env.split_actions(action)
      for step, env_action, info in zip(started, actions, infos):
        step.update(self._recorded(rlds.ACTION, env.zero_action, env_action))
        if self._info is not None:
          step.update(self._recorded(_POLICY_INFO, self._info, info))
      result = env.step(action)
      is_over = np.array(result.is_last)
      for i in np.flatnonzero(~result.is_reset & (remaining > 0)):
        steps[i].append(
            {
                **self._empty,
                **started[i],
                rlds.REWARD: result.reward[i],
                rlds.DISCOUNT: result.discount[i],
                rlds.IS_FIRST: not steps[i],
            }
        )
        is_over[i] |= len(steps[i]) == max_steps
        if not is_over[i]:
          continue
        last = self._recorded(
            rlds.OBSERVATION, env.zero_observation, result.next_observations[i]
        )
        steps[i].append(
            {
                **self._empty,
                **last,
                rlds.DISCOUNT: result.discount[i],
                rlds.IS_LAST: True,
                rlds.IS_TERMINAL: result.is_terminal[i],
            }
        )
        yield {rlds.STEPS: steps[i]}
        steps[i] = []
        remaining[i] -= 1
      if not remaining.any():
        return
      observation = env.restart(result, is_over)
      is_first = env.is_first(result, is_over)

  def _start_steps(self, observation: Any) -> list[dict[str, Any]]:
    """Returns the steps that begin with the observations.

    Observations and actions are copied immediately, because environments and
    policies may write the next ones into the same arrays, or change their
    inputs.
    """
    env = self._env
    return [
        self._recorded(rlds.OBSERVATION, env.zero_observation, part)
        for part in env.split_observations(observation)
    ]

  def _act(self, observation: Any) -> Any:
    """Returns an action, and a list of the policy's infos."""
    num_envs = self._env.num_envs
    if self._policy is None:
      return self._env.sample_action(), [None] * (num_envs or 1)
    action = self._policy(observation)
    if self._info is None:
      return action, [None] * (num_envs or 1)
    action, info = action
    if num_envs is None:
      return action, [info]
    return action, [_row(self._info, info, i) for i in range(num_envs)]

  def _recorded(self, name: str, like: Any, value: Any) -> dict[str, Any]:
    """Returns a field of a step with a copy of its value."""
    try:
      return {name: _copy(like, value)}
    except (KeyError, OverflowError, TypeError, ValueError) as e:
      raise ValueError(
          f'The {name} of {self._env.name} does not fit its space: expected'
          f' {_described(like)}, got {_described(value)}.'
      ) from e


def _copy(like: Any, value: Any) -> Any:
  """Copies a value into arrays that have the shapes and dtypes of others."""
  if isinstance(like, dict):
    return {key: _copy(part, value[key]) for key, part in like.items()}
  if isinstance(like, tuple):
    if len(like) != len(value):
      raise ValueError
    return {
        str(i): _copy(part, part_value)
        for i, (part, part_value) in enumerate(zip(like, value))
    }
  # Some environments return float64 although their space is float32.
  copy = np.array(value, like.dtype)
  if copy.shape != like.shape:
    raise ValueError
  return copy


def _row(like: Any, batch: Any, index: int) -> Any:
  """Returns an element of a batch with the structure of an element."""
  if isinstance(like, dict):
    return {key: _row(part, batch[key], index) for key, part in like.items()}
  if isinstance(like, tuple):
    return tuple(_row(*pair, index) for pair in zip(like, batch))
  return batch[index]


def _described(nest: Any) -> Any:
  """Describes the structure, shapes and dtypes of a nest."""
  if isinstance(nest, dict):
    return {key: _described(value) for key, value in nest.items()}
  if isinstance(nest, tuple):
    return tuple(map(_described, nest))
  array = np.asarray(nest)
  return f'{array.dtype} {list(array.shape)}'
