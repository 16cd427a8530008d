"""Runs programs, and reports errors of the command line.

A program ends with

    if __name__ == '__main__':
      usage.run(main)
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import resource
import signal
import sys
import threading
from typing import Any, Callable, NoReturn, Optional, Sequence, Tuple, Type

from absl import app
from absl import flags
from absl import logging
from etils import epy

from rlds2reverb.jobs import quiet

with epy.lazy_imports():  # After the flags: `--help` is fast.
  import tensorflow as tf

  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import tf_errors

# The flags belong to the program that defines them, in `--help` too.
flags.disclaim_key_flags()

# The exit codes of a program, besides 0. The first: something is wrong with the
# data, a disk or a server. The second: the command line is wrong.
_FAILED = 1
_WRONG_USAGE = 2
# TensorFlow aborts with a C++ stack where it cannot even start its threads, and
# a Reverb server waits for ever there. The smallest data set takes 2.45 GB of
# addresses on two processors.
_LEAST_ADDRESSES = 2_500_000_000


def run(
    main: Callable[..., Optional[int]],
    errors: Callable[[], Tuple[Type[Exception], ...]] = tuple,
    *,
    takes_more: Callable[[], bool] = lambda: False,
) -> None:
  """Runs a program; errors that its user can fix become one message.

  The exit code is 2 if the command line or a config is wrong, whatever the data
  is, and 1 after any other error.

  Args:
    main: the program, which returns its exit code, or None for 0.
    errors: returns the classes of such errors, besides OSError, SyntaxError,
      ValueError and ModuleNotFoundError.
    takes_more: says, when the flags are parsed, whether other arguments are
      passed to `main`. By default they are refused.
  """

  def parse(argv):
    try:
      rest = flags.FLAGS(argv, known_only=True)
      if not takes_more():
        flags.FLAGS.unparse_flags()
        rest = flags.FLAGS(argv)
        if len(rest) > 1:
          raise app.UsageError(f'Unknown arguments: {" ".join(rest[1:])}.')
      for name, flag in flags.FLAGS.flag_values_dict().items():
        if flags.FLAGS[name].present:
          check_value(f'--{name}', flag)
      return rest
    except (app.UsageError, flags.Error) as e:
      _refuse(e)
    except SystemExit:
      sys.exit(0)  # It was `--help`, after which absl would exit with 1.

  def call(argv):
    try:
      check_memory()
      quiet.quiet_logs()
      sys.exit(main(*argv[1:]))
    except (app.UsageError, flags.Error) as e:
      _refuse(e)
    except (ModuleNotFoundError, OSError, SyntaxError, ValueError) as e:
      _fail(e)
    except Exception as e:
      # TensorFlow comes last, as it may be what cannot start.
      if isinstance(e, errors()):
        _fail(e)
      elif isinstance(e, tf.errors.OpError):
        _fail(tf_errors.message_of(e))
      raise

  # At its end, Python would search all of TensorFlow for garbage: one second.
  atexit.register(gc.freeze)
  try:
    try:
      app.run(call, flags_parser=parse)
    finally:
      print(end='', flush=True)
  except OSError as e:
    # Python would print what is left at its end, and a message of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not isinstance(e, BrokenPipeError):
      print(e, file=sys.stderr)
    sys.exit(_FAILED)


@contextlib.contextmanager
def wrong_usage():
  """Turns errors in values of flags and configs into UsageErrors."""
  try:
    yield
  except (FileNotFoundError, SyntaxError, ValueError) as e:
    raise app.UsageError(str(e)) from e


class StopSignals:
  """Waits for SIGINT (Ctrl-C) or SIGTERM; a context manager.

  Until `hold`, either of them raises KeyboardInterrupt: again at once where
  Python drops it, as in `__del__`, and every two seconds until the block is
  left, as C++ may turn it into another error. After `hold`, they end `wait`. A
  second signal ends the program at once.

  After an interrupt, Python reports no errors that it drops: graphs that are
  left half made raise them when they are deleted.
  """

  def __init__(self):
    self._is_held = False
    self._is_interrupted = False
    self._stop = threading.Event()

  def __enter__(self) -> 'StopSignals':
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGALRM
    self._handlers = {n: signal.signal(n, self._on_signal) for n in numbers}
    self._unraisablehook = sys.unraisablehook
    sys.unraisablehook = self._on_unraisable
    return self

  def __exit__(self, unused_type, error, unused_traceback) -> None:
    if self._is_interrupted:
      sys.unraisablehook = lambda _: None
    else:
      sys.unraisablehook = self._unraisablehook
    signal.setitimer(signal.ITIMER_REAL, 0)
    self._release(*self._handlers)
    if self._is_interrupted and isinstance(error, Exception):
      raise KeyboardInterrupt from error

  def hold(self) -> None:
    """From now on, lets signals end `wait` and interrupt nothing."""
    self._is_held = True

  def wait(self, seconds: Optional[float] = None) -> bool:
    """Waits for a signal; returns whether there was one.

    Args:
      seconds: how long to wait; without end by default.
    """
    return self._stop.wait(seconds)

  def _release(self, *numbers: signal.Signals) -> None:
    for number in numbers:
      signal.signal(number, self._handlers[number])

  def _on_signal(self, *unused_arguments) -> None:
    self._release(signal.SIGINT, signal.SIGTERM)
    if self._is_held:
      self._stop.set()
    else:
      self._is_interrupted = True
      signal.setitimer(signal.ITIMER_REAL, 2)
      raise KeyboardInterrupt

  def _on_unraisable(self, unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt:
      signal.setitimer(signal.ITIMER_REAL, 0.01)
    elif not self._is_interrupted:
      self._unraisablehook(unraisable)


def require(*names: str) -> None:
  """Raises a UsageError if one of these flags has no value."""
  for name in names:
    if not flags.FLAGS[name].value:
      raise app.UsageError(f'Flag --{name} must have a value.')


def refuse_ignored(names: Sequence[str], reason: str) -> None:
  """Raises a UsageError if the command line has flags that would be ignored.

  What a config binds for them may serve another program, or another call.

  Args:
    names: the names of the flags.
    reason: why they are ignored.
  """
  for name in names:
    if flags.FLAGS[name].present:
      raise app.UsageError(f'--{name} has no effect {reason}. Leave it out.')


def check_value(name: str, value: Any) -> None:
  """Raises a UsageError if no flag can have this value."""
  for one in value if isinstance(value, list) else [value]:
    if isinstance(one, str) and not one:
      raise app.UsageError(f'{name} must not be empty.')
    if isinstance(one, float) and not math.isfinite(one):
      raise app.UsageError(f'{name} must be a finite number, but is {one}.')
    if isinstance(one, int) and abs(one) >= 1 << 63:
      raise app.UsageError(f'{name} must be below 2**63, but is {one}.')


def check_memory() -> None:
  """Raises an OSError if `ulimit -v` is too low for TensorFlow to start."""
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  if 0 < limit < _LEAST_ADDRESSES:
    raise OSError(
        f'The address space is limited to {limit / 1e6:,.0f} MB (ulimit -v),'
        f' and TensorFlow needs {_LEAST_ADDRESSES / 1e6:,.0f} MB and more.'
    )


def _fail(error: Any) -> NoReturn:
  if isinstance(error, BrokenPipeError):
    raise error  # Nobody reads what is printed any more: `| head`.
  logging.debug('The error was raised here:', exc_info=True)
  print(error, file=sys.stderr)
  sys.exit(_FAILED)


def _refuse(error: Exception) -> NoReturn:
  """Ends a program that was called wrongly, with one line."""
  message = ' '.join(str(error).split())
  if isinstance(error, flags.UnrecognizedFlagError):
    name = error.flagname
    hint = checks.did_you_mean(name, flags.FLAGS, prefix='--')
    message = f'There is no flag --{name}.{hint}'
  if not message.endswith(('.', '?')):
    message += '.'
  print(f'{message} See --help.', file=sys.stderr)
  sys.exit(_WRONG_USAGE)
