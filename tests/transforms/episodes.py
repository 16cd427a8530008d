"""Random episodes of 1 to 12 steps, with what transforms look for."""

import numpy as np

_COMMANDS = np.array([0, 0.02, 0.3, 0.7, 0.98, 1, -1, -0.05, 0.05])


def _episode(rng, length, has_action):
  """Returns random steps; `x` is an action of one number."""
  step = np.arange(length)
  action = rng.normal(size=(length, 3)).astype(np.float32)
  action[:, 2] = rng.choice(_COMMANDS, length)
  action[rng.random(length) < 0.3] = 0
  state = rng.normal(size=(length, 9))
  state[rng.random(length) < 0.3] = state[0]
  image = rng.integers(0, 256, (length, 2, 2, 3)).astype(np.uint8)
  image[rng.random(length) < 0.4] = 0
  steps = {
      'observation': {
          'state': state,
          'image': image,
          'words': np.array([b'', b'a', b'bc'], object)[
              rng.integers(0, 3, length)
          ],
          'both': {'a': image, 'b': image[::-1].copy()},
      },
      'action': action,
      'x': action[:, 2].astype(np.float64),
      'reward': rng.normal(size=length).astype(np.float32),
      'discount': rng.choice([1, 0.5], length).astype(np.float32),
      'is_first': step == 0,
      'is_last': step == length - 1,
      'is_terminal': (step == length - 1) & (rng.random() < 0.5),
  }
  if has_action:
    steps['has_action'] = (step < length - 1) | (rng.random() < 0.5)
  return steps


def make(has_action):
  """Returns nine episodes, whose last actions count or not."""
  rng = np.random.default_rng(8)
  lengths = [4, 1, 2, 12, 1, 3, 7, 2, 5]
  made = [_episode(rng, length, has_action) for length in lengths]
  # The first row of a batch opens the gripper, which is nothing to the others.
  made[3]['action'][0, 2] = made[3]['x'][0] = -1
  return made
