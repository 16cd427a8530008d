"""Robot data as a trainer prepares it, from files to batches, checked in numpy.

load -> map_fields -> gripper -> actions of states -> normalise by the
statistics of the mixture -> goals -> mix -> chunks -> replay buffer
"""

import os

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import rlds2reverb
from rlds2reverb import datasets
from rlds2reverb import fields
from rlds2reverb import statistics
from rlds2reverb import transforms
from rlds2reverb import windows
from tests import golden
from tests import tfds_files

_FEATURES = {
    'instruction': tfds.features.Text(),
    'steps': tfds.features.Dataset(
        {
            'state': tfds.features.Tensor(shape=(7,), dtype=np.float32),
            'control': tfds.features.Tensor(shape=(7,), dtype=np.float32),
            'paraphrase': tfds.features.Text(),
            'is_first': np.bool_,
            'is_last': np.bool_,
            'is_terminal': np.bool_,
        }
    ),
}
_MAPPING = fields.StepMapping(
    observation={
        'state': 'state',
        'words': '../instruction',
        'other_words': 'paraphrase',
    },
    action='control',
    reward=None,
    discount=None,
)
_MASK = [True] * 6 + [False]
_LENGTHS = {'bridge': [5, 1, 9, 3], 'kuka': [4, 12, 2]}  # steps


def _episode(rng, number, length, gripper):
  control = rng.normal(size=(length, 7))
  control[:, 6] = rng.choice(gripper, length)
  return {
      'instruction': f'task {number}',
      'steps': [
          {
              'state': rng.normal(size=7).astype(np.float32),
              'control': control[step].astype(np.float32),
              'paraphrase': f'other {number}',
              'is_first': step == 0,
              'is_last': step == length - 1,
              'is_terminal': False,
          }
          for step in range(length)
      ],
  }


def _raw():
  rng = np.random.default_rng(0)
  grippers = {'bridge': [0.01, 0.4, 0.99], 'kuka': [-1.0, 0.0, 1.0]}
  return {
      name: [
          _episode(rng, 10 * place + number, length, grippers[name])
          for number, length in enumerate(lengths)
      ]
      for place, (name, lengths) in enumerate(_LENGTHS.items())
  }


def _open(name, gripper):
  """Returns whether the gripper is open at each transition, in loops."""
  opened = []
  if name == 'bridge':  # absolute: an unclear one is what comes next
    for step in range(len(gripper)):
      later = [x for x in gripper[step:] if not 0.05 <= x <= 0.95]
      opened.append(float(later[0] > 0.95) if later else gripper[-1])
  else:  # relative: -1 opens
    commands = [x for x in gripper if x]
    state = float(commands[0] > 0) if commands else 1.0
    for command in gripper:
      state = {-1.0: 1.0, 1.0: 0.0}.get(float(command), state)
      opened.append(state)
  return np.array(opened)


@pytest.mark.long
class RoboticsTest(tf.test.TestCase, parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.raw = _raw()
    # The actions of the transitions before they are normalised.
    self.actions, self.states = {}, {}
    for name, episodes in self.raw.items():
      for episode in episodes:
        state, control = (
            np.stack([step[field] for step in episode['steps']])
            for field in ('state', 'control')
        )
        moved = state[1:, :6] - state[:-1, :6]
        opened = _open(name, control[:-1, 6])
        key = episode['instruction'].encode()
        self.states[key] = state
        self.actions[key] = np.concatenate([moved, opened[:, None]], 1)
    pooled = np.concatenate(list(self.actions.values())).astype(np.float64)
    self.low, self.high = np.quantile(pooled, [0.01, 0.99], axis=0)

  def _prepared(self):
    """Returns the episodes of both data sets, mixed, and the normalisation."""
    grippers = {
        'bridge': transforms.BinarizeGripper(),
        'kuka': transforms.RelativeToAbsoluteGripper(),
    }
    sources = {}
    for name, raw in self.raw.items():
      directory = os.path.join(self.create_tempdir().full_path, '1.0.0')
      tfds_files.write(directory, _FEATURES, raw)
      sources[name] = transforms.transform_episodes(
          fields.map_fields(datasets.load_episodes(directory), _MAPPING),
          [
              grippers[name],
              transforms.ActionsFromStates('observation/state', size=6),
          ],
      )
    found = statistics.compute_statistics(sources, ['action'])
    normalize = transforms.normalize_by_statistics(
        found.whole, 'action', 'quantiles', mask=_MASK
    )
    changes = [
        normalize,
        transforms.RelabelGoals(field='observation/state', seed=1),
        transforms.DrawInstruction(
            ['observation/words', 'observation/other_words'],
            'observation/instruction',
            seed=2,
        ),
        transforms.SelectFields(exclude=['observation/other_words']),
    ]
    sources = {
        name: transforms.transform_episodes(source, changes)
        for name, source in sources.items()
    }
    for source in sources.values():
      self.assertTrue(golden.has_batches(source))
    mixed = datasets.mix_datasets(sources, stop_when='all')
    return mixed.map(lambda mixed: mixed.element), normalize

  @parameterized.parameters(False, True)
  def test_from_files_to_batches(self, reverb_server):
    episodes, normalize = self._prepared()

    def chunk(episode):
      steps = windows.stack_and_chunk(
          episode['steps'], 2, 3, goal_step='goal_step'
      )
      return {**episode, 'steps': steps}

    episodes = transforms.transform_episodes(
        episodes,
        [
            chunk,
            # Agents see what is in the observation.
            transforms.RenameFields(
                {
                    name: f'observation/{name}'
                    for name in (
                        'goal',
                        'goal_step',
                        'action_mask',
                        'observation_mask',
                    )
                }
            ),
        ],
    )
    buffer = rlds2reverb.open_replay_buffer(
        episodes, rlds2reverb.Windows(1), reverb_server=reverb_server
    )
    frames = 64 * 8
    seen = set()
    for batch, _ in buffer.as_dataset(sample_batch_size=64, num_steps=1).take(
        8
    ):
      batch = tf.nest.map_structure(lambda leaf: leaf.numpy()[:, 0], batch)
      for row in range(64):
        frame = tf.nest.map_structure(lambda leaf: leaf[row], batch)  # pylint: disable=cell-var-from-loop
        seen.add(self._check(frame, normalize))
        frames -= 1
    self.assertEqual(frames, 0)
    self.assertGreater(len(seen), 25)  # of 36 steps

  def _check(self, frame, normalize):
    """Checks a frame against the raw data; returns which one it is."""
    observation = frame.observation
    key = observation['words'][-1]
    states, actions = self.states[key], self.actions[key]
    other = key.replace(b'task', b'other')
    self.assertIn(observation['instruction'][-1], (key, other))
    step = int(np.flatnonzero((states == observation['state'][-1]).all(1))[0])
    self.assertAllEqual(observation['state'][0], states[max(step - 1, 0)])
    self.assertAllEqual(observation['observation_mask'], [step > 0, True])
    goal, last = int(observation['goal_step']), len(states) - 1
    self.assertBetween(goal, min(step + 1, last), last)
    self.assertAllEqual(observation['goal'], states[goal])
    for place, at in enumerate((step - 1, step)):
      for ahead in range(3):
        is_real = at >= 0 and at + ahead < goal
        self.assertEqual(observation['action_mask'][place, ahead], is_real)
        if not is_real:
          continue
        raw = actions[at + ahead]
        scaled = 2 * (raw - self.low) / (self.high - self.low + 1e-8) - 1
        expected = np.where(_MASK, np.clip(scaled, -1, 1), raw)
        found = frame.action[place, ahead]
        self.assertAllClose(found, expected, 1e-5, 1e-5)
        # What a robot would do with it.
        given = normalize.invert({'action': found})['action']
        bounded = np.clip(raw, self.low, self.high)
        self.assertAllClose(given, np.where(_MASK, bounded, raw), 1e-4, 1e-4)
    return key, step


if __name__ == '__main__':
  tf.test.main()
