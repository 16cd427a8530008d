"""Lists invalid episodes, and converts the valid ones in a job.

    python -m examples.validate_and_quarantine

It prints:

    episode 1, step 2: Discount must lie in [0, 1].
    converted 2 of 3 episodes
    in quarantine: episode 1
"""

import json
import os
import tempfile

import tensorflow as tf

from rlds2reverb import datasets
from rlds2reverb import jobs
from rlds2reverb import trajectories
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan


def _break(index, episode):
  steps = dict(episode['steps'])
  is_bad = (index == 1) & (tf.range(tf.shape(steps['discount'])[0]) == 2)
  steps['discount'] = tf.where(is_bad, 7.0, steps['discount'])
  return {'steps': steps}


def main() -> None:
  with tempfile.TemporaryDirectory() as directory:
    recorded = os.path.join(directory, 'recorded')
    datasets.record_episodes('Pendulum-v1', recorded, 3, max_steps=5)
    broken = datasets.load_episodes(recorded).enumerate().map(_break)
    data = datasets.save_episodes(broken, os.path.join(directory, 'data'))
    for problem in jobs.validate(broken).problems:
      print(f'episode {problem.episode}, step {problem.step}: {problem.rule}')

    opened = jobs.open_source(jobs.make_source(data, 'train'))
    valid = os.path.join(directory, 'valid')
    output = plan.Output(plan.RLDS, valid, 'train')
    rules = trajectories.ConversionRules(invalid_episodes='skip')
    job = plan.make_plan([opened], output, rules=rules)
    convert.convert(job, print_fn=lambda text: None)
    num_valid = len(datasets.load_episodes(valid))
    print(f'converted {num_valid} of {opened.num_episodes} episodes')
    with open(
        os.path.join(directory, 'valid.job', 'quarantine.jsonl'),
        encoding='utf-8',
    ) as f:
      print(f'in quarantine: episode {json.loads(f.readline())["episode"]}')


if __name__ == '__main__':
  main()
