"""One interface to Gymnasium, Gym, dm_env and TF-Agents environments.

`make_environment` takes whatever a user has, the id of an environment, an
environment or a function that makes one, and returns an `Environment`, which
runs one environment or a vector of them. `record_episodes` records from it.
"""

import abc
from collections.abc import Callable
import contextlib
import importlib
import importlib.util
import re
from typing import Any, NamedTuple

import gymnasium
from gymnasium.vector import utils as vector_utils
import numpy as np
import tree

# An id, an environment, or a function that makes an environment.
EnvironmentLike = str | Any | Callable[[], Any]

# The packages that register environments when they are imported, with their
# names for pip and the ids of their environments.
_PACKAGES = {
    'ale_py': ('ale-py', r'ALE/|.*(NoFrameskip|Deterministic|-ram)'),
    'gymnasium_robotics': (
        'gymnasium-robotics',
        'Fetch|HandManipulate|HandReach|Adroit|AntMaze|PointMaze|FrankaKitchen',
    ),
}
_DM_CONTROL = 'dm_control/'
_LAST = 2  # `StepType.LAST` of dm_env and of TF-Agents.


class Step(NamedTuple):
  """The result of a step of `E` environments; `E` is 1 if not vectorized.

  Attributes:
    observation: the observation for the policy: batched in a vector of
      environments.
    next_observations: a list of the `E` observations that the actions led to.
      They differ from `observation` where an environment was reset in the same
      step.
    reward: float32 `[E]`.
    discount: float32 `[E]`: 0 where `is_terminal`.
    is_terminal: bool `[E]`: whether the environment ended the episode.
    is_last: bool `[E]`: whether the episode is over, terminated or truncated.
    is_reset: bool `[E]`: whether the environment was reset in this step, and
      ignored its action. There is no transition then.
  """

  observation: Any
  next_observations: list[Any]
  reward: np.ndarray
  discount: np.ndarray
  is_terminal: np.ndarray
  is_last: np.ndarray
  is_reset: np.ndarray


class Environment(abc.ABC):
  """`E` environments that run at the same time; usually one.

  Attributes:
    name: the name of the environment, and of the data set.
    num_envs: `E` of a vectorized environment, whose observations and actions
      are batched, or None.
    zero_observation: zeros with the structure, shapes and dtypes of an
      observation.
    zero_action: zeros with the structure, shapes and dtypes of an action.
    action_space: the space that `sample_action` draws from: of batches in a
      vectorized environment of Gymnasium. Call its `seed` first.
  """

  name: str
  num_envs: int | None = None
  zero_observation: Any
  zero_action: Any
  action_space: Any

  @abc.abstractmethod
  def reset(self, seed: int | None = None) -> Any:
    """Resets all environments, and returns their observations."""

  @abc.abstractmethod
  def step(self, action: Any) -> Step:
    """Acts in all environments."""

  @abc.abstractmethod
  def restart(self, step: Step, is_over: np.ndarray) -> Any:
    """Resets the environments whose episode is over, if they do not themselves.

    Args:
      step: the last step.
      is_over: bool `[E]`: whether the episode is over, or was cut.

    Returns:
      The observations of all environments for the policy.

    Raises:
      ValueError: if an episode was cut, and its environment cannot be reset
        alone.
    """

  def is_first(self, step: Step, is_over: np.ndarray) -> np.ndarray:
    """Returns which observations of `restart` begin an episode, bool `[E]`."""
    del step
    return is_over

  def sample_action(self) -> Any:
    """Returns a random action, batched for a vectorized environment."""
    return self.action_space.sample()

  def split_observations(self, observation: Any) -> list[Any]:
    """Returns the observations of each environment."""
    return [observation]

  def split_actions(self, action: Any) -> list[Any]:
    """Returns the actions of each environment."""
    return [action]

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the environment, if it was made here."""


def make_environment(
    environment: EnvironmentLike, seed: int = 0
) -> Environment:
  """Makes the interface of an environment.

  Args:
    environment: one of

      - the id of a Gymnasium environment, such as `CartPole-v1`; the ids
        of ale-py (`ALE/Breakout-v5`) and Gymnasium-Robotics are known if these
        packages are installed, and `package:Id` imports another package first;
      - `dm_control/DOMAIN-TASK`, such as `dm_control/walker-walk`;
      - an environment of Gymnasium, Gym 0.23 to 0.26, dm_env or TF-Agents
        (a `PyEnvironment`), or a vectorized environment of Gymnasium or a
        batched one of TF-Agents;
      - a function without arguments that returns such an environment.
    seed: the seed of a dm_control environment that is made here.

  Returns:
    The environment. `close` closes it if it was made here, and does nothing if
    the caller has made it.

  Raises:
    ValueError: if there is no such environment, if a package that it needs is
      not installed, or if it is none of the above.
  """
  name, owned = None, True
  if isinstance(environment, str):
    name = environment
    environment = _make_by_id(environment, seed)
  elif isinstance(environment, type) or not hasattr(environment, 'step'):
    if not callable(environment):
      raise ValueError(
          'An environment must be an id, an environment of Gymnasium, Gym,'
          ' dm_env or TF-Agents, or a function that makes one, but is a'
          f' {type(environment).__name__}.'
      )
    environment = environment()
  else:
    owned = False
  name = name or _name(environment)
  try:
    return _adapt(environment, name, owned)
  except BaseException:
    if owned and hasattr(environment, 'close'):
      environment.close()
    raise


def _adapt(environment: Any, name: str, owned: bool) -> Environment:
  """Returns the interface of an environment, by its library."""
  if isinstance(environment, gymnasium.vector.VectorEnv):
    return _GymnasiumVector(environment, name, owned)
  # TF-Agents' wrappers forward unknown attributes to an environment of Gym, so
  # they come first.
  if callable(getattr(environment, 'time_step_spec', None)):
    if getattr(environment, 'batched', False):
      return _BatchedTimeSteps(environment, name, owned)
    return _TimeSteps(environment, name, owned)
  has = lambda attribute: hasattr(environment, attribute)
  if has('num_envs') and not isinstance(environment, gymnasium.Env):
    # An attribute of Gym's and Stable Baselines3's vectors.
    raise ValueError(
        f'{name} is a vectorized environment of another library than'
        ' Gymnasium. Use gymnasium.make_vec or gymnasium.vector.SyncVectorEnv.'
    )
  if has('observation_space') and has('action_space'):
    return _Gym(environment, name, owned)
  if has('observation_spec') and has('action_spec'):
    return _TimeSteps(environment, name, owned)
  raise ValueError(
      f'{name} has neither observation_space and action_space, as environments'
      ' of Gymnasium and Gym have, nor observation_spec and action_spec, as'
      ' environments of dm_env and TF-Agents have.'
  )


def _name(environment: Any) -> str:
  """Returns the id of an environment, or else the name of its class."""
  try:
    name = environment.spec.id
  except AttributeError:
    name = None
  return name or type(getattr(environment, 'unwrapped', environment)).__name__


def _make_by_id(name: str, seed: int) -> Any:
  """Makes the environment of an id."""
  if name.startswith(_DM_CONTROL):
    return _make_dm_control(name, seed)
  for package in _PACKAGES if ':' not in name else ():
    if name not in gymnasium.registry:
      with contextlib.suppress(ImportError):
        gymnasium.register_envs(importlib.import_module(package))
  try:
    return gymnasium.make(name)
  except (ImportError, gymnasium.error.Error) as e:
    remedy = (
        ' If a package registers it, import the package first, or name it:'
        " 'package:Id'. An environment of Gym is passed as an object:"
        ' gym.make(...).'
    )
    problem = f'There is no Gymnasium environment {name!r}'
    if isinstance(e, gymnasium.error.DependencyNotInstalled):
      problem = f'The Gymnasium environment {name!r} cannot be made'
      remedy = ''  # The error of Gymnasium names the package.
    for module, (package, ids) in _PACKAGES.items():
      if re.match(ids, name) and importlib.util.find_spec(module) is None:
        remedy = f' Install its package: pip install {package}.'
    raise ValueError(f'{problem}: {e}{remedy}') from e


def _make_dm_control(name: str, seed: int) -> Any:
  """Makes a task of the DeepMind Control Suite."""
  try:
    from dm_control import suite
  except ImportError as e:
    raise ValueError(
        f'{name} needs dm_control, which cannot be imported ({e}). Install it:'
        " pip install dm_control 'mujoco<4'."
    ) from e
  task = re.sub(r'-v\d+$', '', name[len(_DM_CONTROL) :])
  domain, _, task = task.partition('-')
  try:
    return suite.load(domain, task, task_kwargs={'random': seed})
  except ValueError as e:
    tasks = ', '.join(
        f'{_DM_CONTROL}{"-".join(task)}' for task in suite.BENCHMARKING
    )
    raise ValueError(
        f'There is no task {task!r} of a domain {domain!r} in dm_control: {e}'
        f' Benchmark tasks are {tasks}.'
    ) from e


class _Gym(Environment):
  """An environment of Gymnasium, or of Gym 0.23 to 0.26.

  Gym before 0.26 has `seed`, `reset` returns the observation alone, and `step`
  returns `done`, with an info `TimeLimit.truncated` where a time limit set it.
  """

  def __init__(self, env: Any, name: str, owned: bool):
    self._env, self._owned = env, owned
    self.name = name
    self.zero_observation = zeros_of_space(env.observation_space, 'observation')
    self.zero_action = zeros_of_space(env.action_space, 'action')
    self.action_space = env.action_space

  def reset(self, seed: int | None = None) -> Any:
    kwargs = {}
    if seed is not None:
      # Gymnasium and Gym 0.26 have no method `seed`; Gym 0.23 to 0.25 do, and
      # not all of their environments take it as an argument of `reset`.
      if not isinstance(self._env, gymnasium.Env) and _has_seed(self._env):
        self._env.seed(seed)
      else:
        kwargs['seed'] = seed
    result = self._env.reset(**kwargs)
    is_pair = (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[1], dict)
        and not isinstance(self.zero_observation, tuple)
    )
    if is_pair or isinstance(self._env, gymnasium.Env):
      return result[0]
    if isinstance(self.zero_observation, tuple):
      # A pair of an observation and infos, or an observation that is a pair.
      return result[0] if _is_like(self.zero_observation, result[0]) else result
    return result

  def step(self, action: Any) -> Step:
    result = self._env.step(action)
    if len(result) == 5:
      observation, reward, is_terminal, is_truncated, _ = result
    else:
      observation, reward, done, info = result
      is_truncated = done and info.get('TimeLimit.truncated', False)
      is_terminal = done and not is_truncated
    return _single_step(
        observation,
        reward,
        float(not is_terminal),
        is_terminal,
        is_terminal or is_truncated,
    )

  def restart(self, step: Step, is_over: np.ndarray) -> Any:
    return self.reset() if is_over[0] else step.observation

  def close(self) -> None:
    if self._owned:
      self._env.close()


class _GymnasiumVector(Environment):
  """A vectorized environment of Gymnasium, in any of its autoreset modes."""

  def __init__(self, env: gymnasium.vector.VectorEnv, name: str, owned: bool):
    self._env, self._owned = env, owned
    self.name, self.num_envs = name, env.num_envs
    self.zero_observation = zeros_of_space(
        env.single_observation_space, 'observation'
    )
    self.zero_action = zeros_of_space(env.single_action_space, 'action')
    self.action_space = env.action_space
    mode = env.metadata.get('autoreset_mode')
    # Gymnasium has an enum, whose values environments may give, too.
    self._mode = str(getattr(mode, 'value', mode) or 'NextStep')
    self._is_reset = np.zeros(env.num_envs, bool)

  def reset(self, seed: int | None = None) -> Any:
    self._is_reset = np.zeros(self.num_envs, bool)
    return self._env.reset(seed=seed)[0]

  def step(self, action: Any) -> Step:
    observation, reward, is_terminal, is_truncated, info = self._env.step(
        action
    )
    is_terminal = np.asarray(is_terminal, bool)
    is_last = is_terminal | np.asarray(is_truncated, bool)
    reached = self.split_observations(observation)
    is_reset = self._is_reset
    if self._mode == 'SameStep':
      for i in np.flatnonzero(is_last):
        reached[i] = _row(
            self._env.single_observation_space, info['final_obs'], i
        )
    elif self._mode == 'NextStep':
      self._is_reset = is_last & ~is_reset
    return Step(
        observation,
        reached,
        np.asarray(reward, np.float32),
        np.asarray(~is_terminal, np.float32),
        is_terminal,
        is_last,
        is_reset,
    )

  def restart(self, step: Step, is_over: np.ndarray) -> Any:
    if self._mode == 'Disabled':
      if not is_over.any():
        return step.observation
      return self._env.reset(options={'reset_mask': is_over})[0]
    if (is_over & ~step.is_last).any():
      raise ValueError(
          f'max_steps cannot cut the episodes of {self.name}, whose vectorized'
          ' environments reset themselves. Make it with'
          ' max_episode_steps=..., or with'
          ' autoreset_mode=AutoresetMode.DISABLED.'
      )
    return step.observation

  def is_first(self, step: Step, is_over: np.ndarray) -> np.ndarray:
    return step.is_reset if self._mode == 'NextStep' else is_over

  def split_observations(self, observation: Any) -> list[Any]:
    return list(vector_utils.iterate(self._env.observation_space, observation))

  def split_actions(self, action: Any) -> list[Any]:
    return list(vector_utils.iterate(self._env.action_space, action))

  def close(self) -> None:
    if self._owned:
      self._env.close()


class _TimeSteps(Environment):
  """An environment of dm_env or TF-Agents, whose `step` returns a time step."""

  def __init__(self, env: Any, name: str, owned: bool):
    self._env, self._owned = env, owned
    self.name = name
    self.zero_observation = _zeros_of_specs(
        env.observation_spec(), 'observation'
    )
    self.zero_action = _zeros_of_specs(env.action_spec(), 'action')
    self.action_space = _space_of_specs(env.action_spec())

  def reset(self, seed: int | None = None) -> Any:
    if seed is not None and hasattr(self._env, 'seed'):
      self._seed(seed)
    return self._env.reset().observation

  def _seed(self, seed: int) -> None:
    # TF-Agents has the method in all environments.
    with contextlib.suppress(NotImplementedError):
      self._env.seed(seed)

  def step(self, action: Any) -> Step:
    time_step = self._env.step(action)
    is_last = int(time_step.step_type) == _LAST
    discount = float(time_step.discount)
    return _single_step(
        time_step.observation,
        time_step.reward,
        discount,
        is_last and discount == 0,
        is_last,
    )

  def restart(self, step: Step, is_over: np.ndarray) -> Any:
    return self.reset() if is_over[0] else step.observation

  def close(self) -> None:
    if self._owned and hasattr(self._env, 'close'):
      self._env.close()


class _BatchedTimeSteps(_TimeSteps):
  """A batched environment of TF-Agents.

  The step after the last one of an episode resets an environment, ignores its
  action and returns the first time step of the next episode.
  """

  num_envs: int

  def __init__(self, env: Any, name: str, owned: bool):
    super().__init__(env, name, owned)
    self.num_envs = env.batch_size

  def _seed(self, seed: int) -> None:
    seeds = [seed + i for i in range(self.num_envs)]
    try:
      self._env.seed(seeds)  # Of a ParallelPyEnvironment.
    except NotImplementedError:
      for env, env_seed in zip(getattr(self._env, 'envs', ()), seeds):
        with contextlib.suppress(NotImplementedError):
          env.seed(env_seed)

  def step(self, action: Any) -> Step:
    time_step = self._env.step(action)
    step_type = np.asarray(time_step.step_type)
    discount = np.asarray(time_step.discount, np.float32)
    is_last = step_type == _LAST
    return Step(
        time_step.observation,
        self.split_observations(time_step.observation),
        np.asarray(time_step.reward, np.float32),
        discount,
        is_last & (discount == 0),
        is_last,
        step_type == 0,
    )

  def restart(self, step: Step, is_over: np.ndarray) -> Any:
    if (is_over & ~step.is_last).any():
      raise ValueError(
          f'max_steps cannot cut the episodes of {self.name}, whose batched'
          ' environments reset themselves. Wrap them with TF-Agents'
          ' TimeLimit.'
      )
    return step.observation

  def is_first(self, step: Step, is_over: np.ndarray) -> np.ndarray:
    return step.is_reset

  def sample_action(self) -> Any:
    actions = [self.action_space.sample() for _ in range(self.num_envs)]
    return tree.map_structure(lambda *rows: np.stack(rows), *actions)

  def split_observations(self, observation: Any) -> list[Any]:
    return _unbatch(observation, self.num_envs)

  def split_actions(self, action: Any) -> list[Any]:
    return _unbatch(action, self.num_envs)


def zeros_of_space(space: Any, path: str) -> Any:
  """Returns zeros with the structure of a Gymnasium or Gym space.

  Args:
    space: a space of numbers or text, or a Dict or Tuple of such spaces.
    path: the path of the field, for errors.

  Raises:
    ValueError: if elements of the space have no fixed shape.
  """
  parts = getattr(space, 'spaces', None)
  kind = type(space).__name__
  if isinstance(parts, dict):
    return {k: zeros_of_space(v, f'{path}/{k}') for k, v in parts.items()}
  if isinstance(parts, (list, tuple)) and kind == 'Tuple':
    return tuple(
        zeros_of_space(part, f'{path}/{i}') for i, part in enumerate(parts)
    )
  if kind == 'Text':
    return np.array('', object)
  if space.shape is None or space.dtype is None:
    raise ValueError(
        f'{path} is in the space {space}, whose elements have no fixed shape'
        ' and cannot be recorded. Wrap the environment so that it returns'
        ' arrays of a fixed shape.'
    )
  return np.zeros(space.shape, space.dtype)


def _zeros_of_specs(specs: Any, path: str) -> Any:
  """Returns zeros with the structure of dm_env's or TF-Agents' specs."""

  def zeros(spec):
    try:
      return np.zeros(spec.shape, np.dtype(spec.dtype))
    except TypeError as e:
      raise ValueError(
          f'The {path} spec {spec} is not one of NumPy arrays. Of a'
          ' TFPyEnvironment, pass the PyEnvironment that it wraps.'
      ) from e

  return tree.map_structure(zeros, _plain(specs))


def _space_of_specs(specs: Any) -> gymnasium.Space:
  """Returns the space of dm_env's or TF-Agents' specs of actions."""
  if hasattr(specs, 'items'):
    parts = {key: _space_of_specs(value) for key, value in specs.items()}
    return gymnasium.spaces.Dict(parts)
  if isinstance(specs, (list, tuple)):
    return gymnasium.spaces.Tuple(map(_space_of_specs, specs))
  low, high = (
      np.broadcast_to(np.asarray(getattr(specs, end, default)), specs.shape)
      for end, default in (('minimum', -np.inf), ('maximum', np.inf))
  )
  dtype = np.dtype(specs.dtype)
  if np.issubdtype(dtype, np.integer):
    limits = np.iinfo(dtype)
    low = np.where(np.isfinite(low), low, limits.min)
    high = np.where(np.isfinite(high), high, limits.max)
  return gymnasium.spaces.Box(
      low.astype(dtype), high.astype(dtype), specs.shape, dtype
  )


def _plain(nest: Any) -> Any:
  """Returns a nest of plain dicts and tuples."""
  if hasattr(nest, 'items'):
    return {key: _plain(value) for key, value in nest.items()}
  if isinstance(nest, (list, tuple)):
    return tuple(map(_plain, nest))
  return nest


def _single_step(
    observation: Any,
    reward: Any,
    discount: float,
    is_terminal: bool,
    is_last: bool,
) -> Step:
  """Returns the step of one environment."""
  return Step(
      observation,
      [observation],
      np.reshape(np.asarray(reward, np.float32), [1]),
      np.array([discount], np.float32),
      np.array([is_terminal], bool),
      np.array([is_last], bool),
      np.zeros(1, bool),
  )


def _has_seed(env: Any) -> bool:
  return callable(getattr(env, 'seed', None))


def _is_like(like: Any, value: Any) -> bool:
  """Returns whether a value has the structure and shapes of zeros."""
  try:
    tree.assert_same_structure(like, _plain(value))
  except (TypeError, ValueError):
    return False
  shapes = [
      [np.shape(leaf) for leaf in tree.flatten(nest)]
      for nest in (like, _plain(value))
  ]
  return shapes[0] == shapes[1]


def _row(space: Any, batch: Any, index: int) -> Any:
  """Returns an element of a batch of elements of a Gymnasium space."""
  if isinstance(space, gymnasium.spaces.Dict):
    # Gymnasium batches the infos of dicts by their keys.
    if isinstance(batch, dict):
      return {k: _row(v, batch[k], index) for k, v in space.spaces.items()}
  return batch[index]


def _unbatch(nest: Any, size: int) -> list[Any]:
  """Returns the rows of a nest of batched arrays."""
  nest = tree.map_structure(np.asarray, nest)
  row = lambda i: tree.map_structure(lambda leaf: leaf[i], nest)
  return [row(i) for i in range(size)]
