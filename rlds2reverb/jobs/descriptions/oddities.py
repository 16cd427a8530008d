"""Finds the oddities of a data set, with a number and an example of each."""

import dataclasses
from typing import Iterator, List, Optional

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import facts
from rlds2reverb.jobs.descriptions import findings as findings_lib

NOT_FINITE = 'not_finite'
CONSTANT = 'constant'
OUTSIDE_BOUNDS = 'outside_bounds'
OUTSIDE_UNIT = 'outside_unit'
SATURATED = 'saturated'
DUPLICATES = 'duplicates'

# The share of values between -1 and 1 from which on an action is taken to be
# meant for that range.
_NEARLY_ALL = 0.95
# The share of values at an end of an action's range from which on they are odd.
# An action of few different values is a switch, and is not odd.
_SATURATED = 0.05
_MAX_SWITCH = 10
_MAX_LISTED = 8


@dataclasses.dataclass(frozen=True)
class Oddity:
  """Something that is odd.

  Attributes:
    kind: the kind of the oddity, one of the constants of this module and of
      `facts.CHECKS`.
    field: the path of the field in which it was found, or None.
    message: the sentence that says it, with the numbers below.
    num_episodes: the number of episodes in which it was found; None if it was
      found in a sample of all steps.
    episode: the index of the first of them, or of one that shows it.
    step: the first step there that shows it; None if no single one does.
  """

  kind: str
  field: Optional[str]
  message: str
  num_episodes: Optional[int]
  episode: Optional[int]
  step: Optional[int]


def find_oddities(findings: findings_lib.Findings) -> List[Oddity]:
  """Returns all oddities in the findings of one pass."""
  return [
      *_of_episodes(findings),
      *_not_finite(findings),
      *_outside(findings),
      *_saturated(findings),
      *_constant(findings),
      *_duplicates(findings),
  ]


def _make(
    findings, kind, field, text, tally: findings_lib.Tally, index: int
) -> Oddity:
  """Makes the oddity that a tally has counted."""
  count, episode, step = (
      int(numbers[index])
      for numbers in (tally.counts, tally.episodes, tally.steps)
  )
  message = f'In {count} of {findings.num_read} episodes, {text}.'
  message += f' The first is episode {episode}'
  message += f', step {step}.' if step >= 0 else '.'
  return Oddity(
      kind, field, message, count, episode, step if step >= 0 else None
  )


def _of_episodes(findings) -> Iterator[Oddity]:
  rewards = findings.episodes['last_reward']
  total = rewards[np.isfinite(rewards)].sum()
  for index, (kind, sentence) in enumerate(facts.CHECKS.items()):
    if findings.checks.counts[index]:
      text = sentence.format(f'{total:g}')
      yield _make(findings, kind, None, text, findings.checks, index)


def _not_finite(findings) -> Iterator[Oddity]:
  for index, field in enumerate(findings.fields):
    if findings.not_finite.counts[index]:
      numbers = int(findings.statistics.fields[field].not_finite.sum())
      count = checks.counted(numbers, 'number that is', 'numbers that are')
      text = f'{field} has {count} NaN or infinite'
      yield _make(findings, NOT_FINITE, field, text, findings.not_finite, index)


def _outside(findings) -> Iterator[Oddity]:
  for index, field in enumerate(findings.fields):
    if not findings.outside.counts[index]:
      continue
    outside = int(findings.outside_values[index])
    total = int(findings.statistics.fields[field].count.sum())
    kind, bounds = OUTSIDE_BOUNDS, findings.bounds.get(field)
    if bounds is None:
      if total - outside < _NEARLY_ALL * total:
        continue
      kind = OUTSIDE_UNIT
      where = 'outside -1 to 1, where nearly all the others are'
    else:
      where = f'outside the bounds of {bounds.source}'
    text = f'{field} has {outside} of {total} values {where}'
    yield _make(findings, kind, field, text, findings.outside, index)


def _saturated(findings) -> Iterator[Oddity]:
  """Finds actions that are often exactly at an end of their range."""
  for field in findings.fields:
    if field.split('/')[0] != rlds.ACTION or not (
        findings.statistics.fields[field].is_floating
    ):
      continue
    samples = findings.samples[field]
    texts, examples = [], []
    for at, column in enumerate(findings.columns):
      if column.field != field:
        continue
      sample = samples[column.number]
      ends = _ends(findings, column, sample)
      counts = [np.isclose(sample, end, 1e-6, 1e-6).sum() for end in ends]
      # Each end is reached at least once.
      if sum(counts) - 2 < max(_SATURATED * sample.size, _MAX_SWITCH) or (
          np.unique(sample).size <= _MAX_SWITCH
      ):
        continue
      shares = ' and '.join(
          f'{end:g} in {count / sample.size:.0%}'
          for end, count in zip(ends, counts)
      )
      texts.append(f'{column.name} is {shares}')
      examples.append((at, ends[np.argmax(counts)]))
    if texts:
      more = ', ...' if len(texts) > _MAX_LISTED else ''
      episode, step = _example(findings, *examples[0])
      yield Oddity(
          SATURATED,
          field,
          f'{len(texts)} of {len(samples)} numbers of {field} are often exactly'
          ' at an end of their range, as if they were clipped:'
          f' {", ".join(texts[:_MAX_LISTED])}{more} of the steps.',
          None,
          episode,
          step,
      )


def _ends(findings, column, sample) -> List[float]:
  """Returns the ends of the range of a column, but for a few outliers."""
  if not sample.size:
    return []
  low, high = sample.min(), sample.max()
  bounds = findings.bounds.get(column.field)
  if bounds is not None:
    shape = findings.statistics.fields[column.field].min.shape
    lows, highs = (
        np.broadcast_to(bound, shape).ravel()
        for bound in (bounds.low, bounds.high)
    )
    return [max(low, lows[column.number]), min(high, highs[column.number])]
  if np.mean(np.abs(sample) <= 1) >= _NEARLY_ALL:
    return [max(low, -1.0), min(high, 1.0)]
  return [low, high]


def _example(findings, column: int, number: float):
  """Returns the episode and step of an excerpt where a column has a number."""
  for episode, excerpt in sorted(findings.excerpts.items()):
    rows = np.flatnonzero(
        np.isclose(excerpt.rows[:, column], number, 1e-6, 1e-6)
    )
    if rows.size:
      return episode, int(excerpt.steps[rows[0]])
  return None, None


def _constant(findings) -> Iterator[Oddity]:
  statistics = findings.statistics
  for field in findings.fields:
    if field.split('/')[0] in (rlds.REWARD, rlds.DISCOUNT):
      continue  # Other checks cover these fields.
    found = statistics.fields[field]
    low, high = found.min.ravel(), found.max.ravel()
    constant = np.flatnonzero((low == high) & (found.count.ravel() > 1))
    if not constant.size:
      continue
    if low.size == 1:
      text = f'{field} is always {low[0]:g}'
    else:
      listed = ', '.join(
          f'[{column}] ({low[column]:g})' for column in constant[:_MAX_LISTED]
      )
      more = ', ...' if constant.size > _MAX_LISTED else ''
      text = (
          f'{field} is constant in {constant.size} of its {low.size} numbers,'
          f' {listed}{more}'
      )
    count = statistics.num_episodes
    yield Oddity(
        CONSTANT,
        field,
        f'In {count} of {findings.num_read} episodes, {text}.',
        count,
        None,
        None,
    )


def _duplicates(findings) -> Iterator[Oddity]:
  found, known = findings.duplicates, findings.episodes
  if found.counts[0]:
    content = known['content'][known['index'] == found.episodes[0]]
    original = known['index'][np.argmax(known['content'] == content)]
    text = 'observations, actions and rewards are those of an earlier episode'
    odd = _make(findings, DUPLICATES, None, text, found, 0)
    message = f'{odd.message[:-1]}, which repeats episode {original}.'
    yield dataclasses.replace(odd, message=message)
