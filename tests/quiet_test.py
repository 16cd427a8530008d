"""Tests of what programs write to stderr without being asked."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb import datasets
from rlds2reverb import formats

_HAS_TORCH = importlib.util.find_spec('torch') is not None


def _collect():
  for length in (3, 5):
    yield {
        'observation': {
            'image': np.zeros([length + 1, 8, 8, 3], np.uint8),
            'state': np.zeros([length + 1, 3], np.float32),
        },
        'action': np.zeros([length, 2], np.float32),
        'reward': np.ones(length, np.float32),
        'is_terminal': True,
    }


class QuietTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # TFDS has a separate feature for images.
    folder = tempfile.mkdtemp()
    cls.addClassCleanup(shutil.rmtree, folder)
    cls.data = datasets.save_episodes(
        formats.load(_collect), os.path.join(folder, 'images')
    )

  def stderr_of(self, program):
    done = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(program), str(self.data)],
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(sys.path),
            'TF_CPP_MIN_LOG_LEVEL': '2',  # What TensorFlow says of processors.
        },
        cwd=self.create_tempdir().full_path,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return done.stderr

  @pytest.mark.long
  def test_reading_images_prints_nothing(self):
    program = """
        import sys
        import tree
        import rlds2reverb
        from rlds2reverb import random_access

        replay_buffer = rlds2reverb.open_replay_buffer(sys.argv[1])
        frames, _ = next(replay_buffer.as_dataset(2, 2).as_numpy_iterator())
        batches = random_access.open_batches(
            {'images': sys.argv[1]}, 'indexes', batch_size=2,
            windows=random_access.ActionChunks(1, 2),
            images={'observation/image': (8, 8)})
        batch = batches[0]
        # All are still there when Python ends.
        """
    if _HAS_TORCH:
      program += """
        import torch
        with batches.iterate() as iterator:
          tree.map_structure(torch.as_tensor, [frames, batch, next(iterator)])
        """
    self.assertEqual(self.stderr_of(program), '')

  @pytest.mark.long
  def test_gym_prints_nothing_if_this_library_is_imported_first(self):
    program = ['import gym', 'from rlds2reverb.trajectories import report']
    self.assertStartsWith(
        self.stderr_of('\n'.join(program)), 'Gym has been unmaintained'
    )
    program = [*reversed(program), 'import examples.replace_tf_agents']
    self.assertEqual(self.stderr_of('\n'.join(program)), '')


if __name__ == '__main__':
  absltest.main()
