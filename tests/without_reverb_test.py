"""Tests of functions and error messages without Reverb.

Each test runs a separate program, in which `import reverb` fails, whether
Reverb is installed here or not.
"""

import os
import subprocess
import sys
import tempfile

from absl.testing import absltest
import pytest

import rlds2reverb

_WITHOUT_REVERB = """
import sys
sys.modules['reverb'] = None  # Importing it is a ModuleNotFoundError.
import numpy as np
import rlds2reverb
import tensorflow as tf

def episode(length):
  steps = np.arange(length)
  return {'steps': {
      'observation': steps.astype(np.float32)[:, np.newaxis],
      'action': steps.astype(np.int64),
      'reward': steps.astype(np.float32),
      'discount': np.ones(length, np.float32),
      'is_first': steps == 0,
      'is_last': steps == length - 1,
      'is_terminal': steps == length - 1,
  }}

episodes = tf.data.Dataset.from_tensors(episode(6)).repeat(3)
folder = sys.argv[1]
"""


@pytest.mark.long
class WithoutReverbTest(absltest.TestCase):

  def run_program(self, program):
    """Runs a program without Reverb; returns its output."""
    with tempfile.TemporaryDirectory() as folder:
      done = subprocess.run(
          [sys.executable, '-c', _WITHOUT_REVERB + program, folder],
          cwd=os.path.dirname(os.path.dirname(rlds2reverb.__file__)),
          capture_output=True,
          text=True,
          check=False,
      )
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout.splitlines()

  def test_every_module_is_imported(self):
    lines = self.run_program("""
import importlib, pkgutil
for module in pkgutil.walk_packages(rlds2reverb.__path__, 'rlds2reverb.'):
  if not module.name.startswith('rlds2reverb.jobs.beam'):  # It needs Beam.
    importlib.import_module(module.name)
    print(module.name)
""")
    self.assertIn('rlds2reverb.replay.server.push', lines)

  def test_converts_and_samples_and_saves(self):
    lines = self.run_program("""
from rlds2reverb import datasets, statistics, windows
datasets.save_episodes(episodes, folder + '/rlds')
episodes = rlds2reverb.load_episodes(folder + '/rlds')
frames = list(rlds2reverb.convert_rlds_to_trajectories(episodes))
print(len(frames), frames[5].discount.numpy())
rows = [windows.n_step_transitions(e['steps'], 2, gamma=0.5) for e in episodes]
print(rows[0].columns['reward'].numpy().tolist())
print(statistics.compute_statistics(episodes).fields['reward'].mean)
buffer = rlds2reverb.open_replay_buffer(folder + '/rlds')
batch, info = next(iter(buffer.as_dataset(sample_batch_size=4, num_steps=2)))
print(batch.observation.shape, info.key.shape, type(info).__name__)
""")
    self.assertEqual(lines[0], '18 0.0')
    # Rewards 0 to 4 of five transitions: r_t + r_{t+1} / 2, and the last alone.
    self.assertEqual(lines[1], '[0.5, 2.0, 3.5, 5.0, 4.0]')
    self.assertEqual(float(lines[2]), 2.0)  # of 0 to 4; the last step has none.
    self.assertEqual(lines[3], '(4, 2, 1) (4, 2) SampleInfo')

  def test_writes_merges_and_reads_checkpoints(self):
    lines = self.run_program("""
from rlds2reverb.replay.checkpoint import episodes as checkpoint_episodes
table = rlds2reverb.TableItems('items')
for name in 'ab':
  print(rlds2reverb.write_reverb_checkpoint(
      episodes, folder + '/' + name, table,
      options=rlds2reverb.trajectories.ConversionOptions(identity=name)))
merged = folder + '/merged'
print(rlds2reverb.replay.merge_reverb_checkpoints(
    [folder + '/a', folder + '/b'], merged))
read = checkpoint_episodes.read_checkpoint_episodes(merged, 'items')
print([len(e['steps']['reward']) for e in read.as_numpy_iterator()])
""")
    # Six frames make five items of two.
    self.assertEqual(lines[:2], ["{'items': 15}"] * 2)
    self.assertEqual(lines[2], "{'items': 30}")
    self.assertEqual(lines[3], '[6, 6, 6, 6, 6, 6]')

  def test_functions_that_need_reverb_raise(self):
    lines = self.run_program("""
rlds2reverb.write_reverb_checkpoint(
    episodes, folder + '/a', rlds2reverb.TableItems('items'))
for call in (
    lambda: rlds2reverb.restore_reverb_server(folder + '/a'),
    lambda: rlds2reverb.open_replay_buffer(episodes, reverb_server=True),
    lambda: rlds2reverb.open_replay_buffer(None, reverb_server='localhost:1'),
    lambda: rlds2reverb.write_rlds_to_reverb(
        episodes, 'localhost:1', rlds2reverb.TableItems('items')),
    lambda: rlds2reverb.replay.create_reverb_table('items', (), 1),
):
  try:
    call()
  except ModuleNotFoundError as error:
    print(error)
""")
    self.assertLen(lines, 5)
    for line in lines:
      self.assertStartsWith(line, 'This needs Reverb, which is not installed: ')


if __name__ == '__main__':
  absltest.main()
