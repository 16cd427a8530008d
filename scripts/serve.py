"""Serves a Reverb checkpoint, or a data set, until it is told to stop.

    rlds2reverb-serve --checkpoint_dir=/data/checkpoint --port=8000

    rlds2reverb-serve --dataset=/data/cartpole --sequence_length=2

Ctrl-C, or SIGTERM, stops the server. Reverb listens on all interfaces, without
authentication: docs/serving.md says how to fence it in.
"""

import contextlib

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  import tensorflow as tf

  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.episodes import tf_errors
  from rlds2reverb.jobs import serve
  from rlds2reverb.jobs import server_status
  from rlds2reverb.replay.checkpoint import records
  from rlds2reverb.replay.checkpoint import serve as checkpoint_serve

# What only the episodes of a data set need.
_DATASET_FLAGS = ('split', 'data_dir', 'config', 'format', 'gin_binding')

flags_lib.define_source_flags()
_CHECKPOINT_DIR = flags.DEFINE_string(
    'checkpoint_dir', None, 'A Reverb checkpoint, instead of a --dataset.'
)
_PORT = flags.DEFINE_integer(
    'port', None, 'The port; by default a free one.', 1, 65535
)
_CHECKPOINT_ROOT = flags.DEFINE_string(
    'checkpoint_root',
    None,
    'Where the server writes checkpoints of its own. If there is one already,'
    ' the server starts from it. Reverb removes all else from there.',
)
_CHECKPOINT_AT_END = flags.DEFINE_bool(
    'checkpoint_at_end',
    False,
    'Whether to write a last checkpoint to --checkpoint_root.',
)
_CHECKPOINT_MINUTES = flags.DEFINE_float(
    'checkpoint_minutes',
    None,
    'After how many minutes, again and again, a checkpoint is written to'
    ' --checkpoint_root. The tables wait while one is written.',
    lower_bound=0.01,
)
_KEEP_CHECKPOINTS = flags.DEFINE_integer(
    'keep_checkpoints',
    1,
    'How many checkpoints are kept, the older ones in a folder beside'
    ' --checkpoint_root, with .kept after its name.',
    lower_bound=1,
)
_KEEP_HOURS = flags.DEFINE_float(
    'keep_hours',
    None,
    'With --keep_checkpoints: those that are older are not kept.',
    lower_bound=0.0,
)
_METRICS_PORT = flags.DEFINE_integer(
    'metrics_port', None, 'A port for Prometheus, on all interfaces.', 1, 65535
)
flags_lib.define_table_flags(
    'drop', 'pad', 'tile', 'zero_pad', 'overlap', 'cross'
)


def _checkpoints():
  """Returns the checkpoints that the server writes, or None."""
  if _CHECKPOINT_ROOT.value is not None:
    return serve.KeptCheckpoints(
        files.expand_local(
            files.user_path(_CHECKPOINT_ROOT.value), 'checkpoint_root'
        ),
        _KEEP_CHECKPOINTS.value,
        _KEEP_HOURS.value,
    )
  for name in (
      'checkpoint_at_end',
      'checkpoint_minutes',
      'keep_checkpoints',
      'keep_hours',
  ):
    if flags.FLAGS[name].present:
      raise app.UsageError(f'--{name} needs a --checkpoint_root.')
  return None


def _check_metrics():
  """Raises an error if metrics cannot be served."""
  try:
    server_status.import_prometheus()
  except ModuleNotFoundError as e:
    raise app.UsageError(
        f"--metrics_port needs {e.name}. Run `pip install '.[metrics]'` in a"
        ' clone of rlds2reverb.'
    ) from e
  checkpoint_serve.check_port(_METRICS_PORT.value)


def _start(checkpoints):
  """Starts the server."""
  if _CHECKPOINT_DIR.value is None:
    sources = flags_lib.sources_from_flags('serve')
    if len(sources) > 1:
      raise app.UsageError(
          'Serve one --dataset; convert several to a checkpoint first.'
      )
  elif flags.FLAGS.dataset:
    raise app.UsageError('Pass --dataset or --checkpoint_dir, not both.')
  else:
    usage.refuse_ignored(
        [*_DATASET_FLAGS, *flags_lib.TABLE_FLAGS], 'with --checkpoint_dir'
    )
  server = checkpoints and checkpoints.restart(_PORT.value)
  if server is not None:
    return server
  root = checkpoints and checkpoints.root
  if _CHECKPOINT_DIR.value is not None:
    return checkpoint_serve.restore_reverb_server(
        files.user_path(_CHECKPOINT_DIR.value),
        port=_PORT.value,
        checkpoint_root=root,
    )
  try:
    return serve.serve_source(
        sources[0],
        flags_lib.tables_from_flags(),
        port=_PORT.value,
        checkpoint_root=root,
        allow_empty=flags.FLAGS.allow_empty,
    )
  except tf.errors.InvalidArgumentError as e:
    raise ValueError(
        f'{tf_errors.message_of(e)} The program `validate` lists all that is'
        ' wrong.'
    ) from e


def _say(text):
  print(text, flush=True)


def _serve(server, checkpoints, signals):
  """Serves until a signal comes."""
  client = server.localhost_client()
  try:
    signals.hold()
    _say(f'Serving at localhost:{server.port}')
    for name, status in server_status.ask(client).items():
      _say(f'  table {name}: {checks.counted(status.size, "item")}')
    _say(
        f'Reverb listens on port {server.port} of all interfaces, without'
        ' authentication: whoever reaches the port can read and change the'
        ' tables. Stop with Ctrl-C.'
    )
    minutes = _CHECKPOINT_MINUTES.value
    seconds = None if minutes is None else 60 * minutes
    while not signals.wait(seconds):
      try:
        _say(f'Checkpoint: {checkpoints.write(client)}')
      except (OSError, RuntimeError) as e:  # The next one may go well.
        _say(f'No checkpoint was written: {e}')
    if _CHECKPOINT_AT_END.value:
      _say('Writing a last checkpoint ...')
      _say(f'Checkpoint: {checkpoints.write(client)}')
  finally:
    with quiet.quiet_stderr('[reverb/'):
      server.stop()
  _say('Stopped.')


def main():
  checkpoints = _checkpoints()
  lock = checkpoints.locked() if checkpoints else contextlib.nullcontext()
  with lock, usage.StopSignals() as signals:
    try:
      port = _METRICS_PORT.value
      with quiet.quiet_stderr('[reverb/'):
        if port is not None:
          _check_metrics()
        server = _start(checkpoints)
      if port is not None:
        server_status.serve_metrics(port, server, checkpoints)
      _serve(server, checkpoints, signals)
    except KeyboardInterrupt:
      _say('Stopped before the server was ready.')
      return 1


if __name__ == '__main__':
  usage.run(main, errors=lambda: (records.CheckpointError,))
