"""Memory of reading robot data in random order, with less of it than data.

    python -m benchmarks.robot_memory

Two cameras of 64x64 JPEGs, with which many batches take minutes. A process of
its own, without TensorFlow, reads and decodes batches in two threads. Where
this is run as root, a control group limits its memory, the cache of files
included; elsewhere `ulimit -v` limits its addresses. It prints how much memory
the process has (VmRSS) as it goes on, and by how much it differs.
"""

import contextlib
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

_LIMIT_MB = flags.DEFINE_integer('limit_mb', 128, 'Memory of the process.')
_EPISODES = flags.DEFINE_integer('episodes', 400, 'Episodes of 250 steps.')
_BATCHES = flags.DEFINE_integer('batches', 100_000, 'Batches of 4 items.')
_CASE = flags.DEFINE_string('case', '', 'write or read; both by default.')
_FOLDER = flags.DEFINE_string('folder', '', 'Where the data is.')

# Where control groups are, and the file that has the limit of one.
_GROUPS = (
    ('/sys/fs/cgroup', 'memory.max'),
    ('/sys/fs/cgroup/memory', 'memory.limit_in_bytes'),
)
_STEPS, _SIZE, _BATCH = 250, 64, 4


def _write(directory: str) -> None:
  # pylint: disable=g-import-not-at-top
  from benchmarks import robot_data
  from rlds2reverb import random_access

  robot_data.write(directory, _EPISODES.value, _STEPS, _SIZE)
  random_access.build_index(directory, os.path.join(_FOLDER.value, 'index'))
  paths = pathlib.Path(directory).iterdir()
  num_bytes = sum(path.stat().st_size for path in paths)
  print(f'{num_bytes / 1e6:.0f} MB of data, {_LIMIT_MB.value} MB of memory')


def _group(root: str, number: int) -> pathlib.Path:
  return pathlib.Path(root, f'robot_memory_{number}')


def _limit_memory() -> None:
  """Limits the memory of this process."""
  num_bytes = _LIMIT_MB.value << 20
  for root, name in _GROUPS:
    group = _group(root, os.getppid())
    try:
      group.mkdir(exist_ok=True)
      if (group / name).exists():
        (group / name).write_text(str(num_bytes))
        (group / 'cgroup.procs').write_text(str(os.getpid()))
        print(f'limited by {name} of a control group')
        return
      group.rmdir()  # It is an ordinary folder.
    except OSError:
      pass
  resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
  print('limited by ulimit -v')


def _read() -> None:
  sys.modules['tensorflow'] = None  # type: ignore
  _limit_memory()
  # pylint: disable=g-import-not-at-top
  from rlds2reverb import random_access

  size = (_SIZE, _SIZE)
  items = random_access.Items(
      random_access.Index(os.path.join(_FOLDER.value, 'index')),
      random_access.ActionChunks(1, 2),
      images={'observation/eye': size, 'observation/wrist': size},
  )
  found = []
  with random_access.Batches(items, _BATCH).iterate() as batches:
    for number, _ in zip(range(_BATCHES.value + 1), batches):
      if number == 100 or (number and number % (_BATCHES.value // 10) == 0):
        status = pathlib.Path('/proc/self/status').read_text()
        fields = dict(line.split(':', 1) for line in status.splitlines())
        found.append(int(fields['VmRSS'].split()[0]) / 1024)
        print(f'{number:8} batches {found[-1]:8.1f} MB', flush=True)
  print(f'{max(found) - found[0]:.1f} MB more than after 100 batches')


def main(_) -> None:
  if _CASE.value == 'write':
    _write(os.path.join(_FOLDER.value, 'data', '1.0.0'))
  elif _CASE.value:
    _read()
  else:
    with tempfile.TemporaryDirectory() as folder:
      for case in ('write', 'read'):
        module = [sys.executable, '-m', 'benchmarks.robot_memory']
        own = [f'--case={case}', f'--folder={folder}']
        subprocess.run([*module, *own, *sys.argv[1:]], check=True)
      for root, _ in _GROUPS:
        with contextlib.suppress(OSError):
          _group(root, os.getpid()).rmdir()


if __name__ == '__main__':
  app.run(main)
