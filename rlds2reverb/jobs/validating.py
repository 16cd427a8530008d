"""Checks every episode of a data set, and lists all that is wrong.

A conversion stops at the first invalid episode, or skips it, and says what is
wrong first. A validation lists every problem of every episode.
"""

import dataclasses
from typing import List, Optional, Tuple, Union

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_errors
from rlds2reverb.jobs import error_location
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


@dataclasses.dataclass
class Validation:
  """The result of a validation.

  Attributes:
    num_episodes: the number of episodes that were checked.
    num_invalid: the number of those that have a problem.
    num_problems: the number of all problems.
    problems: the first of them.
    not_read: what was not read, and why; empty if all was.
  """

  num_episodes: int = 0
  num_invalid: int = 0
  num_problems: int = 0
  problems: List[Problem] = dataclasses.field(default_factory=list)
  not_read: List[str] = dataclasses.field(default_factory=list)

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
  checks.check_positive('limit', limit)
  found = Validation()
  if not isinstance(data, sources_lib.Source):
    rules = rules or rules_lib.ConversionRules()
    begin, error = _check(found, data, rules, limit)
    if error is not None:
      message = tf_errors.message_of(error)
      found.not_read.append(f'From episode {begin} on: {message}')
    return found
  rules = sources_lib.rules_of(data) if rules is None else rules
  opened = sources_lib.open_source(data)
  for part in opened.ranges:
    while part.num_episodes:
      episodes = opened.read(part, with_index=True)
      begin, error = _check(found, episodes, rules, limit, part)
      if error is None:
        break
      if isinstance(error, tf.errors.FailedPreconditionError):
        # It was read to its end, and an episode is missing somewhere.
        found.not_read.append(error_location.explain(error, opened, [part]))
        break
      shard = next(
          shard
          for shard in opened.shards
          if shard.split == part.split and shard.begin <= begin < shard.end
      )
      part = part._replace(begin=min(shard.end, part.end))
      found.not_read.append(
          f'{", ".join(opened.files(shard))}, episodes {begin} to'
          f' {part.begin - 1}: {tf_errors.message_of(error)}'
      )
  return found


def _check(
    found: Validation,
    rlds_data: tf.data.Dataset,
    rules: rules_lib.ConversionRules,
    limit: int,
    part: ranges_lib.Range = ranges_lib.Range('', 0, 0),
) -> Tuple[int, Optional[tf.errors.OpError]]:
  """Adds the problems of all episodes.

  Returns:
    The episode that could not be read, nor those after it; and the error, or
    None if there is none.
  """
  checked = iter(_checked(rlds_data, rules, limit))
  episode = part.begin - 1
  while True:
    try:
      index, num_faults, *faults = next(checked)
    except StopIteration:
      return episode + 1, None
    except tf.errors.InvalidArgumentError as e:
      # Only this element is lost: the iterator goes on with the next one.
      episode, num_faults = episode + 1, 1
      problems = [(None, UNREADABLE, tf_errors.message_of(e))]
    except (*error_location.UNREAD, tf.errors.OutOfRangeError) as e:
      return episode + 1, e
    else:
      episode = episode + 1 if index < 0 else int(index)
      problems = [
          (None if step < 0 else int(step), rule.decode(), values.decode())
          for step, rule, values in zip(*(leaf.numpy() for leaf in faults))
      ]
    found.num_episodes += 1
    found.num_invalid += bool(problems)
    found.num_problems += int(num_faults)
    found.problems += [
        Problem(part.split, episode, *one)
        for one in problems[: limit - len(found.problems)]
    ]


def _checked(rlds_data, rules, limit) -> tf.data.Dataset:
  """Checks each episode in graph mode.

  Returns:
    A data set of the index, or -1; the number of faults; and the steps, or -1,
    the rules and the values of the first ones.
  """
  steps_lib.steps_spec(rlds_data.element_spec)  # or it has no RLDS steps

  def check(episode):
    batch = episode_batches.of_one(
        stacked_steps.stacked_fields(
            episode[rlds.STEPS], {*_FIELDS, *validation.FIELDS}
        )
    )
    verdict = validation.judge(
        batch,
        rules.validation,
        nan_fields=_FIELDS if rules.nan == 'invalid' else (),
    )
    faults = validation.faults_of(verdict)
    # An episode without steps has one fault, which is of no step.
    whole = validation.fault_of_whole(batch)
    values = tf.where(whole.rule == validation.EMPTY, '', whole.values)
    is_empty = tf.cast([verdict.row_splits[-1] == 0], tf.int32)
    columns = [
        tf.concat([column, tf.fill(is_empty, one)], 0)
        for column, one in (
            (faults.step, whole.step),
            (faults.rule, whole.rule),
            (faults.values, values),
        )
    ]
    index = episode.get(opened_lib.EPISODE_INDEX, tf.constant(-1, tf.int64))
    return index, tf.size(columns[0]), *(one[:limit] for one in columns)

  return rlds_data.map(check, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
      tf.data.AUTOTUNE
  )
