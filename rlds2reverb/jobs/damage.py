"""Finds the file that is at fault when a data set cannot be read."""

from typing import Sequence

import tensorflow as tf

from rlds2reverb.episodes import tf_errors
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib


def explain(
    error: tf.errors.OpError,
    source: opened_lib.OpenSource,
    parts: Sequence[ranges_lib.Range],
) -> str:
  """Returns what went wrong with the data, and in which file if it is one.

  Args:
    error: what reading them has raised.
    source: the source.
    parts: the episodes that were read.
  """
  if isinstance(error, (tf.errors.DataLossError, tf.errors.NotFoundError)):
    for path in sorted({path for part in parts for path in source.files(part)}):
      problem = _find_damage(path)
      if problem:
        return problem
  return f'{source.name}, {place_of(source, parts)}:' + (
      f' {tf_errors.message_of(error)}'
  )


def place_of(
    source: opened_lib.OpenSource, parts: Sequence[ranges_lib.Range]
) -> str:
  """Returns which episodes ranges have, and the files that they are in."""
  ranges = ', '.join(map(str, parts))
  paths = [path for part in parts for path in source.files(part)]
  return f'{ranges} in {", ".join(paths)}'


def _find_damage(path: str) -> str:
  """Returns what is wrong with a file of records, or an empty string."""
  records = 0
  try:
    for _ in tf.data.TFRecordDataset(path):
      records += 1
  except tf.errors.NotFoundError:
    return f'{path} is missing.'
  except tf.errors.OpError as error:
    return (
        f'{path} is damaged after {records} whole episodes:'
        f' {tf_errors.message_of(error)}. Copy it from where it is whole, and'
        ' start the same command again.'
    )
  return ''
