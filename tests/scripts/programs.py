"""Runs the programs of scripts/ as a user runs them."""

import os
import subprocess
import sys
from typing import Any


def environment(**variables: str) -> dict[str, str]:
  """Returns the environment of a program, with more variables."""
  return {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), **variables}


def run(
    program: str, *args: str, preexec_fn: Any = None, **variables: str
) -> Any:
  """Runs a program to its end; returns the `CompletedProcess`."""
  return subprocess.run(
      [sys.executable, '-m', f'scripts.{program}', *args],
      env=environment(**variables),
      capture_output=True,
      text=True,
      check=False,
      preexec_fn=preexec_fn,
  )


def start(program: str, *args: str, **variables: str) -> subprocess.Popen:
  """Starts a program in a process group; its output is a stream of text."""
  return subprocess.Popen(
      [sys.executable, '-m', f'scripts.{program}', *args],
      env=environment(**variables),
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
      start_new_session=True,
  )
