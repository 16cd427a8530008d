"""`ConversionReport`: skipped episodes, and warnings about converted data."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import logging
import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_MAX_PRINTED = 10
# Tables with two indices have the key `first * _KEY_STRIDE + second`.
_KEY_STRIDE = 2**32


class SkippedEpisode(NamedTuple):
  """An episode that was skipped; see `ConversionReport.skipped_episodes`."""

  episode: int
  reason: str
  fault: errors.Fault


def format_warnings(
    num_bootstrapped: int,
    num_last_rewards: int,
    sum_last_rewards: float,
    nan_counts: Mapping[str, int],
    *,
    num_dropped: int = 0,
    sum_dropped: float = 0.0,
    examples: Sequence[str] = ('', '', ''),
) -> list[str]:
  """Returns warnings about data that was converted.

  Args:
    num_bootstrapped: the number of terminal episodes that bootstrap.
    num_last_rewards: the number of episodes with a reward in the last step that
      belongs to the transition into it.
    sum_last_rewards: the sum of these rewards.
    nan_counts: the number of NaNs in each field that holds any, by its path.
    num_dropped: the number of episodes with a reward in the last step that
      belongs to a transition after it, which is not in the data.
    sum_dropped: the sum of these rewards.
    examples: the first episode of each of the three kinds, in words, if known.
  """
  warnings = []
  if num_bootstrapped:
    warnings.append(
        f'In {num_bootstrapped} terminal episodes{examples[0]} the last'
        ' transition has a discount other than 0, so a learner bootstraps'
        ' through the terminal state. Pass'
        ' options=rlds2reverb.ConversionOptions(rules='
        'rlds2reverb.ConversionRules(terminal_discount="transition")), or to'
        ' rlds2reverb-convert --terminal_discount=transition, which makes it 0.'
    )
  if num_last_rewards:
    warnings.append(
        f'In {num_last_rewards} episodes{examples[1]} the last step has a'
        f' reward, {sum_last_rewards:g} in all. No transition has it, so no'
        ' learner sees it. StepMapping(last_reward="transition") moves it onto'
        ' the transition into that step.'
    )
  if num_dropped:
    warnings.append(
        f'In {num_dropped} episodes{examples[2]} the last transition is'
        ' dropped, because its next observation is not in the data. Their last'
        f' steps have its reward, {sum_dropped:g} in all, which no learner'
        ' sees.'
    )
  if nan_counts:
    counts = ', '.join(f'{n} in {field}' for field, n in nan_counts.items())
    warnings.append(
        f'The data holds NaN: {counts}. ConversionRules(nan="invalid") makes'
        ' that an error.'
    )
  return warnings


class ConversionReport:
  """Collects the skipped episodes of a conversion, and warnings.

  Pass a new report to a conversion, and read it after the converted data set
  has been iterated. The report is filled in graph mode. Each entry is stored
  under its position in the data set, so iterating a second time changes
  nothing.

      report = rlds2reverb.ConversionReport()
      rules = rlds2reverb.ConversionRules(invalid_episodes='skip')
      frames = rlds2reverb.convert_rlds_to_trajectories(
          data, options=rlds2reverb.ConversionOptions(rules, report=report))
      ...
      print(report)
      for skipped in report.skipped_episodes:
        print(skipped.episode, skipped.reason)

  Attributes:
    inserted_items: for each table, the number of new items that the server
      counts. Items that it already had under the same keys are not new. Only
      `push_rlds_to_reverb` fills this, when it has not failed.
  """

  def __init__(self):
    self.inserted_items: dict[str, int] = {}
    self._is_attached = False
    # A row for each operation and episode: the number of removed steps.
    self._removed = None
    self._operations: list[str] = []
    # A row for each skipped episode, with its fault.
    self._skipped = None
    # A row for each episode of a block, if any number is not 0. Its columns: 1
    # if it bootstraps, the reward of the last step, 1 if that reward belongs to
    # a dropped transition, and the number of NaNs of each field.
    self._blocks = None
    self._nan_fields: list[str] = []
    self._is_last_transition_dropped = False

  def __str__(self) -> str:
    """Returns the warnings, and the reasons of the first skipped episodes."""
    skipped = self.skipped_episodes
    lines = [
        *self.warnings,
        *(f'  {episode.reason}' for episode in skipped[1:_MAX_PRINTED]),
    ]
    if len(skipped) > _MAX_PRINTED:
      lines.append(f'  and {len(skipped) - _MAX_PRINTED} more')
    removed = self.removed_steps
    if removed:
      counts = ', '.join(f'{n:,} by {name}' for name, n in removed.items())
      lines.append(f'Transforms and filters removed steps: {counts}.')
    return (
        '\n'.join(lines) or 'No episode was skipped, and nothing looks wrong.'
    )

  @property
  def warnings(self) -> list[str]:
    """One paragraph for each kind of problem, skipped episodes last."""
    bootstrapped = self.bootstrapped_terminals
    dropped = self.dropped_rewards
    last_rewards = {
        episode: reward
        for episode, reward in self.last_rewards.items()
        if episode not in dropped
    }
    skipped = self.skipped_episodes
    warnings = format_warnings(
        len(bootstrapped),
        len(last_rewards),
        sum(last_rewards.values()),
        self.nan_counts,
        num_dropped=len(dropped),
        sum_dropped=sum(dropped.values()),
        examples=[
            f' (the first is episode {next(iter(episodes))})'
            if episodes
            else ''
            for episodes in (bootstrapped, last_rewards, dropped)
        ],
    )
    if skipped:
      warnings.append(
          f'Skipped {len(skipped)} invalid episodes. The first:'
          f' {skipped[0].reason}'
      )
    return warnings

  def warn(self) -> None:
    """Logs the warnings."""
    for warning in self.warnings:
      logging.warning('%s', warning)

  @property
  def skipped_episodes(self) -> list[SkippedEpisode]:
    """The skipped episodes, in the order of the data set.

    Each has the `episode`, its index in the data set; the `reason`, a sentence
    with the broken rule, the first step that breaks it, and the values there;
    and the `fault`, the same as values.
    """
    return [
        SkippedEpisode(
            episode,
            errors.describe_fault(fault, episode).numpy().decode(),
            fault,
        )
        for episode, fault in self.skipped_faults.items()
    ]

  @property
  def skipped_faults(self) -> dict[int, errors.Fault]:
    """The faults of the skipped episodes, by their index in the data set."""
    faults = {}
    for episode, row in sorted(_entries(self._skipped).items()):
      fault = errors.Fault(*(value.decode() for value in row))
      faults[episode] = fault._replace(step=int(fault.step))
    return faults

  @property
  def bootstrapped_terminals(self) -> list[int]:
    """The indices of terminal episodes whose last discount is not 0.

    This is the discount of the transition into the terminal state. A learner
    that uses it bootstraps from a terminal state. The rule
    `terminal_discount="transition"` sets the discount to 0.
    """
    return list(self._column(0))

  @property
  def last_rewards(self) -> dict[int, float]:
    """The reward of the last step, where it is not 0, by episode index.

    It belongs to no transition, so no learner sees it. `StepMapping` can move
    it onto the transition into the last step, unless it is one of
    `dropped_rewards`. If a reward has several numbers, it is the sum of their
    absolute values.
    """
    return self._column(1)

  @property
  def dropped_rewards(self) -> dict[int, float]:
    """The `last_rewards` that belong to a transition after the last step.

    The last transition of an episode is dropped if its next observation is not
    in the data, as in flat arrays without `next_observations`. This is assumed
    if the reader has marked it, or if the transition into the last step has a
    separate reward.
    """
    in_dropped = self._column(2)
    return {
        episode: reward
        for episode, reward in self.last_rewards.items()
        if self._is_last_transition_dropped or episode in in_dropped
    }

  @property
  def nan_counts(self) -> dict[str, int]:
    """The number of NaNs in each field that holds any, by its path."""
    counts = {}
    for column, field in enumerate(self._nan_fields, 3):
      rows = _entries(self._blocks).values()
      total = sum(int(row[column]) for row in rows)
      if total:
        counts[field] = counts.get(field, 0) + total
    return counts

  @property
  def removed_steps(self) -> dict[str, int]:
    """The number of steps that each transform or filter removed, by its class.

    If a filter drops an episode, its steps count as removed by that filter.
    Episodes that are skipped later, because they are invalid, are counted, too.
    The data must come from `transform_episodes`, or a job's config: other data
    sets, such as `data.take(10)`, have no counts.
    """
    counts: dict[str, int] = {}
    for position, [count] in _entries(self._removed).items():
      name = self._operations[position // _KEY_STRIDE]
      counts[name] = counts.get(name, 0) + int(count)
    return {name: counts[name] for name in self._operations if name in counts}

  def register_counter(
      self, name: str
  ) -> Callable[[tf.Tensor, tf.Tensor], tf.Operation]:
    """Registers an operation that removes steps.

    Args:
      name: the name of the operation.

    Returns:
      A function that records in a graph how many steps of each episode the
      operation removed; see `episode_dataset.StepCounter`.
    """
    if self._removed is None:
      self._removed = _make_table(tf.int64, [0])
    table, index = self._removed.resource_handle, len(self._operations)
    self._operations.append(name)
    return lambda episodes, counts: _set_rows(
        table, episodes + index * _KEY_STRIDE, counts[:, tf.newaxis]
    )

  def _column(self, column: int) -> dict[int, float]:
    """Returns the values of a column that are not 0, by episode index."""
    return {
        position // _KEY_STRIDE: float(row[column])
        for position, row in sorted(_entries(self._blocks).items())
        if row[column]
    }

  @property
  def is_attached(self) -> bool:
    """Whether the report serves a conversion."""
    return self._is_attached

  def attach(
      self,
      float_fields: Sequence[tuple[str, Any]],
      is_last_transition_dropped: bool = False,
  ) -> 'ReportTables':
    """Prepares the report for one conversion.

    Args:
      float_fields: the result of `steps.find_float_fields` for the steps.
      is_last_transition_dropped: whether a last step has the reward of a
        transition that its reader has dropped; see
        `episode_dataset.is_last_transition_dropped`.

    Returns:
      The tables that the conversion fills.

    Raises:
      ValueError: if the report already serves a conversion.
    """
    if self._is_attached:
      raise ValueError(
          'A ConversionReport serves one conversion, and this report has one'
          ' already. Create a new report.'
      )
    self._is_attached = True
    # A conversion that failed may have left entries.
    self.inserted_items.clear()
    self._skipped = _make_table(tf.string, [''] * len(errors.Fault._fields))
    self._nan_fields = [path for path, _ in float_fields]
    self._is_last_transition_dropped = is_last_transition_dropped
    self._blocks = _make_table(tf.float64, [0.0] * (3 + len(float_fields)))
    return ReportTables(
        self._skipped.resource_handle, self._blocks.resource_handle
    )

  def detach(self) -> None:
    """Allows another conversion, after one that failed; keeps the entries."""
    self._is_attached = False


def _make_table(dtype, default):
  return tf.lookup.experimental.MutableHashTable(
      tf.int64, dtype, tf.constant(default, dtype)
  )


def _entries(table) -> dict[int, Any]:
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

  def set_skipped(
      self, valid: tf.Tensor, episodes: tf.Tensor, faults: errors.Fault
  ) -> tf.Operation:
    """Records the skipped episodes of a batch.

    Args:
      valid: int64 `[V]`: the indices of the valid episodes.
      episodes: int64 `[I]`: the indices of the skipped episodes.
      faults: their faults, `[I]`.
    """
    row = faults._replace(step=tf.strings.as_string(faults.step))
    with tf.control_dependencies([self.remove_skipped(valid)]):
      return _insert(self.skipped, episodes, tf.stack(list(row), axis=1))

  def remove_skipped(self, valid: tf.Tensor) -> tf.Operation:
    """Removes entries of a previous pass, in which data had another order."""
    return tf.raw_ops.LookupTableRemoveV2(table_handle=self.skipped, keys=valid)

  def add_block(
      self,
      episodes: tf.Tensor,
      row_splits: tf.Tensor,
      first_step: tf.Tensor,
      *,
      steps: dict[str, Any],
      is_last: tf.Tensor,
      bootstraps: tf.Tensor,
  ) -> None:
    """Counts the NaNs of a block, and records how its episodes end.

    Args:
      episodes: int64 `[E]`: the index of each episode.
      row_splits: int64 `[E + 1]`: the row splits of the episodes.
      first_step: int64 `[]`: the index of the first step in its episode.
      steps: the used fields of the steps, `[B, ...]`.
      is_last: bool `[B]`: which steps are marked as the last ones.
      bootstraps: bool `[B]`: the steps that make their episode one of
        `bootstrapped_terminals`.
    """
    rewards = _scalar_rewards(steps)
    last_rewards = tf.where(is_last, rewards, 0)
    # The transition into the first row of an episode is not in this block.
    previous = tf.roll(rewards, 1, axis=0)
    num_steps = tf.size(is_last)
    counts = tf.math.bincount(
        tf.cast(row_splits[:-1], tf.int32), minlength=num_steps
    )
    is_start = counts[:num_steps] > 0
    is_in_dropped = (last_rewards != 0) & (is_start | (previous != 0))
    columns = [
        tf.cast(bootstraps, tf.float64),
        last_rewards,
        tf.cast(is_in_dropped, tf.float64),
    ]
    for _, leaf in steps_lib.find_float_fields(steps):
      is_nan = tf.reshape(tf.math.is_nan(leaf), [num_steps, -1])
      columns.append(tf.math.count_nonzero(is_nan, 1, dtype=tf.float64))
    rows = batch_lib.sum_rows(tf.stack(columns, 1), row_splits)
    # An episode in several blocks has a row for each.
    _set_rows(self.blocks, episodes * _KEY_STRIDE + first_step, rows)


def _scalar_rewards(steps) -> tf.Tensor:
  """Returns one number per step, float64 `[B]`.

  It is the reward, or the sum of the absolute values of a reward of several
  numbers.
  """
  leaves = [
      tf.reshape(tf.cast(leaf, tf.float64), [tf.shape(leaf)[0], -1])
      for leaf in tf.nest.flatten(steps[rlds.REWARD])
  ]
  numbers = tf.concat(leaves, axis=1)
  if numbers.shape[1] != 1:
    numbers = tf.abs(numbers)
  numbers = tf.where(tf.math.is_finite(numbers), numbers, 0)
  return tf.reduce_sum(numbers, axis=1)


def _set_rows(table, keys, rows):
  """Inserts rows, and removes rows that are 0, which most episodes have.

  If the data is reshuffled in a later pass, other episodes have the same
  positions, so entries of the last pass must not stay.
  """
  is_zero = tf.reduce_all(rows == 0, 1)
  removed = tf.raw_ops.LookupTableRemoveV2(
      table_handle=table, keys=tf.boolean_mask(keys, is_zero)
  )
  with tf.control_dependencies([removed]):
    return _insert(
        table,
        tf.boolean_mask(keys, ~is_zero),
        tf.boolean_mask(rows, ~is_zero),
    )


def _insert(table, keys, values):
  return tf.raw_ops.LookupTableInsertV2(
      table_handle=table, keys=keys, values=values
  )
