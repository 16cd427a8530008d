"""Compiled kernels, compared with NumPy functions of the same names."""

import os
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from rlds2reverb.store import kernels

_MASK = 2**64 - 1


def draw_fractions(seed, first, fractions):
  for k in range(len(fractions)):
    bits = (int(seed) + (int(first) + k + 1) * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    fractions[k] = ((bits ^ (bits >> 31)) >> 11) / 2**53


def draw_uniform(seed, first, first_item, num_items, items, probability):
  probability[:] = 1 / num_items
  fractions = np.empty(len(items))
  draw_fractions(seed, first, fractions)
  items[:] = first_item + np.minimum(
      np.floor(fractions * num_items), num_items - 1
  )


def permute(positions, count, tables, items):
  num_rows = tables.shape[1]
  num_columns = -(-count // num_rows)

  def permute_once(item):
    row, column = divmod(item, num_columns)
    for even, odd in zip(tables[::2], tables[1::2]):
      row = (row + even[column]) % num_rows
      column = (column + odd[row]) % num_columns
    return row * num_columns + column

  for k, item in enumerate(positions.tolist()):
    item = permute_once(item)
    while item >= count:
      item = permute_once(item)
    items[k] = item


def find_items(
    episode_begins, guide, shift, offsets, latest, stride, ends, items,
    episode, start, end,
):  # fmt: skip
  del guide, shift
  episode[:] = episode_begins.searchsorted(items, 'right') - 1
  start[:] = np.minimum(items * stride + offsets[episode], latest[episode])
  end[:] = ends[episode]


def gather(rows, padding, starts, ends, length, repeats, columns, gathered):
  rows = rows.reshape([-1, len(padding)])
  numbers = starts[:, np.newaxis] + np.arange(length)
  is_padding = numbers >= ends[:, np.newaxis]
  windows = rows[np.minimum(numbers, ends[:, np.newaxis] - 1)]
  if not repeats:
    windows[is_padding] = padding
  for begin, size, to in columns:
    column = windows[:, :, begin : begin + size].ravel()
    gathered[to : to + len(column)] = column


def fill_sample_info(
    items, probability, priority, num_items,
    key, probabilities, table_size, priorities, times_sampled,
):  # fmt: skip
  key[:] = items[:, np.newaxis]
  probabilities[:] = probability[:, np.newaxis]
  table_size[:] = num_items
  priorities[:] = priority[:, np.newaxis]
  times_sampled[:] = 0


def compute_weights(
    probability, priority, values, divisor, by_smallest, exponent, weights
):
  if not ((probability > 0) & (priority > 0)).all():
    return False
  with np.errstate(divide='ignore', over='ignore'):
    weights[:] = (
        values / (min(values) if by_smallest else divisor)
    ) ** exponent
  return True


def levels(tree):
  """Returns the levels of a sum tree from the leaves up, each `[2, n, 4]`."""
  firsts = [(4**k - 1) // 3 + 1 for k in range(20)]
  parts = np.split(tree, [first for first in firsts if first < len(tree)])
  return [part.transpose([1, 0, 2]) for part in reversed(parts)]


def build_tree(tree, alpha, scale):
  (weights, priorities), *inner, root = levels(tree)
  weights[:] = (priorities / scale) ** alpha * (priorities > 0)
  sums, smallest = weights, np.where(weights > 0, priorities, np.inf)
  for level in inner:
    padding = [0, level[0].size - len(sums)]
    level[0].flat = sums = np.pad(sums.sum(1), padding)
    level[1].flat = np.pad(smallest.min(1), padding)
    sums = sums.reshape([-1, 4])
    smallest = np.where(sums > 0, level[1], np.inf)
  root[:, 0, 3] = sums.sum(), smallest.min()
  return weights.max()


def draw_from_tree(tree, seed, first, slots, probability, priority):
  values, priorities = levels(tree)[0].reshape([2, -1])
  cumulative = np.cumsum(values)
  fractions = np.empty(len(slots))
  draw_fractions(seed, first, fractions)
  slots[:] = cumulative.searchsorted(fractions * cumulative[-1], 'right')
  probability[:] = values[slots] / cumulative[-1]
  priority[:] = priorities[slots]


def update_tree(
    tree, num_slots, alpha, scale, max_weight,
    items, new_priorities, first_item, num_items,
):  # fmt: skip
  weights = np.where(
      new_priorities > 0, (np.abs(new_priorities) / scale) ** alpha, 0
  )
  if (
      not (np.isfinite(new_priorities) & (new_priorities >= 0)).all()
      or (items < first_item).any()
      or (items >= first_item + num_items).any()
      or (weights > max_weight).any()
  ):
    return -1.0
  leaves = levels(tree)[0][1]
  for item, priority in zip(items % num_slots, new_priorities):
    leaves[item // 4, item % 4] = priority
  build_tree(tree, alpha, scale)
  return max(new_priorities, default=0.0)


class KernelsTest(parameterized.TestCase):

  def check(self, function, *arguments, rtol=0.0):
    """Compares a kernel with the function of the same name."""
    copies = [
        argument.copy() if isinstance(argument, np.ndarray) else argument
        for argument in arguments
    ]
    kernel = getattr(kernels, function.__name__)
    if function is gather:
      kernel = kernels.gather_words(arguments[0].dtype)
    result = kernel(*copies)
    self.assertEqual(result, function(*arguments))
    for actual, expected in zip(copies, arguments):
      np.testing.assert_allclose(actual, expected, rtol=rtol)

  @parameterized.parameters((0, 0), (2**64 - 1, 0), (5, 2**64 - 3), (7, 10**9))
  def test_random_numbers(self, seed, first):
    self.check(draw_fractions, np.uint64(seed), first, np.empty(50))
    for num_items in 1, 3, 10**6, 2**55:
      outputs = np.empty(50, np.int64), np.empty(50)
      self.check(draw_uniform, np.uint64(seed), first, 7, num_items, *outputs)

  @parameterized.parameters(1, 2, 3, 4, 16, 17, 100, 999)
  def test_permutations(self, count):
    rng = np.random.default_rng(count)
    num_rows = int(np.ceil(np.sqrt(count)))
    limits = [[num_rows], [-(-count // num_rows)]] * 4
    tables = rng.integers(0, limits, [8, num_rows])
    positions = np.arange(count)
    self.check(permute, positions, count, tables, np.empty(count, np.int64))
    items = np.empty(count, np.int64)
    kernels.permute(positions, count, tables, items)
    self.assertEqual(sorted(items), list(range(count)))

  @parameterized.parameters(*range(8))
  def test_items(self, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, [2, 50][seed % 2], rng.integers(1, 40))
    episode_begins = np.concatenate([[0], np.cumsum(counts)])
    offsets, latest, ends = rng.integers(-99, 99, [3, len(counts)])
    items = np.concatenate([np.arange(episode_begins[-1])] * 2)
    outputs = np.empty([3, len(items)], np.int64)
    for shift in 0, 1, 3, 20:
      places = np.arange((episode_begins[-1] >> shift) + 2) << shift
      guide = np.sum(episode_begins[1:-1] <= places[:, np.newaxis], 1)
      searched = episode_begins, guide, shift, offsets, latest, 3, ends
      self.check(find_items, *searched, items, *outputs)

  @parameterized.product(
      word=[np.uint8, np.uint32], length=[1, 2, 7, 300], repeats=[False, True]
  )
  def test_windows_of_rows(self, word, length, repeats):
    rng = np.random.default_rng(length)
    # The rows of all windows are larger than a processor's cache.
    width, num_rows, count = 37, 600, 1000 // length + 3
    # Windows may begin with the last row of an episode and of all rows.
    ends = rng.integers(1, num_rows + 1, count)
    ends[0] = num_rows
    starts = ends - rng.integers(1, np.minimum(ends, length + 3) + 1)
    sizes, begins = [1, 17, 1, 6, 30], [0, 1, 36, 20, 5]
    columns = np.array(
        [
            (begin, size, 100 * k + sum(sizes[:k]) * count * length)
            for k, (begin, size) in enumerate(zip(begins, sizes))
        ]
    )
    self.check(
        gather,
        rng.integers(0, 200, num_rows * width).astype(word),
        rng.integers(0, 200, width).astype(word),
        starts,
        ends,
        length,
        repeats,
        columns,
        np.zeros(500 + sum(sizes) * count * length, word),
    )

  def test_sample_info(self):
    rng = np.random.default_rng(0)
    for shape in (5, 1), (1, 2), (4, 3):
      self.check(
          fill_sample_info,
          rng.integers(0, 2**60, shape[0]),
          *rng.uniform(size=[2, shape[0]]),
          99,
          *[np.full(shape, 7, x) for x in ('u8', 'f8', 'i8', 'f8', 'i4')],
      )

  def test_weights(self):
    values = np.repeat(10.0 ** np.arange(-20, 20), [1, 2, 3, 1] * 10)
    weights, ones = np.zeros(len(values), np.float32), np.ones(len(values))
    for divisor in 1e-3, 1.0, 7.0, 0.0:
      for exponent in 0.0, -0.4, -1.0, 3.0:
        for by_smallest in False, True:
          settings = divisor, by_smallest, exponent
          self.check(
              compute_weights, ones, ones, values, *settings, weights, rtol=1e-6
          )
    for invalid in 0.0, -1.0, np.nan:
      wrong = np.append(ones[1:], invalid)
      for first in (wrong, ones), (ones, wrong):
        self.check(compute_weights, *first, values, 1.0, False, -1.0, weights)

  def make_tree(self, priorities):
    """Returns a tree with priorities, but without sums."""
    num_groups = -(-len(priorities) // 4)
    num_inner = sum(4**k for k in range(20) if 4**k < num_groups)
    tree = np.zeros([1 + num_inner + num_groups, 2, 4])
    tree[1 + num_inner :, 1].flat[: len(priorities)] = priorities
    return tree

  @parameterized.parameters(1, 2, 4, 5, 64, 65, 2048)
  def test_trees(self, num_slots):
    rng = np.random.default_rng(num_slots)
    # Sums of integers have no rounding errors.
    priorities = rng.integers(0, 5, num_slots).astype(float)
    priorities[0] = 3
    tree = self.make_tree(priorities)
    self.check(build_tree, tree, 2.0, 1.0)
    arguments = tree, num_slots, 2.0, 1.0, 99.0
    for first in 0, 2**40:
      items = rng.integers(first, first + num_slots, 2 * num_slots)
      new = rng.integers(0, 5, len(items)).astype(float)
      new[-1] = 2
      for invalid in -1.0, np.nan, np.inf, 30.0:
        refused = new.copy()
        refused[len(new) // 2] = invalid
        self.check(update_tree, *arguments, items, refused, first, num_slots)
      self.check(update_tree, *arguments, items, new, first + 1, num_slots - 2)
      # Few items change few nodes, many items change all of them.
      for count in 1, len(new):
        self.check(
            update_tree, *arguments, items[-count:], new[-count:], first,
            num_slots,
        )  # fmt: skip
      leaves = levels(tree)[0].reshape([2, -1])
      self.assertEqual(leaves[:, items[-1] % num_slots].tolist(), [4, 2])
      outputs = np.empty(500, np.int64), np.empty(500), np.empty(500)
      self.check(draw_from_tree, tree, np.uint64(first), 99, *outputs)

  def test_a_weight_of_0_is_never_drawn(self):
    # Fractions of sums such as 0.1 + 0.2 + 0.7 are rounded.
    for seed in range(200):
      rng = np.random.default_rng(seed)
      priorities = rng.uniform(size=70) * (rng.uniform(size=70) < 0.1)
      priorities[seed % 70] = 0.1
      tree = self.make_tree(priorities)
      kernels.build_tree(tree, 1.0, 1.0)
      # A sum that is too large represents all rounding errors.
      tree[0, 0, 3] *= 1 + 0.1 * (seed % 2)
      outputs = np.empty(99, np.int64), np.empty(99), np.empty(99)
      kernels.draw_from_tree(tree, np.uint64(seed), 0, *outputs)
      self.assertGreater(outputs[2].min(), 0)

  def test_10000_updates(self):
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=1000)
    tree = self.make_tree(weights)
    kernels.build_tree(tree, 1.0, 1.0)
    for _ in range(10000):
      items = rng.integers(0, 1000, 3)
      values = 10.0 ** rng.uniform(-8, 8, 3)
      weights[items] = values
      kernels.update_tree(tree, 1000, 1.0, 1.0, 1e9, items, values, 0, 1000)
    total, smallest = tree[0, :, 3]
    self.assertAlmostEqual(total / sum(weights.tolist()), 1, delta=1e-12)
    self.assertEqual(smallest, weights.min())
    self.assertEqual(levels(tree)[0][1].ravel().tolist(), weights.tolist())

  def test_memory_that_is_read_only(self):
    rows = np.arange(12, dtype=np.uint8)
    rows.flags.writeable = False
    gathered = np.zeros(6, np.uint8)
    one = np.array([1])
    kernels.gather_words(rows.dtype)(
        rows, rows[:3], one, one + 2, 2, False, np.array([[0, 3, 0]]), gathered
    )
    self.assertEqual(gathered.tolist(), [3, 4, 5, 6, 7, 8])


@pytest.mark.long
class CacheTest(absltest.TestCase):

  def test_without_a_writable_cache(self):
    with tempfile.TemporaryDirectory() as folder:
      shutil.copy(kernels.__file__, folder)
      # Files stand where both cache folders would be created.
      for name in '__pycache__', 'cache':
        with open(os.path.join(folder, name), 'w', encoding='utf-8'):
          pass
      program = (
          'import kernels, numpy as np\n'
          'fractions = np.empty(1)\n'
          'kernels.draw_fractions(np.uint64(0), 0, fractions)\n'
          'print(fractions[0])\n'
      )
      environment = {
          **os.environ,
          'PYTHONPATH': folder,
          'XDG_CACHE_HOME': os.path.join(folder, 'cache'),
      }
      result = subprocess.run(
          [sys.executable, '-c', program],
          check=True,
          env=environment,
          stdout=subprocess.PIPE,
          text=True,
      )
      self.assertEqual(
          sorted(os.listdir(folder)), ['__pycache__', 'cache', 'kernels.py']
      )
    expected = np.empty(1)
    draw_fractions(0, 0, expected)
    self.assertEqual(float(result.stdout), expected[0])


if __name__ == '__main__':
  absltest.main()
