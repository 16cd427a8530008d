"""Runs the programs of scripts/ in new processes, like a user."""

import os
import subprocess
import sys
from typing import Any


def environment(**variables: str) -> dict[str, str]:
  """Returns the environment variables of a program, with additional ones."""
  return {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), **variables}


def run(
    program: str, *args: str, preexec_fn: Any = None, **variables: str
) -> Any:
  """Runs a program until it exits; returns the `CompletedProcess`."""
  return subprocess.run(
      [sys.executable, '-m', f'scripts.{program}', *args],
      env=environment(**variables),
      capture_output=True,
      text=True,
      check=False,
      preexec_fn=preexec_fn,
  )


def start(program: str, *args: str, **variables: str) -> subprocess.Popen:
  """Starts a program in a new process group, with its output as text."""
  return subprocess.Popen(
      [sys.executable, '-m', f'scripts.{program}', *args],
      env=environment(**variables),
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
      start_new_session=True,
  )
