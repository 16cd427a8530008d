"""Hides messages of TensorFlow, gym and Reverb that no user can act on."""

import contextlib
import os
import sys
import tempfile
from typing import Iterator
import warnings

from absl import logging


def quiet_logs() -> None:
  """Keeps messages that no user can act on out of the log."""
  logging.set_verbosity(logging.WARNING)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  with quiet_stderr():
    # These are not imported above, because their imports print.
    import tensorflow as tf
    import tf_agents  # noqa: F401
  tf.get_logger().setLevel('ERROR')
  logging.get_absl_handler().addFilter(_is_of_use)
  # AutoGraph compiles TF-Agents' comparisons with `is`, which warns.
  warnings.filterwarnings('ignore', category=SyntaxWarning)


@contextlib.contextmanager
def quiet_stderr(noise: str = '') -> Iterator[None]:
  """Leaves lines out of the output to stderr, also of C++.

  TensorFlow says how it was built when it is imported; gym, which TF-Agents
  imports, that it is no longer maintained; and a Reverb server, what it is
  doing. All other lines come at the end; after an error, all lines do.

  Args:
    noise: the beginning of the lines to leave out; by default all lines.
  """
  sys.stderr.flush()
  stderr = os.dup(2)
  with tempfile.TemporaryFile() as kept:
    os.dup2(kept.fileno(), 2)
    try:
      yield
    except Exception:
      noise = None
      raise
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)
      kept.seek(0)
      for line in kept.read().decode(errors='replace').splitlines(True):
        if noise is None or not line.startswith(noise):
          sys.stderr.write(line)


def _is_of_use(record) -> bool:
  # TFDS warns of its own features' dtypes, once for each; TensorFlow of the
  # names of TF-Agents' nests; and TF-Agents of what our saved policies do
  # without.
  return not any(
      useless in str(record.msg)
      for useless in (
          'FeatureConnector.dtype',
          'valid tf.function parameter name',
          'Could not serialize policy.distribution()',
      )
  )
