"""PyTorch and JAX, each in an environment that need not have TensorFlow.

Their Pythons are named by the variables TORCH_PYTHON and JAX_PYTHON. Without
them it is this Python, where it has the framework; else tests are skipped.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

import rlds2reverb
from rlds2reverb import random_access

_ROOT = os.path.dirname(os.path.dirname(rlds2reverb.__file__))
_MAX_LINES = 60

# Prints batches until it is killed; `%s` is what they are loaded with.
_LOOP = """
import sys
sys.modules['tensorflow'] = None
%s
def main():
  from rlds2reverb import random_access
  batches = random_access.open_batches(
      {'pendulum': sys.argv[1]}, sys.argv[2], 8,
      random_access.ActionChunks(2, 3), replacement=False, seed=1)
  for batch in load(batches, int(sys.argv[3])):
    print(float(batch['observation'].sum()), flush=True)

if __name__ == '__main__':
  main()
"""
_LOADERS = {
    'torch': """
import torch
def load(batches, start):
  return torch.utils.data.DataLoader(
      batches, batch_size=None, sampler=range(start, 1000), num_workers=2)
""",
    'jax': """
import grain.python as grain
def load(batches, start):
  return grain.MapDataset.source(batches).slice(slice(start, None))
""",
}


def _python_of(framework):
  python = os.environ.get(f'{framework.upper()}_PYTHON')
  if python:
    return python
  needed = [framework] + ['grain'] * (framework == 'jax')
  if all(map(importlib.util.find_spec, needed)):
    return sys.executable
  return None


class FrameworksTest(parameterized.TestCase):

  # Where there is no framework, no data is recorded.
  data = folder = ''

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if not any(map(_python_of, _LOADERS)):
      return
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cls.folder = f'{folder.name}/indexes'
    cls.data = f'{folder.name}/data'
    rlds2reverb.datasets.record_episodes(
        'Pendulum-v1', cls.data, num_episodes=2, max_steps=9
    )
    cls.batches = random_access.open_batches(
        {'pendulum': cls.data},
        cls.folder,
        8,
        random_access.ActionChunks(2, 3),
        replacement=False,
        seed=1,
    )

  def start(self, framework, *args):
    python = _python_of(framework)
    if not python:
      self.skipTest(f'There is no {framework} here.')
    return subprocess.Popen(
        [python, *args],
        cwd=_ROOT,
        env={**os.environ, 'PYTHONPATH': _ROOT}
        if python != sys.executable
        else None,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

  @parameterized.parameters(
      ('torch', 'examples.pytorch_batches', 'fork'),
      ('torch', 'examples.pytorch_batches', 'spawn'),
      ('jax', 'examples.jax_batches'),
  )
  def test_the_example(self, framework, module, *args):
    program = self.start(framework, '-m', module, self.data, self.folder, *args)
    printed, _ = program.communicate(timeout=300)
    self.assertEqual(program.returncode, 0)
    self.assertRegex(printed, '20 steps, a loss of [0-9]')
    self.assertEndsWith(printed, 'the same batch: True\n')
    path = os.path.join(_ROOT, *module.split('.')) + '.py'
    with open(path, encoding='utf-8') as f:
      code = f.read().split('"""', 2)[2]
    self.assertLess(len(code.splitlines()), _MAX_LINES)

  @parameterized.parameters(*_LOADERS)
  def test_a_killed_loop_goes_on_with_the_next_batch(self, framework):
    path = os.path.join(self.create_tempdir().full_path, 'loop.py')
    with open(path, 'w', encoding='utf-8') as f:
      f.write(_LOOP % _LOADERS[framework])
    seen = []
    for _ in range(2):
      loop = self.start(framework, path, self.data, self.folder, str(len(seen)))
      seen += [float(loop.stdout.readline()) for _ in range(3)]
      os.killpg(loop.pid, signal.SIGKILL)
      loop.stdout.close()
      loop.wait()
    expected = [
        float(self.batches[number]['observation'].sum()) for number in range(6)
    ]
    self.assertSequenceAlmostEqual(seen, expected, places=3)


if __name__ == '__main__':
  absltest.main()
