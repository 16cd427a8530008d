"""Items of random episodes, compared with items that Python cuts."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.store import items
from rlds2reverb.store import rows
from tests.replay.local import replay_testing

_ENDS = [end.value for end in windows_lib.EndOfEpisode]


def _store(count):
  """Returns rows that show their numbers from 1 up, and a string of it."""
  columns = [
      rows.Column(('n',), 'int64', ()),
      rows.Column(('s',), 'string', ()),
  ]
  writer = rows.StoreWriter(rows.RowLayout(columns))
  numbers = np.arange(1, count + 1)
  writer.append([numbers, np.array([b'%d' % n for n in numbers], object)])
  return writer.finish({}, {})


class ItemIndexTest(parameterized.TestCase):

  @parameterized.product(end=_ENDS, seed=(*range(8),))
  def test_random_episodes(self, end, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, [9, 4, 30][seed % 3], rng.integers(1, 40))
    length, stride = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    expected = replay_testing.cut_rows(lengths, length, stride, end)
    windows = windows_lib.Windows(length, stride, end)
    index = items.ItemIndex(items.find_episodes(lengths, windows), windows)
    self.assertLen(expected, index.num_items)
    if not expected:
      return
    numbers = rng.permutation(index.num_items)
    store = _store(lengths.sum())
    store.padding = {0: -7}
    leaves = index.read(store, numbers)
    shown, strings = store.with_strings(leaves)
    # Row -1 is a boundary.
    wanted = np.array([expected[number] for number in numbers])
    np.testing.assert_array_equal(shown, np.where(wanted < 0, -7, wanted + 1))
    self.assertEqual(
        strings.tolist(),
        [[b'%d' % (r + 1) if r >= 0 else b'' for r in item] for item in wanted],
    )
    if end != 'repeat_last':
      np.testing.assert_array_equal(index.is_data(numbers), wanted >= 0)
    episode, start = index.episode_and_start(numbers)
    first = np.cumsum(lengths) - lengths
    if end == 'cross':
      first, episode = np.zeros(1, int), 0
    np.testing.assert_array_equal(first[episode] + start, wanted[:, 0])

  def test_items_of_entire_episodes(self):
    lengths = np.array([3, 1, 2])
    index = items.ItemIndex(items.find_episodes(lengths, None), None)
    actual = [index.read(_store(6), np.array([k]))[0] for k in range(3)]
    self.assertEqual(
        [each.tolist() for each in actual], [[[1, 2, 3]], [[4]], [[5, 6]]]
    )

  def test_data_that_ends_before_its_last_episode(self):
    for end, counts in (('tile', [3, 2]), ('drop', [2, 2])):
      windows = windows_lib.Windows(2, end=end)
      actual = items.find_episodes(np.array([3, 3]), windows, is_open=True)
      self.assertEqual(actual.num_items.tolist(), counts)
    actual = items.find_episodes(np.array([3, 3]), None, is_open=True)
    self.assertEqual(actual.num_items.tolist(), [1, 0])


if __name__ == '__main__':
  absltest.main()
