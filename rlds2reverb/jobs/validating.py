"""Validates every episode of a data set, and lists all problems.

A conversion stops at the first invalid episode, or skips it, and reports one
problem per episode. A validation lists every problem of every episode.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import validation

UNREADABLE = 'The episode cannot be read.'
_FIELDS = (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD, rlds.DISCOUNT)


@dataclasses.dataclass(frozen=True)
class Problem:
  """A problem of an episode.

  Attributes:
    split: the split of the episode; empty for data without a source.
    episode: the index of the episode in its split.
    step: the index of the step, or None if the problem is of no single step.
    rule: the sentence of the broken rule.
    values: the invalid values, as text.
  """

  split: str
  episode: int
  step: int | None
  rule: str
  values: str

  def __str__(self) -> str:
    place = f'{self.split} episode {self.episode}'.strip()
    if self.step is not None:
      place += f', step {self.step}'
    return f'{place}: {self.rule}{" " * bool(self.values)}{self.values}'


@dataclasses.dataclass
class Validation:
  """The result of a validation.

  Attributes:
    num_episodes: the number of validated episodes.
    num_invalid: the number of episodes with problems.
    num_problems: the number of problems.
    problems: the first problems.
    not_read: the parts that could not be read, with reasons.
  """

  num_episodes: int = 0
  num_invalid: int = 0
  num_problems: int = 0
  problems: list[Problem] = dataclasses.field(default_factory=list)
  not_read: list[str] = dataclasses.field(default_factory=list)

  @property
  def is_valid(self) -> bool:
    return not self.num_problems and not self.not_read


def validate(
    data: tf.data.Dataset | sources_lib.Source,
    *,
    rules: options_lib.ConversionRules | None = None,
    limit: int = 100,
) -> Validation:
  """Validates every episode of a data set or of a source.

  If a file of a source is damaged, its readable episodes and the other files
  are still validated.

  Args:
    data: an RLDS data set, with nested or stacked steps; or a `Source`.
    rules: the rules for valid episodes. By default the source binds them, or
      they are `ConversionRules()`.
    limit: the maximum number of problems to list.

  Returns:
    The result. An error of a data set's pipeline is a problem of the episode
    that raised it.

  Raises:
    OSError: as `open_source` does.
    ValueError: if the data has no RLDS steps, or `limit` is not positive; or as
      `open_source` and `OpenSource.read` do.
  """
  checks.check_positive('limit', limit)
  result = Validation()
  if not isinstance(data, sources_lib.Source):
    rules = rules or options_lib.ConversionRules()
    begin, error = _validate_episodes(result, data, rules, limit)
    if error is not None and not _is_at_end(error, begin, data.cardinality()):
      _, message = errors.restore(error)
      result.not_read.append(f'From episode {begin} on: {message}')
    return result
  rules = data.make_rules() if rules is None else rules
  opened = sources_lib.open_source(data)
  for part in opened.ranges:
    while part.num_episodes:
      episodes = opened.read(part, with_index=True)
      begin, error = _validate_episodes(result, episodes, rules, limit, part)
      if error is None or _is_at_end(error, begin, part.end):
        break
      if isinstance(error, tf.errors.FailedPreconditionError):
        # All files were read, and an episode is missing somewhere.
        result.not_read.append(opened.describe_error(error, [part]))
        break
      shard = next(
          shard
          for shard in opened.shards
          if shard.split == part.split and shard.begin <= begin < shard.end
      )
      part = part._replace(begin=min(shard.end, part.end))
      _, message = errors.restore(error)
      if isinstance(error, sources_lib.READ_ERRORS):
        message = opened.find_damage([shard]) or message
      result.not_read.append(
          f'{", ".join(opened.files(shard))}, episodes {begin} to'
          f' {part.begin - 1}: {message}'
      )
  return result


def _is_at_end(error: tf.errors.OpError, begin: int, end: Any) -> bool:
  """Returns whether an error only reports a number of missing episodes.

  TensorFlow does not count elements that raise errors, and reports them as
  missing after the last one. They are counted as invalid before.

  Args:
    error: the error that stopped the iteration.
    begin: the first episode that was not read.
    end: the end of the episodes.
  """
  return isinstance(error, tf.errors.FailedPreconditionError) and begin == end


def _validate_episodes(
    result: Validation,
    rlds_data: tf.data.Dataset,
    rules: options_lib.ConversionRules,
    limit: int,
    part: sources_lib.Range = sources_lib.Range('', 0, 0),
) -> tuple[int, tf.errors.OpError | None]:
  """Adds the problems of all episodes to a result.

  Returns:
    The first episode that was not read, and the error that stopped the
    iteration, or None.
  """
  verdicts = iter(_map_faults(rlds_data, rules, limit))
  episode = part.begin - 1
  while True:
    try:
      index, num_faults, *faults = next(verdicts)
    except StopIteration:
      return episode + 1, None
    except tf.errors.InvalidArgumentError as e:
      # The iterator continues with the next element.
      episode, num_faults = episode + 1, 1
      problems = [(None, UNREADABLE, errors.message_of(e))]
    except (*sources_lib.READ_ERRORS, tf.errors.OutOfRangeError) as e:
      return episode + 1, e
    else:
      episode = episode + 1 if index < 0 else int(index)
      problems = [
          (None if step < 0 else int(step), rule.decode(), values.decode())
          for step, rule, values in zip(*(leaf.numpy() for leaf in faults))
      ]
    result.num_episodes += 1
    result.num_invalid += bool(problems)
    result.num_problems += int(num_faults)
    result.problems += [
        Problem(part.split, episode, *problem)
        for problem in problems[: limit - len(result.problems)]
    ]


def _map_faults(rlds_data, rules, limit) -> tf.data.Dataset:
  """Maps episodes to their faults, in graph mode.

  Returns:
    A data set of the index, or -1; the number of faults; and the steps, or -1,
    the rules and the values of the first faults.
  """
  steps_lib.get_steps_spec(rlds_data.element_spec)  # Raises without RLDS steps.

  @pipelines.as_library_code
  def find_faults(episode):
    batch = batch_lib.make_batch(
        steps_lib.stack_fields(
            episode[rlds.STEPS], {*_FIELDS, *validation.FIELDS}
        )
    )
    verdict = validation.validate(
        batch,
        rules.validation,
        nan_fields=_FIELDS if rules.nan == 'invalid' else (),
    )
    faults = validation.find_step_faults(verdict)
    # An episode without steps has one fault, without a step.
    empty = validation.find_episode_fault(batch)
    values = tf.where(empty.rule == validation.EMPTY, '', empty.values)
    is_empty = tf.cast([verdict.row_splits[-1] == 0], tf.int32)
    columns = [
        tf.concat([column, tf.fill(is_empty, value)], 0)
        for column, value in (
            (faults.step, empty.step),
            (faults.rule, empty.rule),
            (faults.values, values),
        )
    ]
    index = episode.get(sources_lib.EPISODE_INDEX, tf.constant(-1, tf.int64))
    return index, tf.size(columns[0]), *(column[:limit] for column in columns)

  return rlds_data.map(
      find_faults, num_parallel_calls=tf.data.AUTOTUNE
  ).prefetch(tf.data.AUTOTUNE)
