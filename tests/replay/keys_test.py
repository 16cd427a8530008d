"""Tests of the keys of items, chunks and episodes."""

import hashlib
import json

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import chunks
from rlds2reverb.replay import items
from rlds2reverb.replay import keys
from rlds2reverb.replay import pieces

_64_BITS = 2**64 - 1


def _split_mix(seed, count):
  """Returns the first outputs of SplitMix64, one number after another."""
  outputs = []
  for _ in range(count):
    seed = (seed + 0x9E3779B97F4A7C15) & _64_BITS
    z = seed
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
    outputs.append(z ^ (z >> 31))
  return outputs


def _of_one(made, of):
  """Returns the keys of 100 places in one thing."""
  return made.of_each(lambda _: of, np.zeros(100, int), np.arange(100))


class KeysTest(parameterized.TestCase):

  def test_generator(self):
    # The first outputs of the generator for the seed 1234567, as published.
    self.assertEqual(
        _split_mix(1234567, 2), [6457827717110365317, 3203168211198807973]
    )

  @parameterized.parameters('data', ({'name': 'data', 'shard': 3},), 7)
  def test_keys_under_an_identity(self, identity):
    form = {'frames': [['reward', 'float32', '()']]}
    of = ['item', 'table', 2, None]
    content = [identity_lib.fingerprint(identity, form), *of]
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8)
    expected = _split_mix(int.from_bytes(digest.digest(), 'little'), 50)
    found = keys.KeyMaker(identity, form).of_each(
        lambda index: of, np.zeros(3, int), np.array([0, 49, 3])
    )
    self.assertEqual(found.dtype, np.uint64)
    self.assertEqual(found.tolist(), [expected[i] for i in (0, 49, 3)])

  def test_keys_differ_in_all_that_they_depend_on(self):
    found = [
        _of_one(keys.KeyMaker(identity, form), of).tolist()
        for identity, form, of in (
            ('data', None, ['item']),
            ('other data', None, ['item']),
            ('data', {'terminal_discount': 'step'}, ['item']),
            ('data', None, ['chunk']),
        )
    ]
    self.assertLen(set(sum(found, [])), 400)

  def test_keys_of_several_things(self):
    made = keys.KeyMaker('data')
    asked = []

    def of(index):
      asked.append(index)
      return ['item', index]

    index = np.array([2, 2, 3, 7, 7, 7])
    positions = np.array([5, 0, 5, 9, 1, 2])
    found = made.of_each(of, index, positions)
    self.assertEqual(asked, [2, 3, 7])
    self.assertEqual(
        found.tolist(),
        [
            int(_of_one(made, ['item', each])[position])
            for each, position in zip(index.tolist(), positions)
        ],
    )
    nothing = np.zeros(0, np.int64)
    self.assertEmpty(made.of_each(of, nothing, nothing))

  def test_what_the_keys_of_items_and_chunks_depend_on(self):
    # Data that was written before must have the same keys.
    table = items.TableItems('table', windows_lib.Windows(3, end='tile'))
    splits = np.array([0, 4, 5, 7])
    episode_ids = ['a', 'b', 'c']
    is_last = np.isin(np.arange(7), splits[1:] - 1)
    found = pieces.find_pieces(splits, 0, is_last, [table], 50, 0)
    made = keys.KeyMaker('data')

    def key(position, *of):
      content = json.dumps([identity_lib.fingerprint('data', None), *of])
      digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
      seed = int.from_bytes(digest, 'little')
      return _split_mix(seed, position + 1)[position]

    self.assertEqual(
        made.of_items(
            table, episode_ids, found, pieces.find_items(table, found)
        ).tolist(),
        [
            key(step, 'item', 'table', 3, episode)
            for episode, length in (('a', 4), ('b', 1), ('c', 2))
            for step in range(length)
        ],
    )
    cuts = chunks.cut(found, 3, True)
    self.assertEqual(
        made.of_chunks(episode_ids, found, cuts, [3, (0, 2)]).tolist(),
        [
            key(0, 'chunk', 'a', 3, [0, 2]),
            key(3, 'chunk', 'a', 3, [0, 2]),
            key(0, 'padding', 4, 2, 'chunk', 'a', 3, [0, 2]),
            # With its padding it fills a chunk.
            key(0, 'chunk', 'b', 3, [0, 2]),
            key(0, 'padding', 1, 2, 'chunk', 'b', 3, [0, 2]),
            key(0, 'chunk', 'c', 3, [0, 2]),
            key(0, 'padding', 2, 2, 'chunk', 'c', 3, [0, 2]),
        ],
    )
    cuts = chunks.cut(found, 7, True)
    self.assertEqual(
        made.of_chunks(episode_ids, found, cuts, [7]).tolist(),
        [
            key(0, 'chunk', 'a', 7),
            key(0, 'padding', 4, 2, 'chunk', 'a', 7),
            key(0, 'episodes', [['b', 1, 2], ['c', 2, 2]], 7),
        ],
    )
    crossing = items.TableItems('table', windows_lib.Windows(3, 2, 'cross'))
    found = pieces.find_pieces(splits, 0, is_last, [crossing], 6, 0)
    self.assertEqual(
        made.of_items(
            crossing, episode_ids, found, pieces.find_items(crossing, found)
        ).tolist(),
        [key(start, 'item', 'table', 3) for start in (4, 6, 8, 10)],
    )

  def test_random_keys(self):
    first, second = (
        _of_one(keys.KeyMaker(None), ['item']).tolist() for _ in range(2)
    )
    self.assertLen({*first, *second}, 200)

  def test_an_identity_that_cannot_be_hashed(self):
    with self.assertRaisesRegex(ValueError, 'no identity that can be hashed'):
      keys.KeyMaker({'transform': lambda step: step})


if __name__ == '__main__':
  absltest.main()
