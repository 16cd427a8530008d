"""Speed of pushing RLDS steps to a Reverb server, beside TF-Agents.

    python -m benchmarks.push

Every run has a server of its own, in this process, and is over when the server
has confirmed the last item.
"""

import functools
import tempfile
import time
from typing import Callable, List

from absl import app
from absl import flags
from absl import logging
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as reference
from tf_agents.specs import tensor_spec

from benchmarks import data
from benchmarks import timing
from rlds2reverb import rlds_to_reverb

_STEPS = flags.DEFINE_integer(
    'steps', 20_000, 'Steps that a run of ours pushes.', lower_bound=1
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps', 5_000, 'Steps that a run of TF-Agents pushes.',
    lower_bound=1,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=3
)

_REFERENCE = 'tf_agents, nested files'
_TABLE = 'benchmark'
_SEQUENCE_LENGTH = 2


def _push(
    push: Callable[..., int], episodes: tf.data.Dataset, num_steps: int
) -> float:
  """Pushes `episodes` to a new server; returns the seconds it took."""
  signature = tensor_spec.add_outer_dim(
      rlds_to_reverb.create_trajectory_data_spec(episodes)
  )
  table = reverb.Table(
      name=_TABLE,
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.Fifo(),
      max_size=num_steps,
      rate_limiter=reverb.rate_limiters.MinSize(1),
      signature=signature,
  )
  # A server makes a directory for its checkpoints, and does not remove it.
  with tempfile.TemporaryDirectory() as directory:
    server = reverb.Server(
        tables=[table],
        checkpointer=reverb.checkpointers.DefaultCheckpointer(path=directory),
    )
    try:
      client = reverb.Client(f'localhost:{server.port}')
      observer = reverb_utils.ReverbAddTrajectoryObserver(
          client, _TABLE, sequence_length=_SEQUENCE_LENGTH
      )
      start = time.perf_counter()
      frames = push(episodes, observer)
      observer.flush()
      seconds = time.perf_counter() - start
      observer.close()
      items = client.server_info()[_TABLE].current_size
    finally:
      server.stop()
  # The first frames of an episode only fill the sequence.
  expected_items = num_steps - data.count_episodes(num_steps) * (
      _SEQUENCE_LENGTH - 1
  )
  if (frames, items) != (num_steps, expected_items):
    raise RuntimeError(
        f'Expected {num_steps} frames and {expected_items} items, but got'
        f' {frames} and {items}.'
    )
  return seconds


def _cases(directory: str) -> List[timing.Case]:
  """Returns all cases, on the data set in `directory`."""
  stacked = data.read_stacked(directory)
  nested = data.read_nested(directory)

  def case(name, push, episodes, steps):
    steps = data.whole_steps(steps)
    episodes = episodes.take(data.count_episodes(steps))
    return timing.Case(name, steps, lambda: _push(push, episodes, steps))

  ours = functools.partial(
      rlds_to_reverb.push_rlds_to_reverb, method='observer'
  )
  theirs = reference.push_rlds_to_reverb
  return [
      case('rlds2reverb, stacked files', ours, stacked, _STEPS.value),
      case('rlds2reverb, nested files', ours, nested, _STEPS.value),
      case(_REFERENCE, theirs, nested, _REFERENCE_STEPS.value),
  ]


def main(argv):
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  logging.set_verbosity(logging.WARNING)
  num_steps = max(_STEPS.value, _REFERENCE_STEPS.value)
  with data.temporary_episodes(num_steps) as directory:
    cases = _cases(directory)
    speeds = timing.measure(cases, _REPEATS.value)
  print(
      f'{data.OBSERVATION_SIZE.value}-float observations,'
      f' {data.ACTION_SIZE.value}-float actions,'
      f' {data.EPISODE_LENGTH.value}-step episodes;'
      f' ReverbAddTrajectoryObserver, sequence_length {_SEQUENCE_LENGTH};'
      f' {_REPEATS.value} repeats.\n'
  )
  timing.print_table(cases, speeds, [('tf_agents', _REFERENCE)])


if __name__ == '__main__':
  app.run(main)
