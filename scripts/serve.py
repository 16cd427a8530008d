"""Serves a Reverb checkpoint or a data set until it receives a signal.

    rlds2reverb-serve --checkpoint_dir=/data/checkpoint --port=8000

    rlds2reverb-serve --dataset=/data/cartpole --sequence_length=2

Ctrl-C or SIGTERM stops the server. Reverb listens on all interfaces, without
authentication: docs/serving.md describes how to restrict access.
"""

import contextlib
import functools
import math

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  import tensorflow as tf

  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import errors
  from rlds2reverb.jobs import serve
  from rlds2reverb.replay import reverb
  from rlds2reverb.replay.checkpoint import records
  from rlds2reverb.replay.checkpoint import serve as checkpoint_serve

# Flags that have no effect with a checkpoint.
_DATASET_FLAGS = ('split', 'data_dir', 'config', 'format', 'gin_binding')

flags_lib.define_source_flags()
flags.DEFINE_string(
    'checkpoint_dir', None, 'A Reverb checkpoint, instead of a --dataset.'
)
flags.DEFINE_integer('port', None, 'The port; by default a free one.', 1, 65535)
flags.DEFINE_string(
    'checkpoint_root',
    None,
    'The folder for checkpoints of the server. If it has a checkpoint, the'
    ' server starts from it. Reverb removes all other files from it.',
)
flags.DEFINE_bool(
    'checkpoint_at_end',
    False,
    'Whether to write a last checkpoint to --checkpoint_root.',
)
flags.DEFINE_float(
    'checkpoint_minutes',
    None,
    'The interval in minutes between checkpoints in --checkpoint_root. Writing'
    ' one blocks the tables.',
    lower_bound=0.01,
)
flags.DEFINE_integer(
    'keep_checkpoints',
    1,
    'The number of checkpoints to keep. Older ones are in a folder next to'
    ' --checkpoint_root, with .kept after its name.',
    lower_bound=1,
)
flags.DEFINE_float(
    'keep_hours',
    None,
    'With --keep_checkpoints: the maximum age of older checkpoints.',
    lower_bound=0.0,
)
flags.DEFINE_integer(
    'metrics_port', None, 'A port for Prometheus, on all interfaces.', 1, 65535
)
flags_lib.define_table_flags(
    'drop', 'pad', 'tile', 'zero_pad', 'overlap', 'cross'
)
_OVERRIDE = ' NAME=VALUE for one table, or VALUE for all tables; repeatable.'
flags.DEFINE_multi_string(
    'max_size',
    None,
    'The maximum number of items of a table, instead of the one in its'
    ' checkpoint.' + _OVERRIDE,
)
flags.DEFINE_multi_string(
    'max_times_sampled',
    None,
    'How often an item is sampled before it is removed, instead of the number'
    ' in the checkpoint; 0 for no limit.' + _OVERRIDE,
)
flags.DEFINE_multi_string(
    'sampler',
    None,
    'The sampler of a table, instead of the one in its checkpoint: uniform,'
    ' fifo, lifo, min_heap, max_heap or prioritized:EXPONENT.' + _OVERRIDE,
)
flags.DEFINE_multi_string(
    'rate_limiter',
    None,
    'The rate limiter of a table, instead of the one in its checkpoint:'
    ' min_size:SIZE, queue:SIZE, stack:SIZE or'
    ' sample_to_insert_ratio:RATIO:MIN_SIZE:ERROR_BUFFER.' + _OVERRIDE,
)
FLAGS = flags.FLAGS


def _checkpoints():
  """Returns the checkpoints that the server writes, or None."""
  if FLAGS.checkpoint_root is not None:
    return serve.KeptCheckpoints(
        files.expand_local(
            files.user_path(FLAGS.checkpoint_root), 'checkpoint_root'
        ),
        FLAGS.keep_checkpoints,
        FLAGS.keep_hours,
    )
  for name in (
      'checkpoint_at_end',
      'checkpoint_minutes',
      'keep_checkpoints',
      'keep_hours',
  ):
    if FLAGS[name].present:
      raise app.UsageError(f'--{name} needs a --checkpoint_root.')
  return None


def _check_metrics():
  """Raises an error if metrics cannot be served."""
  try:
    serve.import_prometheus()
  except ModuleNotFoundError as e:
    raise app.UsageError(
        f"--metrics_port needs {e.name}. Run `pip install '.[metrics]'` in a"
        ' clone of rlds2reverb.'
    ) from e
  checkpoint_serve.check_port(FLAGS.metrics_port)


def _parse_int(text):
  """Returns a non-negative integer that a setting of a table can store."""
  if not 0 <= (value := int(text)) < 2**63:
    raise ValueError('expected an integer of at least 0')
  return value


def _parse_size(text):
  if not (value := _parse_int(text)):
    raise ValueError('expected an integer of at least 1')
  return value


def _parse_float(text):
  if not math.isfinite(value := float(text)):
    raise ValueError('expected a finite number')
  return value


def _parse_constructor(text, kinds):
  """Returns a function that makes the object `kind:argument:...`.

  Args:
    text: the value of a flag.
    kinds: constructors with the parsers of their arguments, by kind.
  """
  kind, *arguments = text.split(':')
  if kind not in kinds:
    raise ValueError(f'expected one of {", ".join(kinds)}')
  make, *parsers = kinds[kind]
  if len(arguments) != len(parsers):
    raise ValueError(
        f'{kind} takes {checks.counted(len(parsers), "value")} after a colon'
    )
  values = [parse(value) for parse, value in zip(parsers, arguments)]
  make(*values)  # Raises an error if a value is not valid.
  return functools.partial(make, *values)


def _parse_sampler(text):
  selectors = reverb.selectors
  return _parse_constructor(
      text,
      {
          'uniform': [selectors.Uniform],
          'fifo': [selectors.Fifo],
          'lifo': [selectors.Lifo],
          'min_heap': [selectors.MinHeap],
          'max_heap': [selectors.MaxHeap],
          'prioritized': [selectors.Prioritized, _parse_float],
      },
  )


def _parse_rate_limiter(text):
  limiters = reverb.rate_limiters
  ratio = [_parse_float, _parse_size, _parse_float]
  return _parse_constructor(
      text,
      {
          'min_size': [limiters.MinSize, _parse_size],
          'queue': [limiters.Queue, _parse_size],
          'stack': [limiters.Stack, _parse_size],
          'sample_to_insert_ratio': [limiters.SampleToInsertRatio, *ratio],
      },
  )


def _overrides():
  """Returns the `TableOverrides` of the flags, None as name for all tables."""
  settings = {}
  for flag, parse in (
      ('max_size', _parse_size),
      ('max_times_sampled', _parse_int),
      ('sampler', _parse_sampler),
      ('rate_limiter', _parse_rate_limiter),
  ):
    for text in FLAGS[flag].value or ():
      name, _, value = text.rpartition('=')
      table = settings.setdefault(name or None, {})
      if flag in table:
        raise app.UsageError(
            f'--{flag} is set twice for'
            f' {f"table {name!r}" if name else "all tables"}. Remove one.'
        )
      try:
        table[flag] = parse(value)
      except ValueError as e:
        raise app.UsageError(f'--{flag}={text} is not valid: {e}.') from e
  return [
      checkpoint_serve.TableOverrides(name, **values)
      for name, values in settings.items()
  ]


def _start(checkpoints):
  """Starts the server."""
  overrides = _overrides()
  source = flags_lib.source_or_checkpoint(
      'serve',
      'Serve one --dataset; convert several to a checkpoint first.',
      [*_DATASET_FLAGS, *flags_lib.TABLE_FLAGS],
  )
  server = checkpoints and checkpoints.restart(FLAGS.port, overrides)
  if server is not None:
    return server
  root = checkpoints and checkpoints.root
  if isinstance(source, str):
    return checkpoint_serve.restore_reverb_server(
        source, port=FLAGS.port, checkpoint_root=root, tables=overrides
    )
  try:
    return serve.serve_source(
        source,
        flags_lib.tables_from_flags(),
        port=FLAGS.port,
        checkpoint_root=root,
        allow_empty=FLAGS.allow_empty,
        overrides=overrides,
    )
  except tf.errors.InvalidArgumentError as e:
    raise ValueError(
        f'{errors.message_of(e)} Run rlds2reverb-validate to list all problems.'
    ) from e


def _say(text):
  print(text, flush=True)


def _serve(server, checkpoints, signals):
  """Serves until a signal arrives."""
  client = server.localhost_client()
  try:
    signals.hold()
    _say(f'Serving at localhost:{server.port}')
    for name, status in serve.get_status(client).items():
      _say(f'  table {name}: {checks.counted(status.size, "item")}')
    _say(
        f'Reverb listens on port {server.port} of all interfaces, without'
        ' authentication: anyone who reaches the port can read and change the'
        ' tables. Stop with Ctrl-C.'
    )
    minutes = FLAGS.checkpoint_minutes
    seconds = None if minutes is None else 60 * minutes
    while not signals.wait(seconds):
      try:
        _say(f'Checkpoint: {checkpoints.write(client)}')
      except (OSError, RuntimeError) as e:  # The next attempt may succeed.
        _say(f'No checkpoint was written: {e}')
    if FLAGS.checkpoint_at_end:
      _say('Writing a last checkpoint ...')
      _say(f'Checkpoint: {checkpoints.write(client)}')
  finally:
    with usage.quiet_stderr(usage.REVERB_LINES):
      server.stop()
  _say('Stopped.')


def main():
  checkpoints = _checkpoints()
  lock = checkpoints.locked() if checkpoints else contextlib.nullcontext()
  try:
    with lock, usage.StopSignals() as signals:
      port = FLAGS.metrics_port
      with usage.quiet_stderr(usage.REVERB_LINES):
        if port is not None:
          _check_metrics()
        server = _start(checkpoints)
      if port is not None:
        serve.serve_metrics(port, server, checkpoints)
      _serve(server, checkpoints, signals)
  except KeyboardInterrupt:
    _say('Stopped before the server was ready.')
    return 130


if __name__ == '__main__':
  usage.run(main, errors=lambda: (records.CheckpointError,))
