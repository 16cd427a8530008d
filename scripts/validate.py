"""Checks every episode of a data set, and lists all that is wrong.

    rlds2reverb-validate --dataset=/data/cartpole

The program exits with 1 if anything is wrong, so that it can guard a data set
in a test.
"""

import dataclasses
import json

from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.episodes import checks
  from rlds2reverb.jobs import validating

flags_lib.define_source_flags()
flags_lib.define('jobs.validating.validate', 'limit', lower_bound=1)
flags_lib.define_rule_flags('validation', 'nan')
flags.DEFINE_bool('json', False, 'Whether to print JSON instead of text.')
FLAGS = flags.FLAGS


def _print(source, found):
  for problem in found.problems:
    print(problem)
  more = found.num_problems - len(found.problems)
  if more:
    print(f'and {more:,} more; --limit lists more of them.')
  for message in found.not_read:
    print(f'NOT READ: {message}')
  print(
      f'{source.dataset}, split {source.split}:'
      f' {checks.counted(found.num_episodes, "episode")},'
      f' {found.num_invalid:,} invalid,'
      f' {checks.counted(found.num_problems, "problem")}',
      flush=True,
  )


def main():
  is_valid = True
  for source in flags_lib.sources_from_flags('validate'):
    rules = flags_lib.rules_from_flags(source)
    found = validating.validate(source, rules=rules, limit=FLAGS.limit)
    is_valid &= found.is_valid
    if FLAGS.json:
      plain = {**dataclasses.asdict(source), **dataclasses.asdict(found)}
      print(json.dumps(plain), flush=True)
    else:
      _print(source, found)
  return 0 if is_valid else 1


if __name__ == '__main__':
  usage.run(main)
