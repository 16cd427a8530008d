"""Says what is odd about a data set, with a number and an example of each."""

import dataclasses
from typing import Iterator, List, Optional

import numpy as np

from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import facts
from rlds2reverb.jobs.descriptions import one_pass
from rlds2reverb.jobs.descriptions import tallies

NOT_FINITE = 'not_finite'
CONSTANT = 'constant'
OUTSIDE_BOUNDS = 'outside_bounds'
OUTSIDE_UNIT = 'outside_unit'
DUPLICATES = 'duplicates'

# Actions are taken to be meant for -1 to 1 if so many of their values are
# there.
_NEARLY_ALL = 0.95
_MAX_LISTED = 8

# What follows "In 2 of 40 episodes, ".
_SENTENCES = {
    facts.UNEQUAL_LENGTHS: (
        'fields differ in length. Here they are cut to the shortest; a'
        ' conversion refuses such an episode'
    ),
    facts.EMPTY: 'there are no steps',
    facts.INVALID: (
        'the flags or discounts break a rule, so a conversion refuses the'
        ' episode; the program `validate` says which rule'
    ),
    facts.SEVERAL_FIRST: 'is_first is set on several steps',
    facts.SEVERAL_LAST: 'is_last is set on several steps',
    facts.SEVERAL_TERMINAL: 'is_terminal is set on several steps',
    facts.BOOTSTRAPS: (
        'the discount of the transition into the terminal step is not 0, so a'
        ' learner bootstraps through the end;'
        ' ConversionRules.terminal_discount = "transition" sets it to 0'
    ),
    facts.ZERO_REWARDS: 'all rewards are 0',
    facts.LAST_REWARD: (
        'the last step has a reward, which no transition has, {} in all;'
        ' StepMapping.last_reward = "transition" moves it onto the transition'
        ' into that step'
    ),
    facts.LAST_IS_ZERO: (
        'the last observation is all zeros, and the one before is not: it may'
        ' be a dummy'
    ),
    facts.LAST_IS_REPEATED: (
        'the last observation is the same as the one before: it may be a dummy'
    ),
}


@dataclasses.dataclass(frozen=True)
class Oddity:
  """Something that is odd.

  Attributes:
    kind: the name of what is odd, one of the constants of this module and of
      `facts.CHECKS`.
    field: the path of the field in which it was found, or None.
    message: the sentence that says it, with the numbers below.
    num_episodes: the number of episodes in which it was found.
    episode: the index of the first of them.
    step: the first step there that shows it; None if no single one does.
  """

  kind: str
  field: Optional[str]
  message: str
  num_episodes: int
  episode: Optional[int]
  step: Optional[int]


def find_oddities(collected: one_pass.Collected) -> List[Oddity]:
  """Returns all that is odd in what one pass has found."""
  return [
      *_of_episodes(collected),
      *_not_finite(collected),
      *_outside(collected),
      *_constant(collected),
      *_duplicates(collected),
  ]


def _make(
    collected, kind, field, text, count, example: Optional[tallies.Example]
) -> Oddity:
  message = f'In {count} of {collected.num_read} episodes, {text}.'
  episode, step = example or (None, None)
  if episode is not None:
    message += f' The first is episode {episode}'
    message += '.' if step is None else f', step {step}.'
  return Oddity(kind, field, message, count, episode, step)


def _of_episodes(collected) -> Iterator[Oddity]:
  for index, kind in enumerate(facts.CHECKS):
    count = int(collected.checks.counts[index])
    if count:
      yield _make(
          collected,
          kind,
          None,
          _SENTENCES[kind].format(f'{collected.last_rewards[0]:g}'),
          count,
          collected.checks.example(index),
      )


def _not_finite(collected) -> Iterator[Oddity]:
  for index, field in enumerate(collected.fields):
    count = int(collected.not_finite.counts[index])
    if count:
      numbers = int(collected.statistics.fields[field].not_finite.sum())
      yield _make(
          collected,
          NOT_FINITE,
          field,
          f'{field} has {numbers} numbers that are NaN or infinite',
          count,
          collected.not_finite.example(index),
      )


def _outside(collected) -> Iterator[Oddity]:
  for index, field in enumerate(collected.fields):
    count = int(collected.outside.counts[index])
    if not count:
      continue
    outside = int(collected.outside_values[index])
    total = int(collected.statistics.fields[field].count.sum())
    kind, bounds = OUTSIDE_BOUNDS, collected.bounds.get(field)
    if bounds is None:
      if total - outside < _NEARLY_ALL * total:
        continue
      kind = OUTSIDE_UNIT
      where = 'outside -1 to 1, where nearly all the others are'
    else:
      where = f'outside the bounds of {bounds.source}'
    yield _make(
        collected,
        kind,
        field,
        f'{field} has {outside} of {total} values {where}',
        count,
        collected.outside.example(index),
    )


def _constant(collected) -> Iterator[Oddity]:
  statistics = collected.statistics
  for field in collected.fields:
    if field.split('/')[0] in (rlds.REWARD, rlds.DISCOUNT):
      continue  # Other checks are about them.
    found = statistics.fields[field]
    low, high = found.min.ravel(), found.max.ravel()
    constant = np.flatnonzero((low == high) & (found.count.ravel() > 1))
    if not constant.size:
      continue
    if low.size == 1:
      text = f'{field} is always {low[0]:g}'
    else:
      listed = ', '.join(
          f'{column} ({low[column]:g})' for column in constant[:_MAX_LISTED]
      )
      more = ', ...' if constant.size > _MAX_LISTED else ''
      text = (
          f'{field} is constant in {constant.size} of its {low.size} numbers,'
          f' {listed}{more}'
      )
    yield _make(collected, CONSTANT, field, text, statistics.num_episodes, None)


def _duplicates(collected) -> Iterator[Oddity]:
  found = collected.duplicates
  if found.count:
    yield Oddity(
        DUPLICATES,
        None,
        f'In {found.count} of {collected.num_read} episodes, the observations,'
        ' actions and rewards are those of an earlier episode. The first is'
        f' episode {found.first}, which repeats episode {found.of}.',
        found.count,
        found.first,
        None,
    )
