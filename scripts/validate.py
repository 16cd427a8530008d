"""Validates every episode of a data set, and lists all problems.

    rlds2reverb-validate --dataset=/data/cartpole

The exit code is 1 if the data has problems, for use in tests.
"""

import dataclasses
import json

from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  from rlds2reverb.episodes import checks
  from rlds2reverb.jobs import validating

flags_lib.define_source_flags()
flags.DEFINE_integer(
    'limit', 100, 'The maximum number of problems to list.', lower_bound=1
)
flags_lib.define_rule_flags('validation', 'nan')
flags.DEFINE_bool('json', False, 'Whether to print JSON instead of text.')
FLAGS = flags.FLAGS


def _print(source, result):
  for problem in result.problems:
    print(problem)
  more = result.num_problems - len(result.problems)
  if more:
    print(f'and {more:,} more; --limit lists more of them.')
  for message in result.not_read:
    print(f'NOT READ: {message}')
  print(
      f'{source.dataset}, split {source.split}:'
      f' {checks.counted(result.num_episodes, "episode")},'
      f' {result.num_invalid:,} invalid,'
      f' {checks.counted(result.num_problems, "problem")}',
      flush=True,
  )


def main():
  is_valid = True
  for source in flags_lib.sources_from_flags('validate'):
    rules = flags_lib.rules_from_flags(source)
    result = validating.validate(source, rules=rules, limit=FLAGS.limit)
    is_valid &= result.is_valid
    if FLAGS.json:
      plain = {**dataclasses.asdict(source), **dataclasses.asdict(result)}
      print(json.dumps(plain), flush=True)
    else:
      _print(source, result)
  return 0 if is_valid else 1


if __name__ == '__main__':
  usage.run(main)
