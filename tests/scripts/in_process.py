"""Runs a program with many command lines in one process.

    python -m tests.scripts.in_process convert < commands.json > results.json

The commands are a list of lists of arguments, and the results a list of exit
codes and outputs, both in JSON. So TensorFlow is imported only once.
"""

from collections.abc import Sequence
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from typing import NamedTuple
from unittest import mock

from absl import app
from absl import flags
from absl.testing import flagsaver

from rlds2reverb.jobs import usage
from tests.scripts import programs


class Result(NamedTuple):
  """The result of a program.

  Attributes:
    code: the exit code.
    stdout: the standard output.
    stderr: the standard error.
  """

  code: int
  stdout: str
  stderr: str


def run(
    program: str, commands: Sequence[Sequence[str]], **variables: str
) -> list[Result]:
  """Runs a program with each list of arguments in one new process."""
  with tempfile.TemporaryFile('w+') as results:
    subprocess.run(
        [sys.executable, '-m', 'tests.scripts.in_process', program],
        env=programs.environment(**variables),
        input=json.dumps(commands),
        stdout=results,
        text=True,
        check=True,
    )
    results.seek(0)
    return [Result(*each) for each in json.load(results)]


def _call(program, run_program, arguments) -> Result:
  """Calls a program like the first `app.run` of a process."""
  app._register_and_parse_flags_with_usage.done = False
  flags.FLAGS.unparse_flags()
  stdout, stderr = io.StringIO(), io.StringIO()
  with flagsaver.flagsaver(), mock.patch.object(
      sys, 'argv', [program, *arguments]
  ), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
    try:
      run_program()
      code = 0
    except SystemExit as e:
      code = e.code
      if isinstance(code, str):  # Python prints it at exit.
        stderr.write(code)
        code = 1
    except BaseException as e:
      code = f'{type(e).__name__}: {e}'
  return Result(code or 0, stdout.getvalue(), stderr.getvalue())


def main(program: str) -> None:
  commands = json.load(sys.stdin)
  # Output of C++ code must not be part of the results.
  results = os.dup(1)
  os.dup2(2, 1)
  with mock.patch.object(usage, 'run') as run_with:
    runpy.run_module(f'scripts.{program}', run_name='__main__')
  flags.FLAGS([program], known_only=True)
  usage.quiet_logs()
  (call,) = run_with.call_args_list
  done = [
      _call(program, lambda: usage.run(*call.args, **call.kwargs), each)
      for each in commands
  ]
  os.write(results, json.dumps(done).encode())


if __name__ == '__main__':
  main(sys.argv[1])
