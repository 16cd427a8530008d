"""`ConversionReport` tells what a conversion skipped and what looks wrong."""

from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from absl import logging
import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import frame_blocks

_MAX_PRINTED = 10
_MAX_STEPS = 2**32  # More steps than any episode has.


class SkippedEpisode(NamedTuple):
  """An episode that was skipped; see `ConversionReport.skipped_episodes`."""

  episode: int
  reason: str
  fault: faults.Fault


def warnings_of(
    num_bootstrapped: int,
    num_last_rewards: int,
    sum_last_rewards: float,
    nan_counts: Mapping[str, int],
    *,
    firsts: Sequence[str] = ('', ''),
) -> List[str]:
  """Returns warnings about data that was converted.

  Args:
    num_bootstrapped: how many terminal episodes bootstrap.
    num_last_rewards: how many episodes have a reward in the last step.
    sum_last_rewards: the sum of these rewards.
    nan_counts: the number of NaNs in each field that holds any, by its path.
    firsts: the first episode that bootstraps, and the first with such a reward,
      in words, if they are known.
  """
  found = []
  if num_bootstrapped:
    found.append(
        f'In {num_bootstrapped} terminal episodes{firsts[0]} the last'
        ' transition has a discount other than 0, so a learner bootstraps'
        ' through the terminal state. Pass'
        ' options=rlds2reverb.ConversionOptions(rules='
        'rlds2reverb.ConversionRules(terminal_discount="transition")), or to'
        ' rlds2reverb-convert --terminal_discount=transition, which makes it 0.'
    )
  if num_last_rewards:
    found.append(
        f'In {num_last_rewards} episodes{firsts[1]} the last step has a reward,'
        f' {sum_last_rewards:g} in all. No transition has it, so no learner'
        ' sees it. StepMapping(last_reward="transition") moves it onto the'
        ' transition into that step.'
    )
  if nan_counts:
    counts = ', '.join(f'{n} in {field}' for field, n in nan_counts.items())
    found.append(
        f'The data holds NaN: {counts}. ConversionRules(nan="invalid") makes'
        ' that an error.'
    )
  return found


class ConversionReport:
  """Collects the episodes that a conversion skipped, and what looks wrong.

  Give a new report to a conversion, and read it after the converted data set
  has been iterated. The report is filled in graph mode. Each entry is stored
  under its place in the data set, so iterating a second time changes nothing.

      report = rlds2reverb.ConversionReport()
      rules = rlds2reverb.ConversionRules(invalid_episodes='skip')
      frames = rlds2reverb.convert_rlds_to_trajectories(
          data, options=rlds2reverb.ConversionOptions(rules, report=report))
      ...
      print(report)
      for skipped in report.skipped_episodes:
        print(skipped.episode, skipped.reason)

  Attributes:
    inserted_items: for each table, the number of items that the server has
      confirmed. Items that the server already had under the same keys are not
      counted. Only `push_rlds_to_reverb` fills this.
  """

  def __init__(self):
    self.inserted_items: Dict[str, int] = {}
    self._is_taken = False
    # A row for each skipped episode, with its fault.
    self._skipped = None
    # A row for what a block has of an episode: 1 if that bootstraps, the reward
    # of its last step, and how many NaN each field has; if any is not 0.
    self._blocks = None
    self._nan_fields: List[str] = []

  def __str__(self) -> str:
    """Says what looks wrong, and why each of the first episodes was skipped."""
    skipped = self.skipped_episodes
    lines = [
        *self.warnings,
        *(f'  {each.reason}' for each in skipped[1:_MAX_PRINTED]),
    ]
    if len(skipped) > _MAX_PRINTED:
      lines.append(f'  and {len(skipped) - _MAX_PRINTED} more')
    return (
        '\n'.join(lines) or 'No episode was skipped, and nothing looks wrong.'
    )

  @property
  def warnings(self) -> List[str]:
    """A paragraph for each thing that looks wrong, skipped episodes last."""
    bootstrapped = self.bootstrapped_terminals
    last_rewards = self.last_rewards
    skipped = self.skipped_episodes
    found = warnings_of(
        len(bootstrapped),
        len(last_rewards),
        sum(last_rewards.values()),
        self.nan_counts,
        firsts=[
            f' (the first is episode {next(iter(episodes))})'
            if episodes
            else ''
            for episodes in (bootstrapped, last_rewards)
        ],
    )
    if skipped:
      found.append(
          f'Skipped {len(skipped)} invalid episodes. The first:'
          f' {skipped[0].reason}'
      )
    return found

  def warn(self) -> None:
    """Logs the warnings."""
    for warning in self.warnings:
      logging.warning('%s', warning)

  @property
  def skipped_episodes(self) -> List[SkippedEpisode]:
    """The skipped episodes, in the order of the data set.

    Each has the `episode`, which is its index in the data set; the `reason`, a
    sentence with the broken rule, the first step that breaks it, and what was
    found there; and the `fault`, the same as values.
    """
    return [
        SkippedEpisode(
            episode, faults.sentence(fault, episode).numpy().decode(), fault
        )
        for episode, fault in self.skipped_faults.items()
    ]

  @property
  def skipped_faults(self) -> Dict[int, faults.Fault]:
    """The faults of the skipped episodes, by their index in the data set."""
    found = {}
    for episode, row in sorted(_entries(self._skipped).items()):
      fault = faults.Fault(*(value.decode() for value in row))
      found[episode] = fault._replace(step=int(fault.step))
    return found

  @property
  def bootstrapped_terminals(self) -> List[int]:
    """The indices of terminal episodes whose last discount is not 0.

    This is the discount of the transition into the terminal state. A learner
    that relies on it bootstraps from a state after which nothing follows. The
    rule `terminal_discount="transition"` sets the discount to 0.
    """
    return list(self._numbers(0))

  @property
  def last_rewards(self) -> Dict[int, float]:
    """The reward of the last step, where it is not 0, by episode index.

    It belongs to no transition, so no learner sees it. `StepMapping` can move
    it onto the transition into the last step. If a reward has several numbers,
    it is the sum of their absolute values.
    """
    return self._numbers(1)

  @property
  def nan_counts(self) -> Dict[str, int]:
    """The number of NaNs in each field that holds any, by its path."""
    counts = {}
    for column, field in enumerate(self._nan_fields, 2):
      rows = _entries(self._blocks).values()
      total = sum(int(row[column]) for row in rows)
      if total:
        counts[field] = counts.get(field, 0) + total
    return counts

  def _numbers(self, column: int) -> Dict[int, float]:
    """Returns a number of each episode that has one other than 0, by index."""
    return {
        place // _MAX_STEPS: float(row[column])
        for place, row in sorted(_entries(self._blocks).items())
        if row[column]
    }

  def attach(self, float_fields: Sequence[Tuple[str, Any]]) -> 'ReportTables':
    """Prepares the report for one conversion.

    Args:
      float_fields: those of the steps, as `steps.float_fields` returns them.

    Returns:
      The tables that the conversion fills.

    Raises:
      ValueError: if the report already serves a conversion.
    """
    if self._is_taken:
      raise ValueError(
          'A ConversionReport serves one conversion; this one has one already.'
          ' Create a new report.'
      )
    self._is_taken = True
    # An earlier call that failed may have left entries.
    self.inserted_items.clear()
    self._skipped = _table(tf.string, [''] * len(faults.Fault._fields))
    self._nan_fields = [path for path, _ in float_fields]
    self._blocks = _table(tf.float64, [0.0] * (2 + len(float_fields)))
    return ReportTables(
        self._skipped.resource_handle, self._blocks.resource_handle
    )


def _table(dtype, default):
  return tf.lookup.experimental.MutableHashTable(
      tf.int64, dtype, tf.constant(default, dtype)
  )


def _entries(table) -> Dict[int, Any]:
  if table is None:
    return {}
  keys, values = table.export()
  return dict(zip(keys.numpy().tolist(), values.numpy()))


class ReportTables(NamedTuple):
  """The tables that a conversion fills in graph mode, for its report.

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
      steps: Dict[str, Any],
      is_last: tf.Tensor,
      bootstraps: tf.Tensor,
  ) -> None:
    """Counts the NaNs of a block, and records how its episodes end.

    Args:
      block: the block.
      steps: the fields of its steps that are used, `[B, ...]`.
      is_last: bool `[B]`: which of them are marked as the last ones.
      bootstraps: bool `[B]`: the steps that make their episode one of
        `bootstrapped_terminals`.
    """
    columns = [tf.cast(bootstraps, tf.float64), _last_rewards(steps, is_last)]
    for _, leaf in steps_lib.float_fields(steps):
      are_nan = tf.reshape(tf.math.is_nan(leaf), [tf.size(is_last), -1])
      columns.append(tf.math.count_nonzero(are_nan, 1, dtype=tf.float64))
    rows = episode_batches.sum_rows(tf.stack(columns, 1), block.row_splits)
    # Most episodes have nothing to record.
    found = tf.where(tf.reduce_any(rows != 0, 1))[:, 0]
    _insert(
        self.blocks,
        # Of an episode in several blocks, each has a row.
        tf.gather(block.episode_ids, found) * _MAX_STEPS + block.step,
        tf.gather(rows, found),
    )


def _last_rewards(steps, is_last) -> tf.Tensor:
  """Returns the rewards of the last steps, float64 `[B]`; 0 of other steps."""
  leaves = [
      tf.reshape(tf.cast(leaf, tf.float64), [tf.size(is_last), -1])
      for leaf in tf.nest.flatten(steps[rlds.REWARD])
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
