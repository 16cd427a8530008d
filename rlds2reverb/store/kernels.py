"""Compiled loops of the sampling core.

Each kernel is a plain loop that Numba compiles. `tests/store/kernels_test.py`
has a NumPy function of the same name for each of them. Kernels write into
arrays of the caller, allocate next to nothing, and release Python's lock.

Importing this module imports Numba and compiles the kernels, or loads them from
Numba's cache on disk. Modules that use kernels therefore import this module
lazily.
"""

import functools
import time
from typing import Any

from absl import logging
from llvmlite import ir
import numba
from numba import extending
import numpy as np

# How much of the rows stays in the processor's fastest cache.
_CACHED_BYTES = 1 << 15
# The size of a line of this cache.
_LINE_BYTES = 64

# Kernels accept memory that is mapped read-only.
_ITEMS = numba.types.Array(numba.int64, 1, 'C', readonly=True)
_FLOATS = numba.types.Array(numba.float64, 1, 'C', readonly=True)
_NEW_ITEMS, _NEW_FLOATS = numba.int64[::1], numba.float64[::1]


def _kernel(*signatures):
  """Compiles a function at import, with a cache on disk where possible."""

  def compile_kernel(function):
    jit = functools.partial(
        numba.njit,
        [*signatures],
        nogil=True,
        no_cfunc_wrapper=True,
        error_model='numpy',  # A division by 0 is infinite, not an error.
    )
    try:
      kernel = jit(cache=True)(function)
    except RuntimeError:  # No cache folder is writable.
      kernel = jit()(function)
    _kernels.append(kernel)
    return kernel

  return compile_kernel


def _log_seconds(kernels, start):
  """Logs and returns the time since `start`, unless the cache had kernels."""
  duration = time.perf_counter() - start
  # Without a cache, there are no hits either.
  if not all(kernel.stats.cache_hits for kernel in kernels):
    logging.info(
        'Compiled %d sampling kernels in %.1f s.', len(kernels), duration
    )
  return duration


# Only kernels call these functions. Wrappers for Python and C would take a
# quarter of the time of compiling.
_inner = numba.njit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)
_kernels: list[Any] = []
_start = time.perf_counter()


@_inner
def _split_mix(seed, position):
  """Returns a number in [0, 1) from the SplitMix64 stream of a seed."""
  bits = seed + (position + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
  bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  bits ^= bits >> np.uint64(31)
  return (bits >> np.uint64(11)) * 2.0**-53


@_kernel(numba.void(numba.uint64, numba.uint64, _NEW_FLOATS))
def draw_fractions(seed, first, fractions):
  """Draws numbers in [0, 1) from the SplitMix64 stream of a seed.

  Args:
    seed: the start of the stream.
    first: the position in the stream of the first number.
    fractions: receives the numbers, float64 `[N]`.
  """
  for k in range(len(fractions)):
    fractions[k] = _split_mix(seed, first + np.uint64(k))


@_kernel(
    numba.void(
        numba.uint64, numba.uint64, numba.int64, numba.int64,
        _NEW_ITEMS, _NEW_FLOATS,
    )
)  # fmt: skip
def draw_uniform(seed, first, first_item, num_items, items, probability):
  """Draws items with equal probability, with replacement.

  Args:
    seed: the start of a SplitMix64 stream.
    first: the position in the stream of the first draw.
    first_item: the index of the first item.
    num_items: the number of items.
    items: receives the item indices, int64 `[N]`.
    probability: receives the probability of each item, float64 `[N]`.
  """
  probability[:] = 1 / num_items
  for k in range(len(items)):
    # A product may be rounded up to `num_items` itself.
    place = np.int64(_split_mix(seed, first + np.uint64(k)) * num_items)
    items[k] = first_item + min(place, num_items - 1)


@_kernel(numba.void(_ITEMS, numba.int64, numba.int64[:, ::1], _NEW_ITEMS))
def permute(positions, count, tables, items):
  """Finds the items at positions of a random order without replacement.

  The order is a Feistel network on pairs `(row, column)` of numbers below
  `count`, rounded up to a rectangle. An item outside of `count` is permuted
  again, as in "Ciphers with Arbitrary Finite Domains" (Black and Rogaway,
  2002).

  Args:
    positions: positions in the order, int64 `[N]`.
    count: the number of items in the order.
    tables: the random function of each round, int64 `[rounds, width]`. Even
      rounds have numbers below the number of rows, odd rounds below the number
      of columns, which is the width or one less.
    items: receives the items, int64 `[N]`.
  """
  num_rows = tables.shape[1]
  num_columns = (count + num_rows - 1) // num_rows
  for k in range(len(positions)):
    item = positions[k]
    while True:
      row, column = item // num_columns, item % num_columns
      for round_index in range(len(tables)):
        if round_index % 2 == 0:
          row += tables[round_index, column]
          if row >= num_rows:
            row -= num_rows
        else:
          column += tables[round_index, row]
          if column >= num_columns:
            column -= num_columns
      item = row * num_columns + column
      if item < count:
        break
    items[k] = item


@_kernel(
    numba.void(
        _ITEMS, _ITEMS, numba.int64, _ITEMS, _ITEMS, numba.int64, _ITEMS,
        _ITEMS, _NEW_ITEMS, _NEW_ITEMS, _NEW_ITEMS,
    )
)  # fmt: skip
def find_items(
    episode_begins, guide, shift, offsets, latest, stride, ends, items,
    episode, start, end,
):  # fmt: skip
  """Finds the rows of items, given the items' indices.

  Args:
    episode_begins: the index of the first item of each episode, ascending, and
      at the end the number of items; int64 `[E + 1]`.
    guide: the episode of every `2**shift`-th item, and at the end the last
      episode. A search needs only to look between two of them.
    shift: the binary logarithm of the distance between these items.
    offsets: for each episode, the row at which item 0 would start if it were an
      item of the episode.
    latest: for each episode, the last row at which an item may start.
    stride: the number of rows between the starts of consecutive items.
    ends: the row after the last row of each episode.
    items: the item indices, int64 `[N]`.
    episode: receives the episode of each item, int64 `[N]`.
    start: receives the first row of each item.
    end: receives the row after the last row of the item's episode.
  """
  for k in range(len(items)):
    # A binary search without branches, which the processor could not predict.
    low = guide[items[k] >> shift]
    count = guide[(items[k] >> shift) + 1] - low + 1
    while count > 1:
      half = count // 2
      low += half * (episode_begins[low + half] <= items[k])
      count -= half
    episode[k] = low
    start[k] = min(items[k] * stride + offsets[low], latest[low])
    end[k] = ends[low]


def _gather_signature(word):
  words = numba.types.Array(word, 1, 'C', readonly=True)
  return numba.void(
      words, words, _ITEMS, _ITEMS, numba.int64, numba.boolean,
      numba.int64[:, ::1], word[::1],
  )  # fmt: skip


@extending.intrinsic
def _prefetch(typing_context, words, index):
  """Asks the processor to load the cache line of a word, without waiting."""
  del typing_context

  def generate(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(
        context, builder, arguments[0]
    )
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    prefetch = builder.module.declare_intrinsic(
        'llvm.prefetch',
        [byte],
        ir.FunctionType(ir.VoidType(), [byte, *[flag] * 3]),
    )
    address = builder.bitcast(builder.gep(array.data, [arguments[1]]), byte)
    # Read data, which is used often.
    builder.call(prefetch, [address, flag(0), flag(3), flag(1)])
    return context.get_dummy_value()

  return numba.void(words, index), generate


@_inner
def _copy_words(rows, word, width, size, num_rows, gathered, to):
  """Copies `size` words of each of some rows of `width` words.

  The first words are word `word` of `rows`, and go to word `to` of `gathered`.
  All integers but `num_rows` are unsigned: Numba checks signed indices for
  negative ones, which is slower.
  """
  if size == np.uint64(1):
    for _ in range(num_rows):
      gathered[to] = rows[word]
      to += np.uint64(1)
      word += width
  else:
    for _ in range(num_rows):
      for offset in range(size):
        gathered[to + offset] = rows[word + offset]
      to += size
      word += width


@functools.cache
def gather_words(dtype):
  """Returns the kernel of `gather` for words of a dtype, uint8 or uint32.

  Few data sets need both.
  """
  start = time.perf_counter()
  kernel = _kernel(_gather_signature(numba.from_dtype(dtype)))(gather)
  _log_seconds([kernel], start)
  return kernel


def gather(rows, padding, starts, ends, length, repeats, columns, gathered):
  """Gathers columns of windows of rows.

  A word is an element of `rows`: 1 or 4 bytes. `gather_words` compiles it.

  Args:
    rows: all rows, one after the other, `[num_rows * width]` words.
    padding: the row of padding, `[width]` words.
    starts: the first row of each window, int64 `[N]`.
    ends: the row at which the padding of each window begins, int64 `[N]`.
    length: the number of rows of a window.
    repeats: whether windows repeat their last row in place of `padding`.
    columns: of each column the first word in a row, the number of words, and
      the first word in `gathered`; int64 `[C, 3]`.
    gathered: receives the columns, each an array `[N, length, words]`.
  """
  width = np.uint64(len(padding))
  window = np.uint64(length) * width
  step = np.int64(_CACHED_BYTES // (window * np.uint64(rows.itemsize)))
  line = np.uint64(_LINE_BYTES // rows.itemsize)
  if step >= 2:
    # Rows in memory are read once and in their order. All columns are copied
    # from these few windows, which stay in the processor's cache.
    cached = np.empty(np.uint64(min(step, len(starts))) * window, rows.dtype)
    for first in range(0, len(starts), step):
      count = min(step, len(starts) - first)
      # The processor waits for a window or two at a time while it copies.
      for k in range(count):
        word = np.uint64(starts[first + k]) * width
        for offset in range(np.uint64(0), window, line):
          _prefetch(rows, word + offset)
        _prefetch(rows, word + window - np.uint64(1))
      for k in range(count):
        num_rows = min(length, ends[first + k] - starts[first + k])
        _copy_words(
            rows, np.uint64(starts[first + k]) * width, width,
            np.uint64(num_rows) * width, 1, cached, np.uint64(k) * window,
        )  # fmt: skip
      for c in range(len(columns)):
        begin, size, to = columns[c, 0], columns[c, 1], columns[c, 2]
        _copy_words(
            cached, np.uint64(begin), width, np.uint64(size), count * length,
            gathered, np.uint64(to + first * length * size),
        )  # fmt: skip
  else:
    for c in range(len(columns)):
      begin, size, to = columns[c, 0], columns[c, 1], columns[c, 2]
      for k in range(len(starts)):
        _copy_words(
            rows, np.uint64(starts[k]) * width + np.uint64(begin), width,
            np.uint64(size), min(length, ends[k] - starts[k]),
            gathered, np.uint64(to + k * length * size),
        )  # fmt: skip
  for k in range(len(starts)):
    for row in range(ends[k] - starts[k], length):
      last = (ends[k] - 1) * len(padding)
      for c in range(len(columns)):
        begin, size, to = columns[c, 0], columns[c, 1], columns[c, 2]
        place = to + (k * length + row) * size
        for word in range(size):
          gathered[place + word] = (
              rows[last + begin + word] if repeats else padding[begin + word]
          )


@_inner
def _repeat(values, rows):
  """Repeats each value in a row."""
  for k in range(rows.shape[0]):
    value = values[k]
    for column in range(rows.shape[1]):
      rows[k, column] = value


@_kernel(
    numba.void(
        _ITEMS, _FLOATS, _FLOATS, numba.int64,
        numba.uint64[:, ::1], numba.float64[:, ::1], numba.int64[:, ::1],
        numba.float64[:, ::1], numba.int32[:, ::1],
    )
)  # fmt: skip
def fill_sample_info(
    items, probability, priority, num_items,
    key, probabilities, table_size, priorities, times_sampled,
):  # fmt: skip
  """Repeats values of items for each of their rows, as in `SampleInfo`.

  Args:
    items: the item indices, int64 `[N]`.
    probability: the probability of each item, float64 `[N]`.
    priority: the priority of each item, float64 `[N]`.
    num_items: the number of items that could be drawn.
    key: receives the items, uint64 `[N, L]`.
    probabilities: receives the probabilities, float64 `[N, L]`.
    table_size: receives `num_items`, int64 `[N, L]`.
    priorities: receives the priorities, float64 `[N, L]`.
    times_sampled: receives zeros, int32 `[N, L]`.
  """
  _repeat(items, key)
  _repeat(probability, probabilities)
  _repeat(priority, priorities)
  table_size[:] = num_items
  times_sampled[:] = 0


@_kernel(
    numba.boolean(
        _FLOATS, _FLOATS, _FLOATS, numba.float64, numba.boolean, numba.float64,
        numba.float32[::1],
    )
)  # fmt: skip
def compute_weights(
    probability, priority, values, divisor, by_smallest, exponent, weights
):
  """Computes the importance weights `(values / divisor) ** exponent`.

  Equal values one after another, such as the rows of an item have, are computed
  once.

  Args:
    probability: the probabilities of rows, float64 `[N]`.
    priority: the priorities of their items, float64 `[N]`.
    values: numbers, such as these probabilities, float64 `[N]`.
    divisor: the divisor of all values.
    by_smallest: whether the divisor is the smallest value instead.
    exponent: the exponent.
    weights: receives the weights, float32 `[N]`.

  Returns:
    Whether all probabilities and priorities are above 0. If not, there are no
    weights.
  """
  smallest = np.inf
  for k in range(len(values)):
    if not (probability[k] > 0 and priority[k] > 0):
      return False
    smallest = min(smallest, values[k])
  if by_smallest:
    divisor = smallest
  for k in range(len(values)):
    if k > 0 and values[k] == values[k - 1]:
      weights[k] = weights[k - 1]
    else:
      weights[k] = (values[k] / divisor) ** exponent
  return True


@_inner
def _weight(priority, alpha, scale):
  return (priority / scale) ** alpha if priority > 0 else 0.0


@_inner
def _first_leaf_group(tree):
  """Returns the first group of a sum tree whose nodes are leaves."""
  group = 1
  while 4 * group - 2 < len(tree):
    group = 4 * group - 2
  return group


@_inner
def _update_parent(tree, group):
  """Computes an inner node of a sum tree from the group of its children."""
  smallest = np.inf
  for child in range(np.uint64(4)):
    weight, priority = tree[group, 0, child], tree[group, 1, child]
    smallest = priority if (weight > 0) & (priority < smallest) else smallest
  # Sums of pairs have smaller rounding errors.
  total = tree[group, 0, 0] + tree[group, 0, 1]
  total += tree[group, 0, 2] + tree[group, 0, 3]
  node = group + np.uint64(2)
  tree[node >> np.uint64(2), 0, node & np.uint64(3)] = total
  tree[node >> np.uint64(2), 1, node & np.uint64(3)] = smallest


@_kernel(numba.float64(numba.float64[:, :, ::1], numba.float64, numba.float64))
def build_tree(tree, alpha, scale):
  """Computes the weights of priorities, and their sums.

  A group of four nodes is a cache line. Group `g` has the nodes `4 * g` to
  `4 * g + 3`; the children of node `k` are group `k - 2`. Node 3 is the root:

      root                   3               group 0
                   4      5      6      7    group 1
      leaves     8...11 12...15 ...          groups 2 to 5

  Args:
    tree: inner nodes and as many groups of leaves as are needed; float64 `[G,
      2, 4]`. A leaf has a weight `[g, 0, j]` and a priority `[g, 1, j]`, which
      is given. An inner node has the sum of the weights of its leaves, and
      their smallest priority with a weight above 0, or infinity.
    alpha: the exponent of priorities.
    scale: the divisor of priorities. A weight is `(priority / scale) ** alpha`,
      or 0 for priority 0.

  Returns:
    The largest weight.
  """
  largest = 0.0
  for group in range(_first_leaf_group(tree), len(tree)):
    for child in range(4):
      weight = _weight(tree[group, 1, child], alpha, scale)
      tree[group, 0, child] = weight
      largest = max(largest, weight)
  for group in range(len(tree) - 1, 0, -1):
    _update_parent(tree, np.uint64(group))
  return largest


@_kernel(
    numba.void(
        numba.float64[:, :, ::1], numba.uint64, numba.uint64,
        _NEW_ITEMS, _NEW_FLOATS, _NEW_FLOATS,
    )
)  # fmt: skip
def draw_from_tree(tree, seed, first, slots, probability, priority):
  """Draws slots of a sum tree in proportion to their weights.

  All draws go down one level together, so that they wait for memory together. A
  weight of 0 is never drawn. The sum must be above 0.

  Args:
    tree: the tree; see `build_tree`. Slot `k` is leaf `k`.
    seed: the start of a SplitMix64 stream.
    first: the position in the stream of the first draw.
    slots: receives the slot indices, int64 `[N]`.
    probability: receives the probability of each slot, float64 `[N]`.
    priority: receives the priority of each slot, float64 `[N]`.
  """
  remainders, groups = probability, slots
  for k in range(len(slots)):
    remainders[k] = _split_mix(seed, first + np.uint64(k)) * tree[0, 0, 3]
    groups[k] = 1
  first_leaf, level = _first_leaf_group(tree), 1
  while level <= first_leaf:
    for k in range(len(slots)):
      # Numba checks signed indices for negative ones, which is slower. There
      # are no branches that the processor could not predict.
      group, remainder = np.uint64(groups[k]), remainders[k]
      sum_1 = tree[group, 0, 0]
      sum_2 = sum_1 + tree[group, 0, 1]
      sum_3 = sum_2 + tree[group, 0, 2]
      child = np.uint64(remainder >= sum_1) + np.uint64(remainder >= sum_2)
      child += np.uint64(remainder >= sum_3)
      below = sum_1 if remainder >= sum_1 else 0.0
      below = sum_2 if remainder >= sum_2 else below
      below = sum_3 if remainder >= sum_3 else below
      # Rounding may leave a remainder that is not below the sum of the group.
      while tree[group, 0, child] == 0:
        child -= np.uint64(1)
      remainders[k] = remainder - below
      groups[k] = np.int64(np.uint64(4) * group + child) - 2
    level = 4 * level - 2
  for k in range(len(slots)):
    leaf = np.uint64(groups[k] + 2)
    group, child = leaf >> np.uint64(2), leaf & np.uint64(3)
    probability[k] = tree[group, 0, child] / tree[0, 0, 3]
    priority[k] = tree[group, 1, child]
    slots[k] = np.int64(leaf) - 4 * first_leaf


@_kernel(
    numba.float64(
        numba.float64[:, :, ::1], numba.int64, numba.float64, numba.float64,
        numba.float64, _ITEMS, _FLOATS, numba.int64, numba.int64,
    )
)  # fmt: skip
def update_tree(
    tree, num_slots, alpha, scale, max_weight,
    items, new_priorities, first_item, num_items,
):  # fmt: skip
  """Changes priorities of items, and their sum tree.

  Of equal items, the last one counts.

  Args:
    tree: the tree; see `build_tree`.
    num_slots: the number of slots `S`. Item `i` has the slot `i % S`.
    alpha: the exponent of priorities.
    scale: the divisor of priorities.
    max_weight: the maximum weight.
    items: the item indices, int64 `[N]`.
    new_priorities: the new priority of each item, float64 `[N]`.
    first_item: the first item that may be changed.
    num_items: the number of items that may be changed.

  Returns:
    The highest new priority; or -1 if an item, a priority or a weight is out of
    range. Nothing is changed then.
  """
  highest = 0.0
  weights = np.empty(len(items))
  for k in range(len(items)):
    new = new_priorities[k]
    if not 0 <= new < np.inf or not 0 <= items[k] - first_item < num_items:
      return -1.0
    highest = max(highest, new)
    weights[k] = _weight(new, alpha, scale)
    if weights[k] > max_weight:
      return -1.0
  groups = np.empty(len(items), np.uint64)
  level = _first_leaf_group(tree)
  for k in range(len(items)):
    leaf = np.uint64(4 * level + items[k] % num_slots)
    groups[k] = leaf >> np.uint64(2)
    tree[groups[k], 0, leaf & np.uint64(3)] = weights[k]
    tree[groups[k], 1, leaf & np.uint64(3)] = new_priorities[k]
  # Sums are computed again, so that rounding errors do not accumulate.
  while level > len(items):
    for k in range(len(items)):
      _update_parent(tree, groups[k])
      groups[k] = (groups[k] + np.uint64(2)) >> np.uint64(2)
    level = (level + 2) // 4
  # Higher levels have few groups.
  for group in range(min(4 * level - 2, len(tree)) - 1, 0, -1):
    _update_parent(tree, np.uint64(group))
  return highest


# How long compiling or loading these kernels took.
seconds = _log_seconds(_kernels, _start)
