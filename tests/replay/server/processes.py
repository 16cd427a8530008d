"""Processes of their own, for servers that can be killed and their users."""

import os
import signal
import subprocess
import sys


def command(script, *args):
  """Returns the command that runs a Python script with arguments."""
  return [sys.executable, '-c', script, *map(str, args)]


class Process:
  """A Python script that is told when to go on, and says where it is.

  The script prints lines that begin with a word, and reads lines. Libraries
  print lines of their own, which are skipped.
  """

  def __init__(self, script, *args):
    self._process = subprocess.Popen(
        command(script, *args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
        },
    )

  def tell(self, line):
    self._process.stdin.write(f'{line}\n')
    self._process.stdin.flush()

  def wait_for(self, word):
    """Returns the rest of the next line that begins with `word`."""
    for line in self._process.stdout:
      if line.startswith(word):
        return line[len(word) :]
    raise RuntimeError(f'The process ended without {word!r}.')

  def kill(self):
    if self._process.poll() is None:
      os.kill(self._process.pid, signal.SIGKILL)
    self._process.wait()
    self._process.stdin.close()
    self._process.stdout.close()


class ServerProcess(Process):
  """A server in a process of its own, that can be killed.

  The script prints READY, reads a port, or 0 for any, and prints PORT with the
  one that it listens on.
  """

  def __init__(self, script, *args):
    super().__init__(script, *args)
    self.wait_for('READY')

  def serve(self, port=0):
    self.tell(port)
    self.port = int(self.wait_for('PORT'))
    self.address = f'localhost:{self.port}'
