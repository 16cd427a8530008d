"""The tables that a conversion fills in graph mode, for its report."""

from typing import NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import frame_blocks

MAX_STEPS = 2**32  # More steps than any episode has.


class ReportTables(NamedTuple):
  """The tables of a report, as tensors that a graph function can take.

  Attributes:
    skipped: the handle of the table of skipped episodes.
    blocks: the handle of the table about blocks.
  """

  skipped: tf.Tensor
  blocks: tf.Tensor

  def add_skipped(
      self, episodes: tf.Tensor, found: faults.Fault
  ) -> tf.Operation:
    """Records episodes that are skipped, int64 `[I]`, and their faults."""
    row = found._replace(step=tf.strings.as_string(found.step))
    return _insert(self.skipped, episodes, tf.stack(list(row), axis=1))

  def add_block(
      self,
      block: frame_blocks.FrameBlock,
      is_last: tf.Tensor,
      bootstraps: tf.Tensor,
  ) -> None:
    """Counts the NaNs of a block, and records how its episodes end.

    Args:
      block: a block with its steps.
      is_last: bool `[B]`: which of them are marked as the last ones.
      bootstraps: bool `[B]`: the steps that make their episode one of
        `bootstrapped_terminals`.
    """
    columns = [tf.cast(bootstraps, tf.float64), _last_rewards(block, is_last)]
    for _, leaf in steps_lib.float_fields(block.steps):
      are_nan = tf.reshape(tf.math.is_nan(leaf), [tf.size(is_last), -1])
      columns.append(tf.math.count_nonzero(are_nan, 1, dtype=tf.float64))
    rows = episode_batches.sum_rows(tf.stack(columns, 1), block.row_splits)
    # Most episodes have nothing to record.
    found = tf.where(tf.reduce_any(rows != 0, 1))[:, 0]
    _insert(
        self.blocks,
        # Of an episode in several blocks, each has a row.
        tf.gather(block.episode_ids, found) * MAX_STEPS + block.step,
        tf.gather(rows, found),
    )


def _last_rewards(block, is_last) -> tf.Tensor:
  """Returns the rewards of the last steps, float64 `[B]`; 0 of other steps."""
  leaves = [
      tf.reshape(tf.cast(leaf, tf.float64), [tf.size(is_last), -1])
      for leaf in tf.nest.flatten(block.steps[rlds.REWARD])
  ]
  numbers = tf.concat(leaves, axis=1)
  if numbers.shape[1] != 1:
    numbers = tf.abs(numbers)
  numbers = tf.where(tf.math.is_finite(numbers), numbers, 0)
  return tf.where(is_last, tf.reduce_sum(numbers, axis=1), 0)


def _insert(table, keys, values):
  return tf.raw_ops.LookupTableInsertV2(
      table_handle=table, keys=keys, values=values
  )
