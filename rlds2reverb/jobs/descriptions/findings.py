"""Adds up the facts of episodes, block by block, in NumPy.

The memory that this takes does not grow with the data, apart from 200 bytes
for each episode.
"""

import functools
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import facts as facts_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import results

_MAX_COLUMNS = 64  # of a field, that are shown


class FieldColumn(NamedTuple):
  """One number of a field.

  Attributes:
    field: the path of the field in a step.
    number: which of its numbers it is.
    name: its name, such as `reward` or `action[2]`.
  """

  field: str
  number: int
  name: str


# The record of every episode that has steps: its index in the data set, a hash
# of its content, its return, its number of transitions, and the reward of its
# last step, which is of no transition.
_EPISODE = [
    ('index', np.int64),
    ('content', np.int64),
    ('undiscounted_return', np.float64),
    ('num_transitions', np.float64),
    ('last_reward', np.float64),
]


class Tally:
  """Counts the episodes for which each of several conditions holds.

  Attributes, int64 `[K]` each:
    counts: the number of episodes for which each condition holds.
    episodes: the index of the first of them; -1 if there is none.
    steps: the step there that shows it; -1 if no single one does.
  """

  def __init__(self, size: int):
    self.counts = np.zeros(size, np.int64)
    self.episodes = np.full(size, -1, np.int64)
    self.steps = np.full(size, -1, np.int64)

  def add(
      self, episodes: np.ndarray, found: np.ndarray, steps: np.ndarray
  ) -> None:
    """Adds episodes, in any order.

    Args:
      episodes: their indices in the data set, `[B]`.
      found: which conditions hold for each, bool `[B, K]`.
      steps: the step that shows it, `[B, K]`; -1 for none.
    """
    self.counts += found.sum(0)
    for column in np.flatnonzero(found.any(0)):
      rows = np.flatnonzero(found[:, column])
      row = rows[np.argmin(episodes[rows])]
      first = self.episodes[column]
      if first < 0 or episodes[row] < first:
        self.episodes[column] = episodes[row]
        self.steps[column] = steps[row, column]


class Findings:
  """The findings of a pass over a data set.

  Attributes:
    spec: the spec of an episode with stacked steps.
    bounds: the bounds of fields, by name. Floats of an action that nothing
      bounds are held against -1 to 1, without an entry here.
    images: the keys, in a step, of the image fields that excerpts have.
    fields: the names of the fields that have statistics.
    columns: the numbers that are shown, 64 of a field at most.
    num_read: the number of episodes, those without steps included.
    checks: the tally of `facts.CHECKS`.
    not_finite: the tally of `fields` that hold NaN or infinities.
    outside: the tally of `fields` that have values outside their bounds.
    outside_values: how many values of each of `fields` are outside.
    duplicates: the tally of episodes with the content of an earlier one.
    extremes: where the least and the greatest number of each column is, int64
      `[2, D, 2]`: the episode and the step; -1 if there is none.
    excerpts: the excerpts of episodes that may be shown, by their indices.
  """

  def __init__(
      self,
      accumulation: accumulation_lib.Accumulation,
      spec: Dict[str, Any],
      bounds: Mapping[str, Any],
      images: Sequence[paths.KeyPath],
  ):
    self.spec, self.bounds, self.images = spec, bounds, images
    self._accumulation = accumulation
    self._state = accumulation.empty()
    self._add_rows = tf.function(
        accumulation.add, reduce_retracing=True, autograph=False
    )
    self.fields = [paths.name_of(keys) for keys, _ in accumulation.leaves]
    sizes = [leaf.shape.num_elements() for _, leaf in accumulation.leaves]
    self._field_of = np.repeat(np.arange(len(sizes)), sizes)
    self.columns = [
        FieldColumn(field, index, f'{field}[{index}]' if size > 1 else field)
        for field, size in zip(self.fields, sizes)
        for index in range(min(size, _MAX_COLUMNS))
    ]
    starts = dict(zip(self.fields, np.cumsum([0, *sizes])))
    self._shown = [starts[one.field] + one.number for one in self.columns]
    self.num_read = 0
    self.checks = Tally(len(facts_lib.CHECKS))
    self.not_finite = Tally(len(sizes))
    self.outside = Tally(len(sizes))
    self.outside_values = np.zeros(len(sizes), np.int64)
    self.duplicates = Tally(1)
    self._contents: Set[int] = set()
    self._greatest = np.full([2, len(self.columns)], -np.inf)  # of -x and x
    self.extremes = np.full([2, len(self.columns), 2], -1, np.int64)
    self._episodes: List[np.ndarray] = []
    # The episodes that stand for all returns, and for all lengths.
    self._spread = [(np.zeros(0, np.int64), np.zeros(0))] * 2
    self.excerpts: Dict[int, excerpts_lib.Excerpt] = {}

  def add(self, facts: facts_lib.Facts, part: accumulation_lib.State) -> None:
    """Adds a block of episodes, and its part of the statistics."""
    self._state = self._add_rows(self._state, part)
    facts = facts_lib.Facts(*(leaf.numpy() for leaf in facts))
    self.num_read += len(facts.episode)
    self.checks.add(facts.episode, facts.checks, facts.check_steps)
    odd_steps = [facts.check_steps]
    for tally, steps in (
        (self.not_finite, facts.not_finite),
        (self.outside, facts.outside_steps),
    ):
      steps = self._of_fields(steps)
      tally.add(facts.episode, steps >= 0, steps)
      odd_steps.append(steps)
    np.add.at(self.outside_values, self._field_of, facts.outside.sum(0))
    has_steps = facts.num_steps > 0
    # Equal episodes are of one length, so they come in their order.
    repeats = np.zeros([len(has_steps), 1], bool)
    for row in np.flatnonzero(has_steps):
      repeats[row] = (content := int(facts.content[row])) in self._contents
      self._contents.add(content)
    self.duplicates.add(facts.episode, repeats, np.full(repeats.shape, -1))
    episodes = np.zeros(len(facts.episode), _EPISODE)
    episodes['index'], episodes['content'] = facts.episode, facts.content
    episodes['undiscounted_return'] = facts.outcome[:, 0]
    episodes['num_transitions'] = facts.outcome[:, 1]
    episodes['last_reward'] = facts.last_reward
    self._episodes.append(episodes[has_steps])
    rows = facts.rows[:, self._shown]
    ends = np.cumsum(facts.num_steps)
    self._note_extremes(facts.episode, rows, ends)
    self._keep_excerpts(facts, rows, ends, np.concatenate(odd_steps, 1))

  def _of_fields(self, steps: np.ndarray) -> np.ndarray:
    """Returns the first step of any column of each field, `[B, fields]`."""
    none = np.iinfo(np.int64).max
    first = np.full([len(steps), len(self.fields)], none)
    found = np.where(steps < 0, none, steps)
    np.minimum.at(first, (slice(None), self._field_of), found)
    return np.where(first == none, -1, first)

  def _note_extremes(self, episodes, rows, ends) -> None:
    if not rows.size:
      return
    is_finite = np.isfinite(rows)
    for greatest, places, sign in zip(self._greatest, self.extremes, (-1, 1)):
      signed = np.where(is_finite, sign * rows, -np.inf)
      at = signed.argmax(0)
      numbers = signed[at, np.arange(at.size)]
      better = numbers > greatest
      greatest[better] = numbers[better]
      row = at[better]
      of = np.searchsorted(ends, row, 'right')
      start = np.concatenate([[0], ends])[of]
      places[better] = np.stack([episodes[of], row - start], 1)

  def _keep_excerpts(self, facts, rows, ends, odd_steps) -> None:
    """Keeps excerpts that may be shown, of these and of earlier episodes."""
    wanted = set(self.extremes[..., 0].flat)
    for tally in (
        self.checks,
        self.not_finite,
        self.outside,
        self.duplicates,
    ):
      wanted.update(tally.episodes)
    has_steps = facts.num_steps > 0
    for which, (episodes, numbers) in enumerate(self._spread):
      episodes = np.append(episodes, facts.episode[has_steps])
      numbers = np.append(numbers, facts.outcome[has_steps, which])
      chosen = excerpts_lib.spread(numbers)
      self._spread[which] = episodes[chosen], numbers[chosen]
      wanted.update(episodes[chosen])
    kept = {
        episode: excerpt
        for episode, excerpt in self.excerpts.items()
        if episode in wanted
    }
    for at, episode in enumerate(facts.episode):
      if episode in wanted:
        extreme = self.extremes[self.extremes[..., 0] == episode][:, 1]
        kept[int(episode)] = self._excerpt(
            facts, at, rows, ends, [*odd_steps[at], *extreme]
        )
    self.excerpts = kept

  def _excerpt(self, facts, at, rows, ends, more_steps):
    """Returns the excerpt of an episode, which includes given steps."""
    num_steps = int(facts.num_steps[at])
    steps = np.unique(
        [
            *excerpts_lib.spread_steps(num_steps, excerpts_lib.MAX_STEPS),
            *excerpts_lib.spread_steps(num_steps, excerpts_lib.MAX_FRAMES),
            *(step for step in more_steps if step >= 0),
        ]
    ).astype(np.int64)
    undiscounted_return, num_transitions, is_terminal = facts.outcome[at]
    return excerpts_lib.Excerpt(
        episode=int(facts.episode[at]),
        num_steps=num_steps,
        num_transitions=int(num_transitions),
        undiscounted_return=float(undiscounted_return),
        is_terminal=bool(is_terminal),
        steps=steps,
        rows=rows[ends[at] - num_steps + steps],
        images=facts.frames[at],
        instruction=facts.instruction[at].decode(errors='replace'),
    )

  @functools.cached_property
  def statistics(self) -> results.Statistics:
    return self._accumulation.statistics(self._state)

  @functools.cached_property
  def samples(self) -> Dict[str, List[np.ndarray]]:
    """The samples of `Accumulation.samples`."""
    return self._accumulation.samples(self._state)

  @functools.cached_property
  def episodes(self) -> np.ndarray:
    """The episodes with steps, in order: an array with fields `_EPISODE`."""
    episodes = np.concatenate([np.zeros(0, _EPISODE), *self._episodes])
    return episodes[np.argsort(episodes['index'], kind='stable')]
