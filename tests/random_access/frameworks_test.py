"""PyTorch and JAX, each in an environment that need not have TensorFlow.

Their Pythons are named by the variables TORCH_PYTHON and JAX_PYTHON. Without
them it is this Python, where it has the framework; else tests are skipped.
"""

import importlib.util
import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

import rlds2reverb
from rlds2reverb import random_access

_ROOT = os.path.dirname(os.path.dirname(rlds2reverb.__file__))
_MAX_LINES = 60


def _python_of(framework):
  python = os.environ.get(f'{framework.upper()}_PYTHON')
  needed = [framework] + ['grain'] * (framework == 'jax')
  if not python and all(map(importlib.util.find_spec, needed)):
    return sys.executable
  return python


class FrameworksTest(parameterized.TestCase):

  @parameterized.parameters(
      ('torch', 'examples.pytorch_batches', 'fork'),
      ('torch', 'examples.pytorch_batches', 'spawn'),
      ('jax', 'examples.jax_batches'),
  )
  def test_example_runs_in_the_framework(self, framework, module, *args):
    python = _python_of(framework)
    if not python:
      self.skipTest(f'There is no {framework} here.')
    folder = self.create_tempdir().full_path
    data, indexes = f'{folder}/data', f'{folder}/indexes'
    rlds2reverb.datasets.record_episodes('Pendulum-v1', data, 2, max_steps=9)
    random_access.open_batches(
        {'pendulum': data}, indexes, 8, random_access.ActionChunks(2, 3)
    )
    done = subprocess.run(
        [python, '-m', module, data, indexes, *args],
        cwd=_ROOT,
        env={**os.environ, 'PYTHONPATH': _ROOT}
        if python != sys.executable
        else None,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    self.assertRegex(done.stdout, '20 steps, a loss of [0-9]')
    self.assertEndsWith(done.stdout, 'the same batch: True\n')
    path = os.path.join(_ROOT, *module.split('.')) + '.py'
    with open(path, encoding='utf-8') as f:
      code = f.read().split('"""', 2)[2]
    self.assertLess(len(code.splitlines()), _MAX_LINES)


if __name__ == '__main__':
  absltest.main()
