"""Runs programs: errors as messages, exit codes, signals, and quiet logs.

A program ends with

    if __name__ == '__main__':
      usage.run(main)
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import gc
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn
import warnings

from absl import app
from absl import flags
from absl import logging
from etils import epy

with epy.lazy_imports():  # So that `--help` is fast.
  import tensorflow as tf

  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import errors as errors_lib

# `--help` lists flags under the program that defines them.
flags.disclaim_key_flags()

# Exit codes of programs.
_FAILED = 1  # An error in the data, on a disk or of a server.
_WRONG_USAGE = 2  # An error in the command line or a config.
_INTERRUPTED = 130  # As of a shell after SIGINT.
# A signal to a process group may arrive twice, as timeout(1) also sends it to
# the program. Later signals are from the user.
_SECONDS_OF_ONE_SIGNAL = 1.0
# With fewer bytes, TensorFlow aborts with a C++ stack trace when it starts
# threads, and a Reverb server blocks indefinitely. The smallest data set needs
# 2.45 GB on two processors.
_MIN_ADDRESS_SPACE = 2_500_000_000
# Parts of messages that no user can act on: TFDS about dtypes of its features,
# TensorFlow about names of TF-Agents' nests, TF-Agents about parts of saved
# policies that are not used here, and Beam about Google Cloud.
_USELESS_MESSAGES = (
    'FeatureConnector.dtype',
    'valid tf.function parameter name',
    'Could not serialize policy.distribution()',
    'apitools not found',
)
# Lines of C++ that no user can act on: TensorFlow about CUDA, when it is
# imported, and the log of a Reverb server.
_CUDA_LINES = 'Unable to register cu|absl::InitializeLog'
REVERB_LINES = r'^\[reverb/'


def run(
    main: Callable[..., int | None],
    errors: Callable[[], tuple[type[Exception], ...]] = tuple,
    *,
    takes_more: Callable[[], bool] = lambda: False,
) -> None:
  """Runs a program, and prints errors that its user can fix as one message.

  The exit code is 2 if the command line or a config is wrong, 130 after SIGINT
  or SIGTERM, and 1 after any other error. A signal that arrives when the exit
  code is determined does not change it.

  Args:
    main: the program, which returns its exit code, or None for 0.
    errors: returns the classes of errors that users can fix, in addition to
      OSError, SyntaxError, ValueError and ModuleNotFoundError.
    takes_more: returns, after the flags are parsed, whether `main` takes other
      arguments. By default they are errors.
  """

  def parse(argv):
    try:
      arguments = flags.FLAGS(argv, known_only=True)
      if not takes_more():
        flags.FLAGS.unparse_flags()
        arguments = flags.FLAGS(argv)
        if len(arguments) > 1:
          unknown = ' '.join(arguments[1:])
          raise app.UsageError(f'Unknown arguments: {unknown}.')
      for name, flag in flags.FLAGS.flag_values_dict().items():
        if flags.FLAGS[name].present:
          check_value(f'--{name}', flag)
      return arguments
    except (app.UsageError, flags.Error) as e:
      _refuse(e)
    except SystemExit:
      sys.exit(0)  # After `--help`, absl would exit with 1.

  def call(argv):
    try:
      with StopSignals():
        check_memory()
        quiet_logs()
        code = main(*argv[1:])
      sys.exit(code)
    except (app.UsageError, flags.Error) as e:
      _refuse(e)
    except (ModuleNotFoundError, OSError, SyntaxError, ValueError) as e:
      _fail(e)
    except Exception as e:
      # Last, as importing TensorFlow may fail.
      if isinstance(e, errors()):
        _fail(e)
      elif isinstance(e, tf.errors.OpError):
        _fail(errors_lib.message_of(e))
      raise

  atexit.register(_finish)
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  code: Any = _FAILED
  try:
    try:
      app.run(call, flags_parser=parse)
    finally:
      print(end='', flush=True)
  except SystemExit as e:
    code = e.code
  except KeyboardInterrupt:
    _exit_on_signals(_INTERRUPTED)
    print('Interrupted.', file=sys.stderr)
    code = _INTERRUPTED
  except OSError as e:
    # Python would print buffered output when it exits, and another message.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not isinstance(e, BrokenPipeError):
      print(e, file=sys.stderr)
  _exit_on_signals(code)
  sys.exit(code)


@contextlib.contextmanager
def wrong_usage():
  """Converts errors in values of flags and configs to UsageErrors."""
  try:
    yield
  except (FileNotFoundError, SyntaxError, ValueError) as e:
    raise app.UsageError(str(e)) from e


class StopSignals:
  """Waits for SIGINT (Ctrl-C) or SIGTERM; a context manager.

  Before `hold`, a signal raises KeyboardInterrupt. It is raised again every two
  seconds until the block is left, because `__del__` may drop it, and C++ may
  convert it to another error. After `hold`, a signal ends `wait`. A second
  signal, at least a second later, ends the program immediately.
  """

  def __init__(self):
    self._is_held = False
    self._is_interrupted = False
    self._signaled_at: float | None = None
    self._stop = threading.Event()

  def __enter__(self) -> StopSignals:
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGALRM
    self._handlers = {n: signal.signal(n, self._on_signal) for n in numbers}
    return self

  def __exit__(self, unused_type, error, unused_traceback) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in self._handlers.items():
      signal.signal(number, handler)
    if self._is_interrupted and isinstance(error, Exception):
      raise KeyboardInterrupt from error

  def hold(self) -> None:
    """Lets later signals end `wait` instead of raising an error."""
    self._is_held = True

  def wait(self, seconds: float | None = None) -> bool:
    """Waits for a signal; returns whether one arrived.

    Args:
      seconds: the time limit; none by default.
    """
    return self._stop.wait(seconds)

  def _on_signal(self, number: int, unused_frame: Any) -> None:
    if number != signal.SIGALRM:
      now = time.monotonic()
      if self._signaled_at is None:
        self._signaled_at = now
      elif now - self._signaled_at < _SECONDS_OF_ONE_SIGNAL:
        return
      else:
        os._exit(_INTERRUPTED)
    if self._is_held:
      self._stop.set()
    else:
      self._is_interrupted = True
      # Deleting incomplete graphs raises errors, which Python would print.
      sys.unraisablehook = lambda _: None
      signal.setitimer(signal.ITIMER_REAL, 2)
      raise KeyboardInterrupt


def require(*names: str) -> None:
  """Raises a UsageError if a flag has no value."""
  for name in names:
    if not flags.FLAGS[name].value:
      raise app.UsageError(f'Flag --{name} must have a value.')


def refuse_ignored(names: Sequence[str], reason: str) -> None:
  """Raises a UsageError if the command line has flags without an effect.

  Bindings of a config may be for another program or command line.

  Args:
    names: the names of the flags.
    reason: why they have no effect.
  """
  for name in names:
    if flags.FLAGS[name].present:
      raise app.UsageError(f'--{name} has no effect {reason}. Remove it.')


def check_value(name: str, value: Any) -> None:
  """Raises a UsageError if a value is valid for no flag."""
  for item in value if isinstance(value, list) else [value]:
    if isinstance(item, str) and not item:
      raise app.UsageError(f'{name} must not be empty.')
    if isinstance(item, float) and not math.isfinite(item):
      raise app.UsageError(f'{name} must be a finite number, but is {item}.')
    if isinstance(item, int) and abs(item) >= 1 << 63:
      raise app.UsageError(f'{name} must be below 2**63, but is {item}.')


def check_memory() -> None:
  """Raises an OSError if `ulimit -v` is too low for TensorFlow to start."""
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  if 0 < limit < _MIN_ADDRESS_SPACE:
    raise OSError(
        f'The address space is limited to {limit / 1e6:,.0f} MB (ulimit -v),'
        f' and TensorFlow needs {_MIN_ADDRESS_SPACE / 1e6:,.0f} MB and more.'
    )


def _exit_on_signals(code: Any) -> None:
  """Makes signals exit immediately with the exit code of the program."""
  exit_code = code if isinstance(code, int) else int(code is not None)
  for number in signal.SIGINT, signal.SIGTERM:
    signal.signal(number, lambda *_: os._exit(exit_code))


def _finish() -> None:
  """Makes Python exit fast, and with the exit code of the program."""
  # Python would restore the default handlers.
  for number in signal.SIGINT, signal.SIGTERM:
    signal.signal(number, signal.SIG_IGN)
  # Collecting garbage in all of TensorFlow would take a second.
  gc.freeze()


def _fail(error: Any) -> NoReturn:
  if isinstance(error, BrokenPipeError):
    raise error  # Nobody reads the output, as after `| head`.
  logging.debug('The error was raised here:', exc_info=True)
  print(str(error), file=sys.stderr)
  sys.exit(_FAILED)


def _refuse(error: Exception) -> NoReturn:
  """Exits after an error in the command line, with one line."""
  message = ' '.join(str(error).split())
  if isinstance(error, flags.UnrecognizedFlagError):
    name = error.flagname
    hint = checks.did_you_mean(name, flags.FLAGS, prefix='--')
    message = f'There is no flag --{name}.{hint}'
  if not message.endswith(('.', '?')):
    message += '.'
  print(f'{message} See --help.', file=sys.stderr)
  sys.exit(_WRONG_USAGE)


def quiet_logs() -> None:
  """Hides log messages that no user can act on."""
  logging.set_verbosity(logging.WARNING)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  # AutoGraph compiles TF-Agents' comparisons with `is`, which warns.
  warnings.filterwarnings('ignore', category=SyntaxWarning)
  with quiet_stderr(_CUDA_LINES):
    # Imported here because the imports print.
    import tensorflow
    import tf_agents  # noqa: F401
  tensorflow.get_logger().setLevel('ERROR')
  logging.get_absl_handler().addFilter(_is_useful)


@contextlib.contextmanager
def quiet_stderr(pattern: str) -> Iterator[None]:
  """Removes lines from the output to stderr, including the output of C++.

  Other lines are printed at the end of the block, or when the process dies.

  Args:
    pattern: an extended regular expression of `grep` for the lines to remove.
  """
  sys.stderr.flush()
  with subprocess.Popen(
      ['grep', '-vE', pattern],
      stdin=subprocess.PIPE,
      stdout=2,
      start_new_session=True,  # It survives a signal to the group.
  ) as grep:
    assert grep.stdin is not None
    stderr = os.dup(2)
    os.dup2(grep.stdin.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)


def _is_useful(record) -> bool:
  # Dask's loggers have their own levels. Its engine reports lost connections.
  if record.name.partition('.')[0] == 'distributed':
    return False
  return not any(text in str(record.msg) for text in _USELESS_MESSAGES)
