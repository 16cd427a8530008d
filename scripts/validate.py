"""Checks every episode of a data set, and lists all that is wrong.

    rlds2reverb-validate --dataset=/data/cartpole

The program exits with 1 if anything is wrong, so that it can guard a data set
in a test.
"""

import dataclasses
import json
import sys

from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.episodes import checks
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.jobs import validating

flags_lib.define_source_flags()
flags_lib.define('jobs.validating.validate', 'limit', lower_bound=1)
_VALIDATION = flags.DEFINE_enum(
    'validation',
    None,
    ['strict', 'tf_agents'],
    'Which episodes are valid; see ConversionRules. The default is that of the'
    ' config, or strict.',
)
_NAN = flags.DEFINE_enum(
    'nan',
    None,
    ['report', 'invalid'],
    'Whether NaN makes an episode invalid. The default is that of the config,'
    ' or report, which lets it pass.',
)
_JSON = flags.DEFINE_bool(
    'json', False, 'Whether to print JSON instead of text.'
)


def _rules(source):
  with usage.wrong_usage():
    return sources_lib.rules_of(
        source, validation=_VALIDATION.value, nan=_NAN.value
    )


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
  sources = flags_lib.sources_from_flags('validate')
  for source in sources:
    found = validating.validate(
        source, rules=_rules(source), limit=flags.FLAGS.limit
    )
    is_valid &= found.is_valid
    if _JSON.value:
      plain = {**dataclasses.asdict(source), **dataclasses.asdict(found)}
      json.dump(plain, sys.stdout)
      print(flush=True)
    else:
      _print(source, found)
  return 0 if is_valid else 1


if __name__ == '__main__':
  usage.run(main)
