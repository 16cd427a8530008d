"""Peak memory and CPU time of processes."""

import contextlib
import pathlib
import subprocess
import sys
from typing import Sequence

from absl import flags
import psutil

from benchmarks import data


def peak_mib() -> float:
  """Returns the most memory that this process had at a time.

  This is what `getrusage` has as `ru_maxrss`, but without the memory of the
  process that started this one, which Linux counts there.
  """
  status = pathlib.Path('/proc/self/status').read_text()
  fields = dict(line.split(':', 1) for line in status.splitlines())
  return int(fields['VmHWM'].split()[0]) / 1024


def cpu_seconds() -> float:
  """Returns the CPU time of this process, and of those that it has started."""
  this = psutil.Process()
  total = 0.0
  for process in (this, *this.children(recursive=True)):
    with contextlib.suppress(psutil.Error):  # It has ended meanwhile.
      # With the times of those that it has waited for.
      total += sum(process.cpu_times()[:4])
  return total


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
