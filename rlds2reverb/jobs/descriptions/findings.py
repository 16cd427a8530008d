"""What is odd in a data set: what is looked for in episodes, and sentences.

Each of `CHECKS` looks at one episode. `find` makes findings of what these and
the statistics have shown.
"""

import functools
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
)

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


class Finding(NamedTuple):
  """Something that is odd.

  Attributes:
    kind: one of `CHECKS`, or `not_finite`, `outside_bounds`, `outside_unit`,
      `saturated`, `constant` or `duplicates`.
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


class Episode:
  """An episode of `T` steps, in NumPy, as `CHECKS` see it.

  Attributes:
    steps: its steps, `[T, ...]`.
    is_cut: whether its fields differ in length, and are cut to the shortest.
    is_valid: whether it keeps the rules of conversion.
    reward: float64 `[T]`: the rewards.
    length: `T`.
    is_end: bool `[T]`: which step is the last one.
  """

  def __init__(self, steps: Dict[str, Any], is_cut: bool, is_valid: bool):
    self.steps, self.is_cut, self.is_valid = steps, is_cut, is_valid
    (reward,) = tree.flatten(steps[rlds.REWARD])
    self.reward = reward.ravel().astype(np.float64)
    self.length = self.reward.size
    self.is_end = np.arange(self.length) == self.length - 1

  def flag(self, name: str) -> np.ndarray:
    return self.steps[name].ravel().astype(bool)

  def several(self, flag: str) -> np.ndarray:
    # The second step that has a flag shows that there are several.
    found = self.flag(flag)
    return found & (found.cumsum() == 2)

  def bootstraps(self) -> np.ndarray:
    ends = self.flag(rlds.IS_LAST) & self.flag(rlds.IS_TERMINAL)
    ends[:-1] = ends[1:]  # The step before the end leads to it.
    return ends & ~self.is_end & (self.steps[rlds.DISCOUNT].ravel() != 0)

  def ends_with_zeros(self) -> np.ndarray:
    # Strings are never zero.
    leaves = [leaf for leaf in self._observation() if leaf.dtype != object]
    was_set, is_set = (
        any(leaf[at].any() for leaf in leaves) for at in (-2, -1)
    )
    return self.is_end & (was_set and not is_set)

  def ends_with_repetition(self) -> np.ndarray:
    pairs = [(leaf[-1], leaf[-2]) for leaf in self._observation()]
    is_same = all(np.array_equal(*pair) for pair in pairs)
    return self.is_end & (bool(pairs) and is_same)

  def _observation(self) -> List[np.ndarray]:
    leaves = tree.flatten(self.steps[rlds.OBSERVATION])
    return leaves if self.length > 1 else []


# What shows each kind, which is a step or the whole episode, and the sentence
# that follows "In 2 of 40 episodes, ".
CHECKS: Dict[str, Tuple[Callable[..., Any], str]] = {
    'unequal_lengths': (
        lambda one: one.is_cut,
        'fields differ in length. Here they are cut to the shortest; a'
        ' conversion refuses such an episode',
    ),
    'empty': (
        lambda one: not one.length and not one.is_cut,
        'there are no steps',
    ),
    'invalid': (
        lambda one: one.length and not one.is_valid,
        'the flags or discounts break a rule, so a conversion refuses the'
        ' episode; the program `validate` says which rule',
    ),
    **{
        f'several_{flag[3:]}': (
            functools.partial(Episode.several, flag=flag),
            f'{flag} is set on several steps',
        )
        for flag in (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
    },
    'bootstraps': (
        Episode.bootstraps,
        'the discount of the transition into the terminal step is not 0, so a'
        ' learner bootstraps through the end;'
        ' ConversionRules.terminal_discount = "transition" sets it to 0',
    ),
    'zero_rewards': (
        lambda one: one.length > 1 and not one.reward.any(),
        'all rewards are 0',
    ),
    'last_reward': (
        lambda one: one.is_end & (one.reward != 0) & np.isfinite(one.reward),
        'the last step has a reward, which no transition has, {:g} in all;'
        ' StepMapping.last_reward = "transition" moves it onto the transition'
        ' into that step, by --gin_binding or a config (docs/robotics.md, "The'
        ' last step")',
    ),
    'last_is_zero': (
        Episode.ends_with_zeros,
        'the last observation is all zeros, and the one before is not: it may'
        ' be a dummy',
    ),
    'last_is_repeated': (
        Episode.ends_with_repetition,
        'the last observation is the same as the one before: it may be a dummy',
    ),
}


def find(reading: Any) -> List[Finding]:
  """Returns all that is odd in what one pass has found, in a `Reading`."""

  def shown(kinds, fields=(None,)):
    places = [(kind, field) for kind in kinds for field in fields]
    return [
        _shown(reading, *place, *reading.shown[place])
        for place in places
        if place in reading.shown
    ]

  found = [
      *shown(CHECKS),
      *shown(['not_finite', 'outside'], reading.fields),
      *_saturated(reading),
      *_constant(reading),
      *shown(['duplicates']),
  ]
  return [one for one in found if one is not None]


def _shown(
    reading, kind, field, count, first, step, total, original
) -> Optional[Finding]:
  """Returns what is odd about what some episodes show; see `Reading.shown`."""
  where = '' if step is None else f', step {step}'
  if kind in CHECKS:
    rewards = reading.episodes['last_reward']
    text = CHECKS[kind][1].format(rewards[np.isfinite(rewards)].sum())
  elif kind == 'duplicates':
    text = 'observations, actions and rewards are those of an earlier episode'
    where = f', which repeats episode {original}'
  elif kind == 'not_finite':
    numbers = checks.counted(total, 'number that is', 'numbers that are')
    text = f'{field} has {numbers} NaN or infinite'
  else:
    numbers = int(reading.statistics.fields[field].count.sum())
    kind, of = 'outside_unit', '-1 to 1, where nearly all the others are'
    if field in reading.bounds:
      kind = 'outside_bounds'
      of = f'the bounds of {reading.bounds[field].source}'
    elif numbers - total < _NEARLY_ALL * numbers:
      return None
    text = f'{field} has {total} of {numbers} values outside {of}'
  text = (
      f'In {count} of {len(reading.episodes)} episodes, {text}. The first is'
      f' episode {first}{where}.'
  )
  return Finding(kind, field, text, count, first, step)


def _saturated(reading) -> Iterator[Finding]:
  """Finds actions that are often exactly at an end of their range."""
  for field, samples in reading.samples.items():
    is_floating = reading.statistics.fields[field].is_floating
    if field.split('/')[0] != rlds.ACTION or not is_floating:
      continue
    texts, example = [], []
    for at, column in enumerate(reading.columns):
      sample = samples[column.number] if column.field == field else np.zeros(0)
      if np.unique(sample).size <= _MAX_SWITCH:
        continue
      ends = np.array([sample.min(), sample.max()])
      is_near = np.mean(np.abs(sample) <= 1) >= _NEARLY_ALL
      if is_near or field in reading.bounds:  # A few may be outliers.
        ends = np.clip(ends, *reading.limits[:, column.offset])
      counts = [_equal(sample, end).sum() for end in ends]
      # Each end is reached at least once.
      if sum(counts) - 2 >= max(_SATURATED * sample.size, _MAX_SWITCH):
        texts.append(
            f'{column.name} is {ends[0]:g} in {counts[0] / sample.size:.0%} and'
            f' {ends[1]:g} in {counts[1] / sample.size:.0%}'
        )
        example = example or _example(reading, at, ends[np.argmax(counts)])
    if texts:
      text = (
          f'{len(texts)} of {len(samples)} numbers of {field} are often exactly'
          ' at an end of their range, as if they were clipped:'
          f' {_listed(texts)} of the steps.'
      )
      yield Finding('saturated', field, text, None, *example)


def _equal(numbers, end) -> np.ndarray:
  return np.isclose(numbers, end, 1e-6, 1e-6)


def _example(reading, at: int, number: float) -> List[int]:
  """Returns the episode and step of an excerpt where a column has a number."""
  for episode, excerpt in sorted(reading.excerpts.items()):
    for row in np.flatnonzero(_equal(excerpt['curves'][:, at], number)):
      return [episode, int(excerpt['steps'][row])]
  return []


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
