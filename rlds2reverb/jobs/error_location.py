"""Finds the file that is at fault when a data set cannot be read."""

from typing import Sequence

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import tf_errors
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib

# Errors of files: damaged, missing, or with fewer episodes than there were.
UNREAD = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
)
_ADVICE = 'Copy it from where it is whole, and start the same command again.'


def explain(
    error: tf.errors.OpError,
    source: opened_lib.OpenSource,
    parts: Sequence[ranges_lib.Range],
) -> str:
  """Says what is wrong with the data, and names the file if it is known.

  Args:
    error: the error that reading the data has raised.
    source: the source.
    parts: the episodes that were read.
  """
  # Other formats have no files of records.
  if isinstance(error, UNREAD) and not source.is_one_task:
    for shard in source.shards:
      for path in set(source.files(shard)) & set(source.files(*parts)):
        problem = _find_damage(path, shard.num_episodes)
        if problem:
          return problem
  message = tf_errors.message_of(error)
  return f'{source.name}, {place_of(source, parts)}: {message}'


def place_of(
    source: opened_lib.OpenSource, parts: Sequence[ranges_lib.Range]
) -> str:
  """Returns which episodes ranges have, and the files that they are in."""
  ranges = ', '.join(map(str, parts))
  return f'{ranges} in {", ".join(source.files(*parts))}'


def _find_damage(path: str, num_episodes: int) -> str:
  """Returns what is wrong with a file of records, or an empty string."""
  records = 0
  try:
    for _ in tf.data.TFRecordDataset(path):
      records += 1
  except tf.errors.NotFoundError:
    return f'{path} is missing.'
  except tf.errors.OpError as error:
    return (
        f'{path} is damaged after {checks.counted(records, "whole episode")}:'
        f' {tf_errors.message_of(error)}. {_ADVICE}'
    )
  if records >= num_episodes:
    return ''
  return (
      f'{path} has {checks.counted(records, "episode")}, but dataset_info.json'
      f' says {num_episodes}. {_ADVICE}'
  )
