"""Finds what is odd in a data set, with a number and an example of each."""

import functools
from typing import Iterator, List, NamedTuple, Optional

import numpy as np

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import facts
from rlds2reverb.jobs.descriptions import reading as reading_lib

CONSTANT = 'constant'
OUTSIDE_BOUNDS = 'outside_bounds'
OUTSIDE_UNIT = 'outside_unit'
SATURATED = 'saturated'

# The share of values between -1 and 1 from which on an action is taken to be
# meant for that range.
_NEARLY_ALL = 0.95
# The share of values at an end of an action's range from which on they are odd.
# An action of few different values is a switch, and is not odd.
_SATURATED = 0.05
_MAX_SWITCH = 10
_MAX_LISTED = 8


class Finding(NamedTuple):
  """Something that is odd.

  Attributes:
    kind: one of the constants of this module, of `facts.CHECKS`,
      `reading.NOT_FINITE` or `reading.DUPLICATES`.
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


def find(reading: reading_lib.Reading) -> List[Finding]:
  """Returns all that is odd in what one pass has found."""
  *shown, duplicates = map(
      functools.partial(_shown, reading),
      reading.conditions,
      reading.episodes['shows'].T,
  )
  found = [*shown, *_saturated(reading), *_constant(reading), duplicates]
  return [one for one in found if one is not None]


def _shown(reading, condition, steps) -> Optional[Finding]:
  """Returns what is odd about a condition, if any episode shows it."""
  rows = np.flatnonzero(steps > facts.NO)
  if not rows.size:
    return None
  kind, field = condition
  first, step = reading.episodes[rows[0]], int(steps[rows[0]])
  where = f', step {step}' if step >= 0 else ''
  if kind == reading_lib.DUPLICATES:
    text = 'observations, actions and rewards are those of an earlier episode'
    where += f', which repeats episode {first["original"]}'
  elif field is None:
    rewards = reading.episodes['last_reward']
    total = rewards[np.isfinite(rewards)].sum()
    text = facts.CHECKS[kind].format(f'{total:g}')
  elif kind == reading_lib.NOT_FINITE:
    count = int(reading.statistics.fields[field].not_finite.sum())
    numbers = checks.counted(count, 'number that is', 'numbers that are')
    text = f'{field} has {numbers} NaN or infinite'
  else:
    outside = int(reading.outside[reading.fields.index(field)])
    total = int(reading.statistics.fields[field].count.sum())
    if field in reading.bounds:
      kind, of = OUTSIDE_BOUNDS, f'the bounds of {reading.bounds[field].source}'
    elif total - outside < _NEARLY_ALL * total:
      return None
    else:
      kind, of = OUTSIDE_UNIT, '-1 to 1, where nearly all the others are'
    text = f'{field} has {outside} of {total} values outside {of}'
  return Finding(
      kind,
      field,
      f'In {rows.size} of {len(reading.episodes)} episodes, {text}. The first'
      f' is episode {first["index"]}{where}.',
      int(rows.size),
      int(first['index']),
      step if step >= 0 else None,
  )


def _saturated(reading) -> Iterator[Finding]:
  """Finds actions that are often exactly at an end of their range."""
  for field, samples in reading.samples.items():
    if field.split('/')[0] != rlds.ACTION or not (
        reading.statistics.fields[field].is_floating
    ):
      continue
    texts, examples = [], []
    for column in reading.columns:
      if column.field != field:
        continue
      sample = samples[column.number]
      ends = _ends(reading, column, sample)
      counts = [_equal(sample, end).sum() for end in ends]
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
      examples.append((column.name, ends[np.argmax(counts)]))
    if texts:
      yield Finding(
          SATURATED,
          field,
          f'{len(texts)} of {len(samples)} numbers of {field} are often exactly'
          ' at an end of their range, as if they were clipped:'
          f' {_listed(texts)} of the steps.',
          None,
          *_example(reading, *examples[0]),
      )


def _equal(numbers, end) -> np.ndarray:
  return np.isclose(numbers, end, 1e-6, 1e-6)


def _listed(texts) -> str:
  more = [] if len(texts) <= _MAX_LISTED else ['...']
  return ', '.join([*texts[:_MAX_LISTED], *more])


def _ends(reading, column, sample) -> List[float]:
  """Returns the ends of the range of a column, but for a few outliers."""
  if not sample.size:
    return []
  low, high = sample.min(), sample.max()
  if column.field not in reading.bounds and (
      np.mean(np.abs(sample) <= 1) < _NEARLY_ALL
  ):
    return [low, high]
  least, greatest = reading.limits[:, column.offset]
  return [max(low, least), min(high, greatest)]


def _example(reading, column: str, number: float):
  """Returns the episode and step of an excerpt where a column has a number."""
  for episode, excerpt in sorted(reading.excerpts.items()):
    rows = np.flatnonzero(_equal(excerpt.numbers[column], number))
    if rows.size:
      return episode, int(excerpt.steps[rows[0]])
  return None, None


def _constant(reading) -> Iterator[Finding]:
  statistics = reading.statistics
  for field in reading.fields:
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
      listed = _listed([f'[{column}] ({low[column]:g})' for column in constant])
      text = (
          f'{field} is constant in {constant.size} of its {low.size} numbers,'
          f' {listed}'
      )
    count = statistics.num_episodes
    message = f'In {count} of {len(reading.episodes)} episodes, {text}.'
    yield Finding(CONSTANT, field, message, count, None, None)
