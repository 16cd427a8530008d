"""Checks every episode of a data set, and lists all that is wrong.

A conversion stops at the first invalid episode, or skips it, and says what is
wrong first. A validation lists every problem of every episode.
"""

import dataclasses
from typing import Any, Iterator, List, NamedTuple, Optional, Union

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_errors
from rlds2reverb.jobs import damage
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import validation

UNREADABLE = 'The episode cannot be read.'
_FIELDS = (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD, rlds.DISCOUNT)


@dataclasses.dataclass(frozen=True)
class Problem:
  """Something that is wrong with an episode.

  Attributes:
    split: the split of the episode; empty for data that is not of a source.
    episode: the index of the episode in its split.
    step: the index of the step at fault; None if it is the whole episode.
    rule: the sentence of the rule that is broken.
    found: what was found there.
  """

  split: str
  episode: int
  step: Optional[int]
  rule: str
  found: str

  def __str__(self) -> str:
    place = f'{self.split} episode {self.episode}'.strip()
    if self.step is not None:
      place += f', step {self.step}'
    return f'{place}: {self.rule}{" " * bool(self.found)}{self.found}'


@dataclasses.dataclass(frozen=True)
class Validation:
  """The result of a validation.

  Attributes:
    num_episodes: the number of episodes that were checked.
    num_invalid: the number of those that have a problem.
    num_problems: the number of all problems.
    problems: the first of them.
    not_read: what was not read, and why; empty if all was.
  """

  num_episodes: int
  num_invalid: int
  num_problems: int
  problems: List[Problem]
  not_read: List[str]

  @property
  def is_valid(self) -> bool:
    return not self.num_problems and not self.not_read


def validate(
    data: Union[tf.data.Dataset, sources_lib.Source],
    *,
    rules: Optional[rules_lib.ConversionRules] = None,
    limit: int = 100,
) -> Validation:
  """Checks every episode of a data set or of a source.

  A file of a source that is cut or damaged is read as far as that is possible;
  the files after it are read all the same.

  Args:
    data: an RLDS data set, with nested or stacked steps; or a `Source`.
    rules: which episodes are valid. By default they are those that a source
      binds for `ConversionRules`, or `ConversionRules()`.
    limit: how many problems to list.

  Returns:
    What was found. An error of the pipeline of a data set is a problem of the
    episode that it came with.

  Raises:
    OSError: as `open_source` does.
    ValueError: if the data has no RLDS steps, or `limit` is not positive; if
      the mapping does not fit the data set, as `OpenSource.read` says; or as
      `open_source` does.
  """
  found = _Findings(limit)
  if isinstance(data, sources_lib.Source):
    rules = sources_lib.rules_of(data) if rules is None else rules
    _check_source(found, sources_lib.open_source(data), rules)
    return found.validation()
  unread = found.check(data, rules or rules_lib.ConversionRules())
  if unread is not None:
    found.not_read.append(f'From episode {unread.episode} on: {unread.message}')
  return found.validation()


def _check_source(found, opened, rules) -> None:
  """Checks the episodes of a source, and goes on after files that are cut."""
  parts = list(opened.ranges)
  while parts:
    part = parts.pop(0)
    data = opened.read(part, with_index=True)
    unread = found.check(
        data, rules, part.split, part.begin, opened_lib.EPISODE_INDEX
    )
    if unread is None:
      continue
    if isinstance(unread.error, tf.errors.FailedPreconditionError):
      # It was read to its end, and an episode is missing somewhere.
      found.not_read.append(damage.explain(unread.error, opened, [part]))
      continue
    shard = next(
        shard
        for shard in opened.shards
        if shard.split == part.split
        and shard.begin <= unread.episode < shard.end
    )
    end = min(shard.end, part.end)
    place = ', '.join(opened.files(shard))
    found.not_read.append(
        f'{place}, episodes {unread.episode} to {end - 1}: {unread.message}'
    )
    if end < part.end:
      parts.insert(0, ranges_lib.Range(part.split, end, part.end))


class _Checked(NamedTuple):
  """An episode that was checked; see `Problem` and `validation.Faults`."""

  episode: tf.Tensor
  num_steps: tf.Tensor
  lengths: tf.Tensor
  num_faults: tf.Tensor
  faults: validation.Faults


class _Unread(NamedTuple):
  """The first episode that could not be read, and why."""

  episode: int
  error: tf.errors.OpError

  @property
  def message(self) -> str:
    return tf_errors.message_of(self.error)


class _Findings:
  """Collects problems."""

  def __init__(self, limit: int):
    checks.check_positive('limit', limit)
    self._limit = limit
    self._num_episodes = 0
    self._num_invalid = 0
    self._num_problems = 0
    self._problems: List[Problem] = []
    self.not_read: List[str] = []

  def check(
      self,
      rlds_data: tf.data.Dataset,
      rules: rules_lib.ConversionRules,
      split: str = '',
      begin: int = 0,
      episode_index: Optional[str] = None,
  ) -> Optional[_Unread]:
    """Checks all episodes; returns where the data could not be read further."""
    paths: List[str] = []
    checked = iter(
        _checked(rlds_data, rules, episode_index, self._limit, paths)
    )
    episode = begin - 1
    while True:
      try:
        one = next(checked)
      except StopIteration:
        return None
      except tf.errors.InvalidArgumentError as e:
        # Only this element is lost: the iterator goes on with the next one.
        episode += 1
        found = tf_errors.message_of(e)
        self._add([Problem(split, episode, None, UNREADABLE, found)], 1)
        continue
      except (*damage.UNREAD, tf.errors.OutOfRangeError) as e:
        return _Unread(episode + 1, e)
      episode = episode + 1 if one.episode < 0 else int(one.episode)
      problems = list(_problems(split, episode, one, paths))
      self._add(problems, max(len(problems), int(one.num_faults)))

  def _add(self, problems: List[Problem], count: int) -> None:
    self._num_episodes += 1
    self._num_invalid += bool(problems)
    self._num_problems += count
    self._problems += problems[: self._limit - len(self._problems)]

  def validation(self) -> Validation:
    return Validation(
        self._num_episodes,
        self._num_invalid,
        self._num_problems,
        self._problems,
        self.not_read,
    )


def _checked(rlds_data, rules, episode_index, limit, paths) -> tf.data.Dataset:
  """Checks each episode in graph mode; sets the `paths` of the `lengths`."""
  spec = steps_lib.steps_spec(rlds_data.element_spec)
  nan_fields = []
  if rules.nan == 'invalid':
    nan_fields = [field for field in _FIELDS if field in spec.step]
  used = {*_FIELDS, rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL}
  nan_paths = [
      path
      for path, _ in steps_lib.float_fields(
          {field: spec.step[field] for field in nan_fields}
      )
  ]

  def check(episode):
    steps = stacked_steps.stacked_fields(episode[rlds.STEPS], used)
    lengths = stacked_steps.lengths_of(steps)
    paths[:] = lengths.paths if lengths else ()
    outline = validation.outline_of(steps, nan_fields, lengths)
    faults = validation.find_faults(
        validation.with_end(outline),
        validation=rules.validation,
        nan_paths=nan_paths,
    )
    return _Checked(
        episode=(
            tf.constant(-1, tf.int64)
            if episode_index is None
            else episode[episode_index]
        ),
        num_steps=tf.size(outline[rlds.IS_FIRST]),
        lengths=lengths.rows if lengths else tf.zeros([0], tf.int32),
        num_faults=tf.size(faults.steps),
        faults=validation.Faults(*(leaf[:limit] for leaf in faults)),
    )

  return rlds_data.map(
      graphs.no_autograph(check),
      num_parallel_calls=tf.data.AUTOTUNE,
  ).prefetch(tf.data.AUTOTUNE)


def _problems(split, episode, one: _Checked, paths) -> Iterator[Problem]:
  lengths = one.lengths.numpy()
  if lengths.size and lengths.min() < lengths.max():
    found = ', '.join(
        f'{path}: {length}' for path, length in zip(paths, lengths)
    )
    yield Problem(split, episode, None, validation.UNEQUAL_LENGTHS, found)
  elif not one.num_steps:
    yield Problem(split, episode, None, validation.EMPTY, '')
  elif one.num_faults:
    columns: Any = (leaf.numpy().tolist() for leaf in one.faults)
    for step, rule, _, found in zip(*columns):
      yield Problem(split, episode, step, rule.decode(), found.decode())
