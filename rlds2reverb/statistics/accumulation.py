"""Adds up the statistics of episodes in one pass, in the graph.

All numbers of a step become one row of float64. A number that has no meaning,
such as the action of an episode's last step, is NaN in it. Blocks of rows, of
many episodes, are then reduced to the moments of each column and to a uniform
sample of the rows, which gives the quantiles. The moments of two blocks are
merged. The memory that this takes does not grow with the data.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.statistics import moments as moments_lib
from rlds2reverb.statistics import reservoir
from rlds2reverb.statistics import results
from rlds2reverb.statistics import rows as rows_lib

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# The names of the two samples that belong to no field.
RETURNS = '/returns'
LENGTHS = '/lengths'

_FLAGS = (rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL)
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_LENGTH = 4096
_SAMPLE_BYTES = 64 << 20


class State(NamedTuple):
  """The moments and samples of the rows that an `Accumulation` has added.

  Attributes:
    moments: their moments.
    steps: a sample of them.
    outcomes: a sample of the outcomes of their episodes.
  """

  moments: moments_lib.Moments
  steps: reservoir.Reservoir
  outcomes: reservoir.Reservoir


class Accumulation:
  """Adds up the statistics of episodes, block by block.

  `compute_statistics` reads a data set with it. A program that reads the data
  for other reasons, too, can compute the statistics in the same pass:

      state = accumulation.empty()
      for block in ...:  # the `rows` of several episodes, one after the other
        state = accumulation.add(state, moments.of_block(block), block)
      statistics = accumulation.statistics(state)

  Attributes:
    leaves: the keys and the spec of each leaf that has statistics.
    used: the names of the step fields that `rows` reads.
    width: the number of columns of `rows`.
    block_length: the number of rows that make a block of a good size.
  """

  def __init__(
      self,
      step_spec: Dict[str, Any],
      fields: Optional[Sequence[paths.Path]] = None,
      *,
      quantiles: Sequence[float] = QUANTILES,
      sample_size: int = 10_000,
      seed: int = 0,
      acting_only: bool = False,
  ):
    """Takes arguments of `compute_statistics`, and the spec of a step."""
    if fields is not None:
      paths.check_list('fields', fields)
    if sample_size < 1 or not all(0 <= q <= 1 for q in quantiles):
      raise ValueError(
          'sample_size must be positive and quantiles in [0, 1], but they are'
          f' {sample_size} and {quantiles}.'
      )
    self.leaves = rows_lib.choose_leaves(step_spec, fields)
    self.used = {keys[0] for keys, _ in self.leaves} | {rlds.REWARD, *_FLAGS}
    self.used |= {last_steps.HAS_ACTION} & set(step_spec)
    self.width = rows_lib.NUM_OUTCOMES + sum(
        spec.shape.num_elements() for _, spec in self.leaves
    )
    self.block_length = min(
        max(_BLOCK_BYTES // (8 * self.width), 1), _MAX_BLOCK_LENGTH
    )
    self._quantiles = tuple(quantiles)
    self._sample_size = max(
        min(sample_size, _SAMPLE_BYTES // (8 * self.width)), 1
    )
    self._seed = seed
    self._acting_only = acting_only

  def state_of(self, rlds_data: tf.data.Dataset) -> State:
    """Returns the state after all episodes of a data set, reading it once.

    Args:
      rlds_data: see `compute_statistics`.
    """
    batches = data_sets.batches_of(rlds_data, fields=self.used)
    rows = batches.map(
        graphs.no_autograph(self.batch_rows),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    # The moments of a block depend on no other block, so several are computed
    # in parallel.
    blocks = rows.rebatch(self.block_length).map(
        lambda block: (moments_lib.of_block(block), block),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return blocks.reduce(
        self.empty(), lambda state, block: self.add(state, *block)
    )

  def rows(self, steps: Dict[str, Any]) -> tf.Tensor:
    """Returns the rows of an episode, float64 `[T, width]`, in graph mode.

    Args:
      steps: a dict of stacked steps `[T, ...]`, with the fields `used`.
    """
    return self.batch_rows(episode_batches.of_one(steps))

  def batch_rows(self, batch: episode_batches.EpisodeBatch) -> tf.Tensor:
    """Returns the rows of all episodes of a batch, float64 `[N, width]`.

    Args:
      batch: a batch, whose steps have the fields `used`.

    Raises:
      InvalidArgumentError: if the leaves of its steps differ in length.
    """
    steps = stacked_steps.with_equal_lengths(batch.steps)
    return rows_lib.to_rows(
        batch._replace(steps=steps), self.leaves, self._acting_only
    )

  def empty(self) -> State:
    """Returns the state before the first row."""
    return State(
        moments_lib.none(self.width),
        reservoir.empty(self._sample_size, self.width),
        reservoir.empty(self._sample_size, rows_lib.NUM_OUTCOMES),
    )

  def add(
      self, state: State, moments: moments_lib.Moments, block: tf.Tensor
  ) -> State:
    """Returns the state with a block of rows added, in graph mode.

    Args:
      state: the state before.
      moments: the moments of the block.
      block: the rows of any episodes, float64 `[B, width]`.
    """
    ends = block[:, -rows_lib.NUM_OUTCOMES :]
    # The last column is finite in the last row of an episode, where the return
    # need not be.
    ends = tf.boolean_mask(ends, tf.math.is_finite(ends[:, -1]))
    return State(
        moments_lib.merge(state.moments, moments),
        reservoir.add(state.steps, block, self._seed),
        reservoir.add(state.outcomes, ends, self._seed),
    )

  def statistics(self, state: State) -> results.Statistics:
    """Returns the statistics of all rows that were added."""
    moments = moments_lib.Moments(*(leaf.numpy() for leaf in state.moments))
    steps, outcomes = self._sampled(state)
    return results.from_sample(
        moments,
        steps,
        outcomes,
        self.leaves,
        self._quantiles,
        self._acting_only,
    )

  def samples(self, state: State) -> Dict[str, List[np.ndarray]]:
    """Returns the sample that the quantiles are taken from.

    Args:
      state: the state after the last row.

    Returns:
      For each field, by its path, and for `RETURNS` and `LENGTHS`, the finite
      numbers of each column: a list of arrays.
    """
    steps, ends = self._sampled(state)
    columns = [results.finite(column) for column in steps.T]
    sampled = {
        RETURNS: [results.finite(ends[:, 0])],
        LENGTHS: [results.finite(ends[:, 1])],
    }
    start = 0
    for keys, spec in self.leaves:
      end = start + spec.shape.num_elements()
      sampled[paths.name_of(keys)] = columns[start:end]
      start = end
    return sampled

  def _sampled(self, state):
    """Returns the samples of steps and of outcomes, without unfilled rows."""
    return (
        state.steps.rows.numpy()[: state.steps.seen],
        state.outcomes.rows.numpy()[: state.outcomes.seen],
    )
