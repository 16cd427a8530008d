"""How long trainers wait for data, without a server and with one.

    python -m benchmarks.training

The same agent takes its train steps in turn on batches of the replay buffer
without a server, on those of a Reverb server in the same process, and on one
batch again and again. The last is the limit: asking `tf.data` for an element
takes some ten microseconds by itself, and more where other work has the
processors. The medians are over short runs of the learner.
"""

import statistics
import tempfile
import time
from typing import Any, Dict, List

from absl import app
from absl import flags
from absl import logging
import tensorflow as tf
from tf_agents.specs import tensor_spec
from tf_agents.train.utils import train_utils

from rlds2reverb import training
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.training import environments
from rlds2reverb.training import experience
from rlds2reverb.training import normalization
from rlds2reverb.training import timed_learner

_REPEATS = flags.DEFINE_integer('repeats', 20, 'Short runs of each.')
_STEPS = flags.DEFINE_integer('steps', 25, 'Train steps of a short run.')

# The last of each: how many items a batch has.
_TRAINERS = (
    ('behavioural cloning', 'CartPole-v1', training.BehavioralCloning(), 256),
    ('CQL-SAC', 'Pendulum-v1', training.CqlSac(), 256),
    (
        "CQL-SAC of the paper's size",
        'Pendulum-v1',
        training.CqlSac(
            actor_layers=(256, 256),
            critic_layers=(256, 256, 256),
            num_cql_samples=10,
        ),
        256,
    ),
    (
        'recurrent DQN',
        'PositionOnlyCartPole-v1',
        training.RecurrentDqn(),
        64,
    ),
)


def _measure(
    algorithm: training.Algorithm, environment: str, batch_size: int
) -> Dict[str, List[Any]]:
  """Returns pairs of the waiting and the step time in seconds, by source."""
  env = environments.make_environment(environment, 0)
  with tempfile.TemporaryDirectory() as folder:
    data = f'{folder}/data'
    recording.record_episodes(environment, data, 100)
    episodes = loading.load_episodes(data)
    normalized = normalization.fit_normalization(episodes)
    train_step = train_utils.create_train_step()
    agent = algorithm.make_agent(
        *normalization.normalized_specs(
            tensor_spec.from_spec(env.time_step_spec()),
            tensor_spec.from_spec(env.action_spec()),
        ),
        train_step,
    )

    def opened(reverb_server):
      return experience.open_experience(
          episodes,
          algorithm,
          normalized,
          batches=experience.BatchOptions(batch_size, reverb_server),
          seed=0,
      )

    with opened(False) as local, opened(True) as served:
      batch = next(iter(local.as_dataset()))
      learner = timed_learner.TimedLearner(
          folder, train_step, agent, local.as_dataset, checkpoint_interval=0
      )
      iterators = {
          'no server': iter(local.as_dataset()),
          'Reverb server': iter(served.as_dataset()),
          'one batch': iter(tf.data.Dataset.from_tensors(batch).repeat()),
      }
      times = {name: [] for name in iterators}
      for repeat in range(_REPEATS.value + 1):
        for name, iterator in iterators.items():
          waited, start = learner.waited_seconds, time.perf_counter()
          learner.run(_STEPS.value, iterator)
          if repeat:  # The first traces.
            times[name].append(
                (
                    (learner.waited_seconds - waited) / _STEPS.value,
                    (time.perf_counter() - start) / _STEPS.value,
                )
            )
      del iterators
  return times


def main(_):
  logging.set_verbosity(logging.WARNING)
  print('trainer, source: train step, waiting for data, share of it')
  for name, environment, algorithm, batch_size in _TRAINERS:
    times = _measure(algorithm, environment, batch_size)
    for source, pairs in times.items():
      waited = statistics.median(pair[0] for pair in pairs)
      step = statistics.median(pair[1] for pair in pairs)
      share = statistics.median(pair[0] / pair[1] for pair in pairs)
      print(
          f'{name}, {source}: {step * 1e3:.2f} ms, {waited * 1e6:.0f} us,'
          f' {share:.1%}',
          flush=True,
      )


if __name__ == '__main__':
  app.run(main)
