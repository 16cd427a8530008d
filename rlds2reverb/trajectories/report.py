"""What a conversion left out or found odd, asked for after the conversion."""

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import steps as steps_lib

_MAX_STEPS = 2**32  # no episode has as many


class SkippedEpisode(NamedTuple):
  """An episode that was left out.

  Attributes:
    episode: its index in the data set.
    reason: the rule that it breaks, the first step at fault, and what was found
      there.
  """

  episode: int
  reason: str


def frees_report(function: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a report that a call has taken be given to another, if it raises.

  What the report has collected until then can still be read.

  Args:
    function: takes a `ConversionReport`, or None, by the keyword `report`.
  """

  @functools.wraps(function)
  def call(*args, **kwargs):
    report = kwargs.get('report')
    # pylint: disable=protected-access
    was_free = report is not None and not report._is_taken
    try:
      return function(*args, **kwargs)
    except BaseException:
      if was_free:
        report._is_taken = False
      raise

  return call


class ConversionReport:
  """Collects what `invalid_episodes="skip"` left out, and what looks wrong.

  Give one to a conversion, and read it when the converted data set has been
  iterated. It is filled in graph mode. Entries go by their place in the data
  set, so iterating a second time changes nothing; a report serves one
  conversion.

      report = rlds2reverb.ConversionReport()
      frames = rlds2reverb.convert_rlds_to_trajectories(
          data, invalid_episodes='skip', report=report)
      ...
      for skipped in report.skipped_episodes:
        print(skipped.episode, skipped.reason)

  Attributes:
    inserted_items: the number of items that the server has confirmed, by table,
      without those that it had before under the same keys. Filled by
      `push_rlds_to_reverb` alone.
  """

  def __init__(self):
    self.inserted_items: Dict[str, int] = {}
    self._is_taken = False
    self._skipped = _table(tf.string, '')
    # A row a block: whether it bootstraps, and the NaNs of each field.
    self._blocks = None
    self._nan_fields = None

  @property
  def skipped_episodes(self) -> List[SkippedEpisode]:
    """The episodes that were left out, in their order."""
    return [
        SkippedEpisode(episode, reason.decode())
        for episode, reason in sorted(_entries(self._skipped).items())
    ]

  @property
  def bootstrapped_terminals(self) -> List[int]:
    """The terminal episodes whose last transition has a non-zero discount.

    A learner that goes by that discount bootstraps through their terminal
    states; `terminal_discount="transition"` makes it 0.
    """
    if self._nan_fields is None:
      return []
    return sorted(
        place // _MAX_STEPS
        for place, row in _entries(self._blocks).items()
        if row[0]
    )

  @property
  def nan_counts(self) -> Dict[str, int]:
    """How many NaNs each field holds that has any, by its path."""
    if not self._nan_fields:
      return {}
    totals = self._blocks.export()[1].numpy()[:, 1:].sum(axis=0)
    counts = {}
    for field, total in zip(self._nan_fields, totals):
      if total:
        counts[field] = counts.get(field, 0) + int(total)
    return counts

  def attach(self, nan_fields: Sequence[str]) -> None:
    """Makes the report ready for one conversion, with these float fields.

    Raises:
      ValueError: if it serves a conversion already.
    """
    if self._is_taken:
      raise ValueError(
          'A ConversionReport serves one conversion; this one has one already.'
          ' Create a new report.'
      )
    self._is_taken = True
    # A call that failed may have left something.
    self.inserted_items.clear()
    self._skipped = _table(tf.string, '')
    self._nan_fields = tuple(nan_fields)
    self._blocks = _table(tf.int64, [0] * (1 + len(nan_fields)))

  def add_skipped(self, episode: tf.Tensor, reason: tf.Tensor) -> tf.Tensor:
    """Notes that `episode` is left out; returns `reason`."""
    with tf.control_dependencies([self._skipped.insert(episode, reason)]):
      return tf.identity(reason)

  def add_block(self, block: blocks.Block, bootstraps: tf.Tensor) -> None:
    """Notes what is in a block.

    Args:
      block: whose NaNs are counted.
      bootstraps: bool `[]`: whether it belongs to `bootstrapped_terminals`.
    """
    row = tf.stack([
        tf.cast(bootstraps, tf.int64),
        *(
            tf.math.count_nonzero(tf.math.is_nan(leaf))
            for _, leaf in steps_lib.float_fields(block.steps)
        ),
    ])
    # One entry under the block's own key, or none. A cond would be as quick,
    # but takes longer to build.
    num_entries = tf.cast(tf.reduce_any(row > 0), tf.int32)
    self._blocks.insert(
        tf.fill([num_entries], block.episode * _MAX_STEPS + block.step),
        tf.broadcast_to(row, [num_entries, row.shape[0]]),
    )


def _table(dtype, default):
  return tf.lookup.experimental.MutableHashTable(
      tf.int64, dtype, tf.constant(default, dtype)
  )


def _entries(table) -> Dict[int, Any]:
  keys, values = table.export()
  return dict(zip(keys.numpy().tolist(), values.numpy()))
