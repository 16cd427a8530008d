"""Batches records by their bytes.

`batch` reads a fixed number of records, however large they are, and holds all
of them in memory. Here a batch has a fixed number of slots. A record takes one
slot, and a large record more, so a batch of large records has few.
"""

from typing import Dict

import tensorflow as tf

from rlds2reverb.episodes import graphs

# This fills the other slots of a large record. It is never a record itself,
# because no `tf.train.Example` begins with a zero byte.
_FILLER = b'\0'


def batch_by_bytes(
    records: tf.data.Dataset,
    name: str,
    max_bytes: int,
    *,
    num_slots: int,
    group_size: int,
) -> tf.data.Dataset:
  """Batches records, fewer of them where they are large.

  Looking at the bytes of records costs about as much as reading several short
  ones, so they are looked at in groups.

  Args:
    records: a data set of dicts of strings `[]`.
    name: the name in the dict of the strings whose bytes are counted.
    max_bytes: how many bytes a batch may have, besides its last group.
    num_slots: how many records a batch may have.
    group_size: how many records are looked at together.

  Returns:
    A data set of batches, dicts of `[num_slots]`, or fewer in the last one, for
    `without_fillers`.
  """
  slot_bytes = -(-max_bytes // num_slots)

  @graphs.no_autograph
  def fill(group):
    further = tf.strings.length(group[name]) // slot_bytes
    fillers = tf.fill(tf.reduce_sum(further, keepdims=True), _FILLER)
    return {
        key: tf.concat([column, fillers], 0) for key, column in group.items()
    }

  return records.batch(group_size).map(fill).rebatch(num_slots)


def without_fillers(
    batch: Dict[str, tf.Tensor], name: str
) -> Dict[str, tf.Tensor]:
  """Returns the records of a batch of `batch_by_bytes`.

  Args:
    batch: the batch.
    name: see `batch_by_bytes`.
  """
  is_record = batch[name] != _FILLER
  return {
      key: tf.boolean_mask(column, is_record) for key, column in batch.items()
  }
