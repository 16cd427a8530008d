"""Compares conversion jobs with one and two workers with the library.

    python -m benchmarks.jobs

Every job writes a Reverb checkpoint. Its rate includes the complete program:
imports, plan, tasks, joining their outputs, and summary. For the library, a
program that calls it is measured in the same way.
"""

import os
import subprocess
import sys
import tempfile

from absl import app
from absl import flags

from benchmarks import data
from benchmarks import timing

_STEPS = flags.DEFINE_integer('steps', 1_000_000, 'Steps of vectors.')
_IMAGE_STEPS = flags.DEFINE_integer('image_steps', 60_000, 'Steps of images.')
_PEAK_STEPS = flags.DEFINE_list(
    'peak_steps', ['100000', '3000000'], 'The numbers of steps for peak memory.'
)

_LIBRARY = """
import sys
import rlds2reverb
rlds2reverb.write_reverb_checkpoint(
    rlds2reverb.load_episodes(sys.argv[1]), sys.argv[2],
    rlds2reverb.TableItems('transitions'),
    options=rlds2reverb.ConversionOptions(identity='benchmark'))
"""


def _run(command, folder):
  """Runs a program that writes a checkpoint; returns its peak MiB."""
  with tempfile.TemporaryDirectory() as work:
    output = os.path.join(work, 'checkpoint')
    command = [part.format(folder=folder, output=output) for part in command]
    with open(os.path.join(work, 'log'), 'w+', encoding='utf-8') as log:
      # `wait4` returns the memory of the program and of its child processes.
      process = subprocess.Popen(command, stdout=log, stderr=log)
      _, status, usage = os.wait4(process.pid, 0)
      log.seek(0)
      if status:
        raise RuntimeError(f'{command} failed:\n{log.read()}')
  return usage.ru_maxrss / 1024


def _job(num_workers):
  return [
      sys.executable,
      '-m',
      'scripts.convert',
      '--dataset={folder}',
      '--checkpoint_dir={output}',
      f'--num_workers={num_workers}',
  ]


def _compare(num_steps, images):
  print('Images:' if images else 'Vectors:')
  library = 'calling the library'
  commands = {
      library: [sys.executable, '-c', _LIBRARY, '{folder}', '{output}'],
      'a job, 1 worker': _job(1),
      'a job, 2 workers': _job(2),
  }
  with data.temporary_episodes(num_steps, images) as folder:
    cases = [
        timing.Case(
            name,
            num_steps,
            lambda command=command: _run(command, folder) and None,
            None if name == library else library,
        )
        for name, command in commands.items()
    ]
    timing.compare(cases, [('1 worker', 'a job, 1 worker')])


def main(_) -> None:
  if _STEPS.value:
    _compare(_STEPS.value, images=False)
  if _IMAGE_STEPS.value:
    _compare(_IMAGE_STEPS.value, images=True)
  for num_steps in map(int, _PEAK_STEPS.value):
    with data.temporary_episodes(num_steps) as folder:
      peak = _run(_job(1), folder)
    print(f'Peak memory of a job of {num_steps:,} steps: {peak:,.0f} MiB')


if __name__ == '__main__':
  app.run(main)
