"""Adds up the statistics of episodes in one pass, in the graph.

All numbers of a step become one row of float64. A number that has no meaning,
such as the action of an episode's last step, is NaN in it. Blocks of rows, of
many episodes, are then reduced to the moments of each column and to a uniform
sample of the rows, which gives the quantiles.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import outcomes
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.statistics import accumulators
from rlds2reverb.statistics import leaves as leaves_lib
from rlds2reverb.statistics import results

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

NUM_OUTCOMES = 3  # the columns that are about an episode

# The fields that have no meaning in the last step of an episode.
_OF_TRANSITIONS = (rlds.REWARD, rlds.DISCOUNT)
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_LENGTH = 4096
_SAMPLE_BYTES = 64 << 20


class Rows(NamedTuple):
  """The numbers of steps, a row for each.

  The last `NUM_OUTCOMES` columns are about an episode, and mean something in
  the row of its last step: its return, its number of transitions, and whether
  it is terminal.

  Attributes:
    numbers: float64 `[N, D]`; NaN where a number has no meaning.
    are_meant: bool `[N, D]`: which of them have a meaning.
  """

  numbers: tf.Tensor
  are_meant: tf.Tensor


class State(NamedTuple):
  """What an `Accumulation` keeps of the rows that it has added.

  Attributes:
    steps: a sample of them.
    outcomes: a sample of the outcomes of their episodes.
    moments: their moments.
  """

  steps: accumulators.Sample
  outcomes: accumulators.Sample
  moments: accumulators.Moments

  def merge(self, other: 'State', seed: Sequence[int]) -> 'State':
    """Returns the state of the rows of two streams, eagerly.

    Args:
      other: the state of the stream that comes after this one, whose rows had
        another seed.
      seed: non-negative ints, other ones for each merge.
    """
    both: Any = enumerate(zip(self, other))
    return State(*(one.merge(more, [*seed, i]) for i, (one, more) in both))


class Accumulation:
  """Adds up the statistics of episodes, block by block.

  `compute_statistics` reads a data set with it. A program that reads the data
  for other reasons, too, can compute the statistics in the same pass:

      state, add = accumulation.empty(), accumulation.adder()
      for block in ...:  # the `rows` of several episodes, one after the other
        state = add(state, block)
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
    self.leaves = leaves_lib.choose_leaves(step_spec, fields)
    self.used = {rlds.REWARD, *rlds.FLAGS} | {
        keys[0] for keys, _ in self.leaves
    }
    self.used |= {last_steps.HAS_ACTION} & set(step_spec)
    sizes = [spec.shape.num_elements() for _, spec in self.leaves]
    self.width = NUM_OUTCOMES + sum(sizes)
    rows_of = lambda num_bytes: max(num_bytes // (8 * self.width), 1)
    self.block_length = min(rows_of(_BLOCK_BYTES), _MAX_BLOCK_LENGTH)
    self._size = min(sample_size, rows_of(_SAMPLE_BYTES))
    self._seed, self._acting_only = seed, acting_only
    self._quantiles = tuple(map(float, quantiles))

  def state_of(self, rlds_data: tf.data.Dataset) -> State:
    """Returns the state after all episodes of a data set, reading it once.

    Args:
      rlds_data: see `compute_statistics`.
    """
    blocks = (
        data_sets.batches_of(rlds_data, fields=self.used)
        .map(self.rows, tf.data.AUTOTUNE)
        .rebatch(self.block_length)
    )
    parts = blocks.map(self.part, tf.data.AUTOTUNE)
    return parts.reduce(self.empty(), self.add)

  def rows(self, batch: episode_batches.EpisodeBatch) -> Rows:
    """Returns the rows of all episodes of a batch, of `width` columns.

    Args:
      batch: a batch, whose steps have the fields `used`.

    Raises:
      InvalidArgumentError: if the leaves of its steps differ in length.
    """
    row_splits = batch.row_splits
    steps = stacked_steps.with_equal_lengths(batch.steps)
    batch = batch._replace(steps=steps)
    is_last = last_steps.are_last(row_splits)
    have_action = last_steps.have_action(steps, is_last)
    columns, are_meant = [], []

    def add(leaf, size, counts):
      leaf = tf.cast(leaf, tf.float64)
      columns.append(tf.reshape(leaf, [row_splits[-1], size]))
      are_meant.append(tf.tile(counts[:, None], [1, size]))

    for keys, spec in self.leaves:
      counts = tf.ones_like(is_last)
      if self._acting_only or keys[0] == rlds.ACTION:
        counts = have_action
      elif keys[0] in _OF_TRANSITIONS:
        counts = ~is_last
      add(paths.get(steps, keys), spec.shape.num_elements(), counts)
    episodes = episode_batches.episode_of_rows(row_splits)
    for outcome in outcomes.outcomes(batch):
      add(tf.gather(outcome, episodes), 1, is_last)
    numbers, are_meant = (tf.concat(one, 1) for one in (columns, are_meant))
    return Rows(tf.where(are_meant, numbers, np.nan), are_meant)

  def empty(self) -> State:
    """Returns the state before the first row."""
    nothing = tf.zeros([0, self.width], tf.float64)
    return State(
        accumulators.Sample.empty(self._size, self.width),
        accumulators.Sample.empty(self._size, NUM_OUTCOMES),
        accumulators.Moments.of(nothing, nothing > 0),
    )

  def part(self, block: Rows) -> Any:
    """Returns what `add` needs of a block of rows.

    It depends on nothing else, so that several are made in parallel.
    """
    numbers, are_meant = block
    # The last column is about an episode.
    ends = tf.boolean_mask(numbers, are_meant[:, -1])
    ends = ends[:, -NUM_OUTCOMES:]
    return numbers, ends, accumulators.Moments.of(numbers, are_meant)

  def add(self, state: State, part: Any) -> State:
    """Returns the state with the part of the next block added."""
    block, ends, moments = part
    return State(
        state.steps.add(block, self._seed),
        state.outcomes.add(ends, self._seed),
        state.moments.merge(moments),
    )

  def adder(self) -> Callable[[State, Rows], State]:
    """Returns a graph that adds blocks of rows, of any length, to a state."""
    state = tf.nest.map_structure(tf.type_spec_from_value, self.empty())
    numbers = tf.TensorSpec([None, self.width], tf.float64)
    are_meant = tf.TensorSpec([None, self.width], tf.bool)
    return tf.function(
        lambda state, block: self.add(state, self.part(block)),
        autograph=False,
        input_signature=(state, Rows(numbers, are_meant)),
    )

  def statistics(self, state: State) -> results.Statistics:
    """Returns the statistics of all rows that were added."""
    moments = tf.nest.map_structure(np.asarray, state.moments)
    # Of the outcomes, the sample of their own episodes is the better one.
    columns = state.steps.columns()[:-NUM_OUTCOMES] + state.outcomes.columns()
    kinds = [(spec.dtype.name, spec.shape) for _, spec in self.leaves]
    found, start = [], 0
    for dtype, shape in [*kinds, ('float64', ()), ('int64', ())]:
      span = slice(start, start := start + int(np.prod(shape)))
      levels = [
          np.quantile(column if column.size else [np.nan], self._quantiles)
          for column in columns[span]
      ]
      levels = np.reshape(levels, [len(levels), len(self._quantiles)]).T
      own = accumulators.Moments._make(one[span] for one in moments)
      levels = dict(zip(self._quantiles, levels))
      found.append(results.of_moments(own, dtype, shape, levels))
    *fields, returns, lengths = found
    # Every outcome is one number for an episode, so its mean gives the sum.
    num_episodes = int(moments.meant[-1])
    num_transitions, num_terminal = (
        int(round(mean * num_episodes)) for mean in moments.mean[-2:]
    )
    return results.Statistics(
        num_episodes,
        num_transitions + num_episodes,
        num_transitions,
        num_terminal,
        num_episodes - num_terminal,
        returns,
        lengths,
        {
            paths.name_of(keys): one
            for (keys, _), one in zip(self.leaves, fields)
        },
    )


def save(path: str, state: State) -> None:
  """Writes a state to a local file, where other processes can merge it."""
  with open(path, 'wb') as f:
    # Of a sample that is not full, most are zeros.
    np.savez_compressed(f, *map(np.asarray, tf.nest.flatten(state)))


def load(path: str) -> State:
  """Reads a state that `save` has written.

  Raises:
    OSError: if it cannot be read.
  """
  with files.open_binary(path) as f, np.load(f) as arrays:
    leaves = [tf.constant(arrays[name]) for name in arrays.files]
  return State(
      accumulators.Sample(*leaves[:2]),
      accumulators.Sample(*leaves[2:4]),
      accumulators.Moments(*leaves[4:]),
  )
