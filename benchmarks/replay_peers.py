r"""Cases of other replay buffers, for `benchmarks.replay`.

They are measured where they are installed. They have no lock file: together
they ask for versions that TensorFlow 2.15 excludes, so pip finds none. Without
what they ask for, these work in one environment on Python 3.11:

    pip install --no-deps cpprb==11.0.0
    pip install --no-deps flashbax==0.1.3 jax==0.4.30 jaxlib==0.4.30 \
        chex==0.1.86 flax==0.8.5 optax==0.2.3 orbax-checkpoint==0.5.20 \
        scipy==1.13.1 tensorstore==0.1.64 toolz opt_einsum msgpack rich \
        pygments markdown-it-py mdurl nest_asyncio pyyaml typing_extensions
    pip install --no-deps torchrl==0.14.1 tensordict==0.15.3 pyvers

and PyTorch as in requirements/frameworks.txt.
"""

import importlib.util
from typing import Any, List

import numpy as np

from benchmarks import data
from benchmarks import timing

CPPRB = 'cpprb, a call a batch'
CPPRB_PRIORITIZED = 'cpprb, prioritized with updates'
TORCHRL = 'TorchRL, in memory'


def cases(
    columns: Any, size: int, batches: int, folder: str
) -> List[timing.Case]:
  """Returns the cases of the replay buffers that are installed.

  Args:
    columns: all frames, a `Trajectory` of tensors `[N, ...]`.
    size: the number of transitions of a batch.
    batches: the number of batches of a run.
    folder: where TorchRL maps its memory.
  """
  found = cpprb_cases(columns, size, batches)
  if importlib.util.find_spec('flashbax'):
    found += _flashbax_cases(columns, size, batches)
  if importlib.util.find_spec('torchrl'):
    found += _torchrl_cases(columns, size, batches, folder)
  return found


def cpprb_cases(columns: Any, size: int, batches: int) -> List[timing.Case]:
  """Returns the cases of cpprb, if it is installed; see `cases`."""
  if not importlib.util.find_spec('cpprb'):
    return []
  import cpprb  # pylint: disable=g-import-not-at-top

  count = len(columns.reward)
  following = np.roll(columns.observation.numpy(), -1, 0)
  arrays = {
      'obs': columns.observation.numpy(),
      'act': columns.action.numpy(),
      'rew': columns.reward.numpy(),
      'next_obs': following,
      'done': (columns.step_type.numpy() == 2).astype(np.float32),
  }
  spec = {
      name: {'shape': leaf.shape[1:] or 1, 'dtype': leaf.dtype}
      for name, leaf in arrays.items()
  }
  uniform = cpprb.ReplayBuffer(count, spec)
  prioritized = cpprb.PrioritizedReplayBuffer(count, spec, alpha=0.6)
  uniform.add(**arrays)
  prioritized.add(**arrays)

  def sample():
    for _ in range(batches):
      uniform.sample(size)

  def update():
    for _ in range(batches):
      batch = prioritized.sample(size, beta=0.4)
      errors = batch['weights'] + np.abs(batch['rew'][:, 0])
      prioritized.update_priorities(batch['indexes'], errors)

  return [
      timing.Case(CPPRB, batches * size, sample),
      timing.Case(CPPRB_PRIORITIZED, batches * size, update),
  ]


def _flashbax_cases(columns: Any, size: int, batches: int) -> List[timing.Case]:
  """Returns the cases of flashbax: transitions, in a compiled loop."""
  # pylint: disable=g-import-not-at-top
  import flashbax
  import jax

  step = {
      'observation': columns.observation.numpy(),
      'action': columns.action.numpy(),
      'reward': columns.reward.numpy(),
  }
  kwargs = dict(
      add_batch_size=1,
      sample_sequence_length=2,
      period=1,
      min_length_time_axis=2,
      max_length_time_axis=len(columns.reward),
      sample_batch_size=size,
  )
  cases = []
  for name, buffer in (
      ('flashbax, compiled', flashbax.make_trajectory_buffer(**kwargs)),
      (
          'flashbax, prioritized with updates',
          flashbax.make_prioritised_trajectory_buffer(
              **kwargs, priority_exponent=0.6
          ),
      ),
  ):
    state = buffer.init(jax.tree_util.tree_map(lambda leaf: leaf[0], step))
    state = buffer.add(
        state, jax.tree_util.tree_map(lambda leaf: leaf[np.newaxis], step)
    )

    def body(index, carry, buffer=buffer, name=name):
      state, total = carry
      batch = buffer.sample(state, jax.random.PRNGKey(index))
      reward = batch.experience['reward'][:, 0]
      if 'prioritized' in name:
        state = buffer.set_priorities(state, batch.indices, abs(reward) + 1)
      # All columns count, as they do for who trains on them.
      return state, total + sum(
          leaf.sum() for leaf in jax.tree_util.tree_leaves(batch.experience)
      )

    loop = jax.jit(
        lambda state, body=body: jax.lax.fori_loop(
            0, batches, body, (state, 0.0)
        )[1]
    )

    def run(loop=loop, state=state):
      loop(state).block_until_ready()

    cases.append(timing.Case(name, batches * size, run))
  return cases


def _torchrl_cases(
    columns: Any, size: int, batches: int, folder: str
) -> List[timing.Case]:
  """Returns the cases of TorchRL: transitions, and slices of two."""
  # pylint: disable=g-import-not-at-top
  import tensordict
  import torch
  from torchrl.data import replay_buffers

  length = data.EPISODE_LENGTH.value
  arrays = {
      'observation': columns.observation.numpy(),
      'action': columns.action.numpy(),
      'reward': columns.reward.numpy(),
      'done': columns.step_type.numpy() == 2,
      'episode': np.arange(len(columns.reward)) // length,
  }
  rows = {name: torch.from_numpy(leaf) for name, leaf in arrays.items()}
  rows['next_observation'] = torch.roll(rows['observation'], -1, 0)
  in_memory = lambda: replay_buffers.LazyTensorStorage(len(columns.reward))
  mapped = lambda: replay_buffers.LazyMemmapStorage(
      len(columns.reward), scratch_dir=folder
  )
  slices = lambda: replay_buffers.SliceSampler(slice_len=2, traj_key='episode')
  cases = []
  for name, storage, sampler, count in (
      (TORCHRL, in_memory, None, size),
      ('TorchRL, mapped', mapped, None, size),
      ('TorchRL, slices of 2', in_memory, slices, 2 * size),
  ):
    buffer = replay_buffers.TensorDictReplayBuffer(
        storage=storage(), batch_size=count, sampler=sampler and sampler()
    )
    buffer.extend(tensordict.TensorDict(rows, batch_size=[len(columns.reward)]))

    def run(buffer=buffer):
      for _ in range(batches):
        buffer.sample()

    cases.append(timing.Case(name, batches * size, run))
  return cases
