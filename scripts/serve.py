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
flags.DEFINE_string(
    'checkpoint_dir', None, 'A Reverb checkpoint, instead of a --dataset.'
)
flags.DEFINE_integer('port', None, 'The port; by default a free one.', 1, 65535)
flags.DEFINE_string(
    'checkpoint_root',
    None,
    'Where the server writes checkpoints of its own. If there is one already,'
    ' the server starts from it. Reverb removes all else from there.',
)
flags.DEFINE_bool(
    'checkpoint_at_end',
    False,
    'Whether to write a last checkpoint to --checkpoint_root.',
)
flags.DEFINE_float(
    'checkpoint_minutes',
    None,
    'After how many minutes, again and again, a checkpoint is written to'
    ' --checkpoint_root. The tables wait while one is written.',
    lower_bound=0.01,
)
flags.DEFINE_integer(
    'keep_checkpoints',
    1,
    'How many checkpoints are kept, the older ones in a folder beside'
    ' --checkpoint_root, with .kept after its name.',
    lower_bound=1,
)
flags.DEFINE_float(
    'keep_hours',
    None,
    'With --keep_checkpoints: those that are older are not kept.',
    lower_bound=0.0,
)
flags.DEFINE_integer(
    'metrics_port', None, 'A port for Prometheus, on all interfaces.', 1, 65535
)
flags_lib.define_table_flags(
    'drop', 'pad', 'tile', 'zero_pad', 'overlap', 'cross'
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
    server_status.import_prometheus()
  except ModuleNotFoundError as e:
    raise app.UsageError(
        f"--metrics_port needs {e.name}. Run `pip install '.[metrics]'` in a"
        ' clone of rlds2reverb.'
    ) from e
  checkpoint_serve.check_port(FLAGS.metrics_port)


def _start(checkpoints):
  """Starts the server."""
  source = flags_lib.source_or_checkpoint(
      'serve',
      'Serve one --dataset; convert several to a checkpoint first.',
      [*_DATASET_FLAGS, *flags_lib.TABLE_FLAGS],
  )
  server = checkpoints and checkpoints.restart(FLAGS.port)
  if server is not None:
    return server
  root = checkpoints and checkpoints.root
  if isinstance(source, str):
    return checkpoint_serve.restore_reverb_server(
        source, port=FLAGS.port, checkpoint_root=root
    )
  try:
    return serve.serve_source(
        source,
        flags_lib.tables_from_flags(),
        port=FLAGS.port,
        checkpoint_root=root,
        allow_empty=FLAGS.allow_empty,
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
    minutes = FLAGS.checkpoint_minutes
    seconds = None if minutes is None else 60 * minutes
    while not signals.wait(seconds):
      try:
        _say(f'Checkpoint: {checkpoints.write(client)}')
      except (OSError, RuntimeError) as e:  # The next one may go well.
        _say(f'No checkpoint was written: {e}')
    if FLAGS.checkpoint_at_end:
      _say('Writing a last checkpoint ...')
      _say(f'Checkpoint: {checkpoints.write(client)}')
  finally:
    with quiet.quiet_stderr('[reverb/'):
      server.stop()
  _say('Stopped.')


def main():
  checkpoints = _checkpoints()
  lock = checkpoints.locked() if checkpoints else contextlib.nullcontext()
  try:
    with lock, usage.StopSignals() as signals:
      port = FLAGS.metrics_port
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
