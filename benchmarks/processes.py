"""Peak memory of a benchmark's cases, each in a process of its own."""

import pathlib
import subprocess
import sys
from typing import Sequence

from absl import flags

from benchmarks import data


def peak_mib() -> float:
  """Returns the most memory that this process had at a time.

  This is what `getrusage` has as `ru_maxrss`, but without the memory of the
  process that started this one, which Linux counts there.
  """
  status = pathlib.Path('/proc/self/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields['VmHWM'].split()[0]) / 1024


def run(module: str, args: Sequence[str], timeout_seconds: int) -> float:
  """Runs a program with the flags of `data` that this one has.

  Args:
    module: the name of the program.
    args: its other flags, that make it print `peak_mib()` last.
    timeout_seconds: the longest that it may take.

  Returns:
    Its peak, in MiB.
  """
  of_data = [
      flag.serialize()
      for flag in flags.FLAGS.get_key_flags_for_module(data)
      if flag.present
  ]
  done = subprocess.run(
      [sys.executable, '-m', module, *args, *of_data],
      check=True,
      stdout=subprocess.PIPE,
      text=True,
      timeout=timeout_seconds,
  )
  return float(done.stdout.split()[-1])
