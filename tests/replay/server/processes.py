"""Runs servers in separate processes, which tests can kill."""

import os
import subprocess
import sys

_SCRIPT = """
import threading
import reverb
from tests.replay.server import sampling_test
print('READY', flush=True)
port = int(input()) or None
server = {server}
print('PORT', server.port, flush=True)
threading.Event().wait()
"""


class ServerProcess:
  """A process that starts a server on request.

  Attributes:
    port: the port on which it listens.
    address: its address.
  """

  def __init__(self, server):
    """Starts the process; `server` is an expression of a server on `port`."""
    self._process = subprocess.Popen(
        [sys.executable, '-c', _SCRIPT.format(server=server)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
        },
    )
    self._wait_for('READY')

  def serve(self, port=0):
    """Starts the server on a port, by default on any free port."""
    print(port, file=self._process.stdin, flush=True)
    self.port = int(self._wait_for('PORT'))
    self.address = f'localhost:{self.port}'

  def kill(self):
    self._process.kill()
    self._process.communicate()

  def _wait_for(self, word):
    # Skips the lines that libraries print.
    for line in self._process.stdout:
      if line.startswith(word):
        return line[len(word) :]
    raise RuntimeError(f'The process ended without {word!r}.')
