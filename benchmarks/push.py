"""Speed of pushing RLDS steps to a Reverb server, beside TF-Agents.

    python -m benchmarks.push

Every run has a server of its own, in this process, and is over when the server
has confirmed the last item.
"""

import functools
from typing import List

from absl import app
from absl import flags
from absl import logging
from tf_agents.replay_buffers import rlds_to_reverb as reference

from benchmarks import data
from benchmarks import serving
from benchmarks import timing
from rlds2reverb import rlds_to_reverb

_STEPS = flags.DEFINE_integer(
    'steps', 20_000, 'Steps that a run of ours pushes.', lower_bound=1
)
_REFERENCE_STEPS = flags.DEFINE_integer(
    'reference_steps',
    5_000,
    'Steps that a run of TF-Agents pushes.',
    lower_bound=1,
)
_REPEATS = flags.DEFINE_integer(
    'repeats', 3, 'How many times each case is run.', lower_bound=3
)

_REFERENCE = 'tf_agents, nested files'


def _cases(directory: str) -> List[timing.Case]:
  """Returns all cases, on the data set in `directory`."""
  stacked = data.read_stacked(directory)
  nested = data.read_nested(directory)

  def case(name, push, episodes, steps):
    steps = data.whole_steps(steps)
    episodes = episodes.take(data.count_episodes(steps))
    insert = functools.partial(serving.push, push, episodes)
    signature = serving.signature(episodes)
    return timing.Case(
        name, steps, lambda: serving.time_insert(insert, signature, steps)
    )

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
      ' ReverbAddTrajectoryObserver, sequence_length'
      f' {serving.SEQUENCE_LENGTH};'
      f' {_REPEATS.value} repeats.\n'
  )
  timing.print_table(cases, speeds, [('tf_agents', _REFERENCE)])


if __name__ == '__main__':
  app.run(main)
