"""What is odd in a data set: what is looked for in episodes, and sentences.

`look_at` looks at a batch of episodes. `find` makes findings of what that and
the statistics have shown.
"""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds

# The share of values between -1 and 1 from which on an action is taken to be
# meant for that range.
_NEARLY_ALL = 0.95
# The share of values at an end of an action's range from which on they are odd.
# An action of few different values is a switch, and is not odd.
_SATURATED = 0.05
_MAX_SWITCH = 10
_MAX_LISTED = 8

# What follows "In 2 of 40 episodes, ", in the order of the findings: of what an
# episode shows as a whole, and of what some of its steps show.
OF_EPISODES = {
    'empty': 'there are no steps',
    'invalid': (
        'the flags or discounts break a rule, so a conversion refuses the'
        ' episode; the program `validate` says which rule'
    ),
    'zero_rewards': 'all rewards are 0',
    'duplicates': (
        'observations, actions and rewards are those of an earlier episode'
    ),
}
OF_STEPS = {
    'bootstraps': (
        'the discount of the transition into the terminal step is not 0, so a'
        ' learner bootstraps through the end;'
        ' ConversionRules.terminal_discount = "transition" sets it to 0'
    ),
    'last_reward': (
        'the last step has a reward, which no transition has;'
        ' StepMapping.last_reward = "transition" moves it onto the transition'
        ' into that step, by --gin_binding or a config (docs/robotics.md, "The'
        ' last step")'
    ),
    'last_is_dummy': (
        'the last observation is zero or the same as the one before: it may be'
        ' a dummy'
    ),
}


# Of each field that has statistics.
OF_FIELDS = ('not_finite', 'outside')


class Finding(NamedTuple):
  """Something that is odd.

  Attributes:
    kind: one of `OF_EPISODES` or `OF_STEPS`; or `not_finite`, `outside_bounds`,
      `outside_unit`, `saturated` or `constant`.
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
  num_episodes: Optional[int] = None
  episode: Optional[int] = None
  step: Optional[int] = None


def look_at(
    steps: Dict[str, Any],
    row_splits: np.ndarray,
    are_valid: np.ndarray,
    are_new: np.ndarray,
) -> Tuple[np.ndarray, np.ndarray]:
  """Looks at a batch of episodes for what is odd, in NumPy.

  Args:
    steps: the steps of `E` episodes, `[N, ...]`.
    row_splits: where each begins and ends, `[E + 1]`.
    are_valid: which episodes keep the rules of conversion, bool `[E]`.
    are_new: which have a content that no earlier one has, bool `[E]`.

  Returns:
    Which episodes show each of `OF_EPISODES`, bool `[E, 4]`, and which steps
    each of `OF_STEPS`, bool `[N, 3]`.
  """
  row, lengths = np.arange(row_splits[-1]), np.diff(row_splits)
  ends = row_splits[1:]
  are_last = np.isin(row, ends - 1)
  (reward,) = tree.flatten(steps[rlds.REWARD])
  reward, discount = np.ravel(reward), np.ravel(steps[rlds.DISCOUNT])
  num_rewards = sums(reward != 0, row_splits)
  at_end = np.ravel(steps[rlds.IS_LAST]) * np.ravel(steps[rlds.IS_TERMINAL]) > 0
  dummies = ends[lengths > 1] - 1
  for leaf in tree.flatten(steps[rlds.OBSERVATION]):
    last, before = leaf[dummies], leaf[dummies - 1]
    odd = (last == before) | (last == 0)
    dummies = dummies[odd.all(axis=tuple(range(1, odd.ndim)))]
  of_episodes = (
      lengths == 0,
      (lengths > 0) & ~are_valid,
      (lengths > 1) & (num_rewards == 0),
      (lengths > 0) & ~are_new,
  )
  of_steps = (
      np.roll(at_end, -1) & ~are_last & (discount != 0),
      are_last & (reward != 0) & np.isfinite(reward),
      np.isin(row, dummies),
  )
  return np.stack(of_episodes, 1), np.stack(of_steps, 1)


def sums(numbers: np.ndarray, splits: np.ndarray, axis: int = 0) -> np.ndarray:
  """Returns the sums of what is between neighboring splits, along an axis."""
  totals = np.insert(np.cumsum(numbers, axis), 0, 0, axis)
  return np.diff(np.take(totals, splits, axis), axis=axis)


def find(reading: Any) -> List[Finding]:
  """Returns all that is odd in what one pass has found, in a `Reading`."""
  return [*_shown(reading), *_saturated(reading), *_constant(reading)]


def _shown(reading) -> Iterator[Finding]:
  """Finds what some episodes show, and which one is the first."""
  num_read = len(reading.episodes)

  def found(kind, field, num_episodes, text, where, *place):
    text = f'In {num_episodes} of {num_read} episodes, {text}.'
    text = f'{text} The first is episode {place[0]}{where}.'
    return Finding(kind, field, text, num_episodes, *place)

  for at, (kind, text) in enumerate(OF_EPISODES.items()):
    odd = reading.episodes[reading.episodes['odd'][:, at]].tolist()
    if odd:
      first = dict(zip(reading.episodes.dtype.names, odd[0]))
      where = f', which repeats episode {first["original"]}'
      where = where if kind == 'duplicates' else ''
      yield found(kind, None, len(odd), text, where, first['index'])
  places = reading.places[2 * len(reading.columns) :].tolist()
  for (kind, field), place, (num_episodes, total) in zip(
      reading.kinds, places, reading.shown.T.tolist()
  ):
    text = OF_STEPS.get(kind)
    if kind == 'not_finite':
      numbers = checks.counted(total, 'number that is', 'numbers that are')
      text = f'{field} has {numbers} NaN or infinite'
    elif kind == 'outside':
      numbers = int(reading.statistics.fields[field].count.sum())
      kind, of = 'outside_unit', '-1 to 1, where nearly all the others are'
      if field in reading.bounds:
        kind = 'outside_bounds'
        of = f'the bounds of {reading.bounds[field].source}'
      elif numbers - total < _NEARLY_ALL * numbers:
        continue
      text = f'{field} has {total} of {numbers} values outside {of}'
    if num_episodes:
      where = f', step {place[1]}'
      yield found(kind, field, num_episodes, text, where, *place)


def _saturated(reading) -> Iterator[Finding]:
  """Finds actions that are often exactly at an end of their range."""
  for field, found in reading.statistics.fields.items():
    if field.split('/')[0] != rlds.ACTION or not found.is_floating:
      continue
    texts, places = [], []
    for at, column in reading.columns_of(field):
      sample = reading.samples[column.offset]
      if np.unique(sample).size <= _MAX_SWITCH:
        continue
      ends = np.array([sample.min(), sample.max()])
      is_near = np.mean(np.abs(sample) <= 1) >= _NEARLY_ALL
      if is_near or field in reading.bounds:  # A few may be outliers.
        ends = np.clip(ends, *reading.limits[:, column.offset])
      counts = np.isclose(sample, ends[:, None], 1e-6, 1e-6).sum(1)
      # Each end is reached at least once.
      if sum(counts) - 2 >= max(_SATURATED * sample.size, _MAX_SWITCH):
        low, high = counts / sample.size
        texts.append(
            f'{column.name} is {ends[0]:g} in {low:.0%} and {ends[1]:g} in'
            f' {high:.0%}'
        )
        places.append(reading.ends_at(at)[int(low < high)])
    if texts:
      text = (
          f'{len(texts)} of {found.count.size} numbers of {field} are often'
          ' exactly at an end of their range, as if they were clipped:'
          f' {_listed(texts)} of the steps.'
      )
      yield Finding('saturated', field, text, None, *places[0])


def _constant(reading) -> Iterator[Finding]:
  count, total = reading.statistics.num_episodes, len(reading.episodes)
  for field, found in reading.statistics.fields.items():
    low, high = found.min.ravel(), found.max.ravel()
    constant = np.flatnonzero((low == high) & (found.count.ravel() > 1))
    # Other checks cover rewards and discounts.
    if field.split('/')[0] in (rlds.REWARD, rlds.DISCOUNT) or not constant.size:
      continue
    text = f'is always {low[0]:g}'
    if low.size > 1:
      listed = _listed([f'[{column}] ({low[column]:g})' for column in constant])
      text = (
          f'is constant in {constant.size} of its {low.size} numbers, {listed}'
      )
    text = f'In {count} of {total} episodes, {field} {text}.'
    yield Finding('constant', field, text, count)


def _listed(texts) -> str:
  more = ['...'] * (len(texts) > _MAX_LISTED)
  return ', '.join([*texts[:_MAX_LISTED], *more])
