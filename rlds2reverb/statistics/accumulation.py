"""Accumulates statistics of episodes in one pass, in the graph.

All numbers of a step become one row of float64, in which meaningless numbers,
such as the action of the last step of an episode, are NaN. Blocks of rows of
many episodes are reduced to the moments of each column, and to a uniform sample
of rows for the quantiles. Memory is constant, and the states of two streams can
be merged without their rows:

    rows          r0 r1 r2 r3      r4 r5 r6
    Sample        empty -- add --> s -- add --> s'      in the order of the rows
    Moments       empty -- merge(block) --> m'          blocks in parallel
    two streams                    merge(s', t')
"""

from collections.abc import Callable
from collections.abc import Sequence
import io
from typing import Any, NamedTuple
import zipfile

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.formats import npz
from rlds2reverb.statistics import results

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)

NUM_OUTCOMES = 3  # columns about an episode

# The fields that are meaningless in the last step of an episode.
_TRANSITION_FIELDS = (rlds.REWARD, rlds.DISCOUNT)
_MAX_LEAF_SIZE = 1024
_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_LENGTH = 4096
_MAX_SAMPLE_BYTES = 64 << 20
_MAX_HEADER_BYTES = 1 << 12  # of an array in a file
_MAX_COUNT = 2**50


class Sample(NamedTuple):
  """A uniform sample of rows, from which quantiles are computed.

  It is Algorithm R of Vitter, Random Sampling with a Reservoir (1985), applied
  to one block at a time.

  Attributes:
    rows: float64 `[size, D]`, padded with zeros while there are fewer rows.
    num_seen: int64 `[]`: the number of rows that were added.
  """

  rows: Any
  num_seen: Any

  @classmethod
  def empty(cls, size: int, width: int) -> 'Sample':
    """Returns an empty sample of up to `size` rows of `width` numbers."""
    return cls(tf.zeros([size, width], tf.float64), tf.constant(0, tf.int64))

  def add(self, block: tf.Tensor, seed: int) -> 'Sample':
    """Returns the sample after the next rows, float64 `[B, D]`."""
    size = self.rows.shape[0]
    num_rows = tf.shape(block, tf.int64)[0]
    index = self.num_seen + tf.range(num_rows)
    draws = tf.random.stateless_uniform(
        [num_rows], [tf.cast(seed, tf.int64), self.num_seen], dtype=tf.float64
    )
    # Row i draws a slot from 0 to i, and is stored if the sample has this slot.
    slots = tf.cast(draws * tf.cast(index + 1, tf.float64), tf.int64)
    slots = tf.where(index < size, index, slots)
    stored = tf.where(slots < size)[:, 0]
    # If several rows of the block draw one slot, the last row stays.
    slots, segments = tf.unique(tf.gather(slots, stored))
    last = tf.math.unsorted_segment_max(stored, segments, tf.size(slots))
    rows = tf.tensor_scatter_nd_update(
        self.rows, slots[:, None], tf.gather(block, last)
    )
    return Sample(rows, self.num_seen + num_rows)

  def merge(self, other: 'Sample', seed: Sequence[int]) -> 'Sample':
    """Returns the sample of the rows of two streams, eagerly.

    Args:
      other: the sample of the stream that follows.
      seed: non-negative ints, which differ between merges.
    """
    size = self.rows.shape[0]
    num_ours, num_theirs = int(self.num_seen), int(other.num_seen)
    samples = [self.get_rows(), other.get_rows()]
    if num_ours + num_theirs > size:
      rng = np.random.default_rng(seed)
      # The number of our rows is hypergeometric. NumPy's hypergeometric only
      # supports numbers up to 1e9.
      count = 0
      for i, draw in enumerate(rng.random(size).tolist()):
        count += draw * (num_ours + num_theirs - i) < num_ours - count
      samples = [
          rows[np.sort(rng.choice(len(rows), num_rows, replace=False))]
          for rows, num_rows in zip(samples, (count, size - count))
      ]
    rows = np.concatenate(samples)
    rows = np.pad(rows, [(0, size - len(rows)), (0, 0)])
    num_seen = tf.constant(num_ours + num_theirs, tf.int64)
    return Sample(tf.constant(rows), num_seen)

  def get_columns(self) -> list[np.ndarray]:
    """Returns the finite numbers of each column."""
    return [column[np.isfinite(column)] for column in self.get_rows().T]

  def get_rows(self) -> np.ndarray:
    """Returns the rows without padding."""
    return np.asarray(self.rows)[: int(self.num_seen)]


class NumberRows(NamedTuple):
  """The numbers of steps, one row per step.

  The last `NUM_OUTCOMES` columns are about an episode, and meaningful in the
  row of its last step: its return, its number of transitions, and whether it is
  terminal.

  Attributes:
    numbers: float64 `[N, D]`, NaN where a number is meaningless.
    mask: bool `[N, D]`: which numbers are meaningful.
  """

  numbers: tf.Tensor
  mask: tf.Tensor


class State(NamedTuple):
  """The state of an `Accumulation` after some rows.

  Attributes:
    steps: a sample of the rows.
    outcomes: a sample of the outcomes of their episodes.
    moments: the moments of the rows.
  """

  steps: Sample
  outcomes: Sample
  moments: results.Moments

  def merge(self, other: 'State', seed: Sequence[int]) -> 'State':
    """Returns the state after the rows of two streams, eagerly.

    Args:
      other: the state of the stream that follows, accumulated with another
        seed.
      seed: non-negative ints, which differ between merges.
    """
    return State(
        self.steps.merge(other.steps, [*seed, 0]),
        self.outcomes.merge(other.outcomes, [*seed, 1]),
        self.moments.merge(other.moments),
    )


def choose_leaves(
    step_spec: dict[str, Any], fields: Sequence[paths.Path] | None
) -> list[tuple[paths.KeyPath, tf.TensorSpec]]:
  """Returns the keys and specs of the leaves to compute statistics of.

  Args:
    step_spec: the spec of a step.
    fields: the paths of fields; or None for all except flags, strings, leaves
      of more than 1024 numbers, and leaves of unknown shape.

  Raises:
    ValueError: if there is no such field, or a leaf of a field does not have
      numbers of a known shape.
  """
  field_keys = [
      paths.find(step_spec, path)
      for path in ([()] if fields is None else fields)
  ]
  leaves = []
  for name, spec in paths.leaves(step_spec).items():
    keys = paths.find(step_spec, name)
    if not any(keys[: len(field)] == field for field in field_keys):
      continue
    is_numeric = (
        isinstance(spec, tf.TensorSpec)
        and spec.dtype != tf.string
        and spec.shape.is_fully_defined()
    )
    if fields is None and (
        keys[0] in (*rlds.FLAGS, batch_lib.HAS_ACTION)
        or not is_numeric
        or spec.shape.num_elements() > _MAX_LEAF_SIZE
    ):
      continue
    if not is_numeric:
      raise ValueError(
          f'{name} must have numbers of a known shape, but its spec is {spec}.'
          ' Name only fields with numbers.'
      )
    leaves.append((keys, spec))
  return leaves


class Accumulation:
  """Accumulates the statistics of episodes, block by block.

  `compute_statistics` uses it to read a data set. A program that also reads the
  data for other purposes can compute the statistics in the same pass:

      state, add = accumulation.empty(), accumulation.adder()
      for block in ...:  # the `rows` of several episodes, concatenated
        state = add(state, block)
      statistics = accumulation.statistics(state)

  Attributes:
    leaves: the keys and the spec of each leaf with statistics.
    used: the names of the step fields that `rows` reads.
    width: the number of columns of `rows`.
    block_length: a suitable number of rows per block.
  """

  def __init__(
      self,
      step_spec: dict[str, Any],
      fields: Sequence[paths.Path] | None = None,
      *,
      quantiles: Sequence[float] = QUANTILES,
      sample_size: int = 10_000,
      seed: int = 0,
      acting_only: bool = False,
  ):
    """Takes the spec of a step, and arguments of `compute_statistics`."""
    if fields is not None:
      paths.check_list('fields', fields)
    checks.check_positive('sample_size', sample_size)
    if not all(0 <= q <= 1 for q in quantiles):
      raise ValueError(f'quantiles must be in [0, 1], but are {quantiles}.')
    self.leaves = choose_leaves(step_spec, fields)
    self.used = {rlds.REWARD, *rlds.FLAGS}
    self.used |= {keys[0] for keys, _ in self.leaves}
    self.used |= {batch_lib.HAS_ACTION} & set(step_spec)
    sizes = [spec.shape.num_elements() for _, spec in self.leaves]
    self.width = NUM_OUTCOMES + sum(sizes)
    row_bytes = 8 * self.width
    self.block_length = min(
        max(_BLOCK_BYTES // row_bytes, 1), _MAX_BLOCK_LENGTH
    )
    self._sample_size = min(sample_size, max(_MAX_SAMPLE_BYTES // row_bytes, 1))
    self._seed, self._acting_only = seed, acting_only
    self._quantiles = tuple(map(float, quantiles))

  def accumulate(self, rlds_data: tf.data.Dataset) -> State:
    """Reads a data set once, and returns the state after all episodes.

    Args:
      rlds_data: see `compute_statistics`.
    """
    blocks = (
        episode_dataset.batches_of(rlds_data, fields=self.used)
        .map(self.rows, tf.data.AUTOTUNE)
        .rebatch(self.block_length)
    )
    reduced = blocks.map(self._reduce, tf.data.AUTOTUNE)
    return reduced.reduce(self.empty(), self._add)

  def rows(self, batch: batch_lib.EpisodeBatch) -> NumberRows:
    """Returns the rows of all episodes of a batch, with `width` columns.

    Args:
      batch: a batch whose steps have the fields `used`.

    Raises:
      InvalidArgumentError: if the leaves of its steps differ in length.
    """
    row_splits = batch.row_splits
    steps = steps_lib.check_equal_lengths(batch.steps)
    batch = batch._replace(steps=steps)
    is_last = batch_lib.last_row_mask(row_splits)
    has_action = batch_lib.has_action_mask(steps, is_last)
    columns, masks = [], []

    def add(leaf, size, is_valid):
      leaf = tf.cast(leaf, tf.float64)
      columns.append(tf.reshape(leaf, [row_splits[-1], size]))
      masks.append(tf.tile(is_valid[:, None], [1, size]))

    for keys, spec in self.leaves:
      is_valid = tf.ones_like(is_last)
      if self._acting_only or keys[0] == rlds.ACTION:
        is_valid = has_action
      elif keys[0] in _TRANSITION_FIELDS:
        is_valid = ~is_last
      add(paths.get(steps, keys), spec.shape.num_elements(), is_valid)
    episodes = batch_lib.episode_of_rows(row_splits)
    for outcome in batch_lib.compute_outcomes(batch):
      add(tf.gather(outcome, episodes), 1, is_last)
    numbers, mask = tf.concat(columns, 1), tf.concat(masks, 1)
    return NumberRows(tf.where(mask, numbers, np.nan), mask)

  def empty(self) -> State:
    """Returns the state before the first row."""
    no_rows = tf.zeros([0, self.width], tf.float64)
    return State(
        Sample.empty(self._sample_size, self.width),
        Sample.empty(self._sample_size, NUM_OUTCOMES),
        results.Moments.compute(no_rows, no_rows > 0),
    )

  def _reduce(self, block: NumberRows) -> Any:
    """Returns the arguments of `_add` for a block; blocks run in parallel."""
    numbers, mask = block
    # The last column is about an episode, and valid in its last row.
    outcome_rows = tf.boolean_mask(numbers, mask[:, -1])[:, -NUM_OUTCOMES:]
    return numbers, outcome_rows, results.Moments.compute(numbers, mask)

  def _add(self, state: State, reduced: Any) -> State:
    numbers, outcome_rows, moments = reduced
    return State(
        state.steps.add(numbers, self._seed),
        state.outcomes.add(outcome_rows, self._seed),
        state.moments.merge(moments),
    )

  def adder(self) -> Callable[[State, NumberRows], State]:
    """Returns a graph function that adds blocks of any length to a state."""
    state = tf.nest.map_structure(tf.type_spec_from_value, self.empty())
    numbers = tf.TensorSpec([None, self.width], tf.float64)
    mask = tf.TensorSpec([None, self.width], tf.bool)
    return tf.function(
        lambda state, block: self._add(state, self._reduce(block)),
        autograph=False,
        input_signature=(state, NumberRows(numbers, mask)),
    )

  def statistics(self, state: State) -> results.Statistics:
    """Returns the statistics of all rows that were added."""
    moments = tf.nest.map_structure(np.asarray, state.moments)
    # Outcomes are sampled separately, so that the sample has more of them.
    columns = state.steps.get_columns()[:-NUM_OUTCOMES]
    columns += state.outcomes.get_columns()
    kinds = [(spec.dtype.name, spec.shape) for _, spec in self.leaves]
    statistics, start = [], 0
    for dtype, shape in [*kinds, ('float64', ()), ('int64', ())]:
      span = slice(start, start := start + int(np.prod(shape)))
      values = [
          np.quantile(column if column.size else [np.nan], self._quantiles)
          for column in columns[span]
      ]
      values = np.reshape(values, [len(values), len(self._quantiles)]).T
      field_moments = results.Moments(*(leaf[span] for leaf in moments))
      statistics.append(
          field_moments.to_statistics(
              dtype, shape, dict(zip(self._quantiles, values))
          )
      )
    *fields, returns, lengths = statistics
    # The sums of the outcomes, from their means over all episodes.
    num_episodes = int(moments.num_valid[-1])
    num_transitions, num_terminal = (
        int(round(mean * num_episodes)) for mean in moments.mean[-2:]
    )
    names = [paths.name_of(keys) for keys, _ in self.leaves]
    return results.Statistics(
        num_episodes=num_episodes,
        num_steps=num_transitions + num_episodes,
        num_transitions=num_transitions,
        num_terminal=num_terminal,
        num_truncated=num_episodes - num_terminal,
        returns=returns,
        lengths=lengths,
        fields=dict(zip(names, fields)),
    )


def save(path: str, state: State) -> None:
  """Writes a state to a local file, from which other processes can merge it."""
  # In memory first: an open zip file would hide the error of a full disk.
  buffer = io.BytesIO()
  # Compressed, because a sample is mostly padding for small data sets.
  np.savez_compressed(buffer, *map(np.asarray, tf.nest.flatten(state)))
  with open(path, 'wb') as f:
    f.write(buffer.getbuffer())


def load(path: str, like: State) -> State:
  """Reads a state that `save` wrote.

  Args:
    path: the file.
    like: a state of the same accumulation, such as the empty one.

  Raises:
    OSError, ValueError, zipfile.BadZipFile, zlib.error: if it cannot be read.
    ValueError: if it is not a state of this accumulation.
  """
  leaves = []
  with files.open_binary(path) as f, zipfile.ZipFile(f) as archive:
    for index, leaf in enumerate(tf.nest.flatten(like)):
      leaf = np.asarray(leaf)
      info = archive.getinfo(f'arr_{index}.npy')
      # A small file can expand to any size.
      if info.file_size > leaf.nbytes + _MAX_HEADER_BYTES:
        raise ValueError(f'{info.filename} has {info.file_size} bytes')
      with archive.open(info) as member:
        array = npz.read_array(member, info.file_size)
      if (array.dtype, array.shape) != (leaf.dtype, leaf.shape):
        raise ValueError(
            f'{info.filename} must be {leaf.dtype} {leaf.shape}, but is'
            f' {array.dtype} {array.shape}'
        )
      leaves.append(array)
  state = tf.nest.pack_sequence_as(like, leaves)
  counts = [state.steps.num_seen, state.outcomes.num_seen]
  counts += [*state.moments.count, *state.moments.num_valid]
  # They are added to each other, and made integers.
  if not all(0 <= count <= _MAX_COUNT for count in counts):
    raise ValueError('its counts are no counts of steps')
  if not np.isfinite(state.moments.mean[-NUM_OUTCOMES + 1 :]).all():
    raise ValueError('it has no mean length of an episode')
  return tf.nest.map_structure(tf.constant, state)
