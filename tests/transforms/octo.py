"""Functions of Octo for the steps of an episode, in NumPy."""

import numpy as np
import tensorflow as tf


def take(steps, rows):
  return tf.nest.map_structure(lambda leaf: leaf[list(rows)].copy(), steps)


def thin(keep, steps, lost=0):
  """Keeps some steps, and adds the rewards of the dropped steps after them."""
  length = len(steps['x']) - lost
  kept_steps = [t for t in range(length) if keep(steps, t) or t == length - 1]
  result = take(steps, kept_steps)
  for t, end, row in zip(kept_steps, [*kept_steps[1:], length], range(length)):
    result['reward'][row] = steps['reward'][t:end].sum(dtype=np.float32)
    result['discount'][row] = np.prod(steps['discount'][t:end])
  result['is_first'] = np.arange(len(kept_steps)) == 0
  return result


def waypoints(steps, every=3):
  """Octo's `gnm_dataset_transform`, except for the last step."""
  state = steps['observation']['state']
  distances = np.linalg.norm(np.diff(state[:, :2], axis=0), axis=1)
  moves = np.flatnonzero(distances)
  scale = 1
  if len(moves):
    length = np.linalg.norm(steps['action'][moves[0], :2])
    scale = length / distances[moves[0]]
  result = thin(lambda _, t: t % every == 0, steps, (len(state) - 1) % every)
  pose = result['observation']['state']
  action = np.zeros([len(pose), 2], np.float32)
  for t, (here, there) in enumerate(zip(pose, pose[1:])):
    cos, sin = np.cos(here[2]), np.sin(here[2])
    way = (there - here)[:2] * scale
    action[t] = way @ [[cos, -sin], [sin, cos]]
  is_last = np.arange(len(pose)) == len(pose) - 1
  result = {**result, 'action': action, 'is_last': is_last}
  return {**result, 'has_action': ~is_last} if 'has_action' in steps else result


def binarized(commands):
  """Octo's `binarize_gripper_actions`."""
  result = np.empty_like(commands)
  carry = commands[-1]
  for i in reversed(range(len(commands))):
    if not 0.05 <= commands[i] <= 0.95:
      carry = float(commands[i] > 0.95)
    result[i] = carry
  return result


def absolute(commands):
  """Octo's `rel2abs_gripper_actions`, with -1 for open and 1 for closed."""
  states = np.where(commands < -0.1, 1, np.where(commands > 0.1, -1, 0))
  given = states[states != 0]
  carry = -given[0] if len(given) else 1
  result = []
  for state in states:
    carry = state or carry
    result.append(carry / 2 + 0.5)
  return np.array(result)
