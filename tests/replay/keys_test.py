"""Tests of the keys of items, chunks and episodes."""

import hashlib
import json

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.replay import keys

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
  return made.of(lambda _: of, np.zeros(100, int), np.arange(100))


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
    found = keys.KeyMaker(identity, form).of(
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
    found = made.of(of, index, positions)
    self.assertEqual(asked, [2, 3, 7])
    self.assertEqual(
        found.tolist(),
        [
            int(_of_one(made, ['item', each])[position])
            for each, position in zip(index.tolist(), positions)
        ],
    )
    nothing = np.zeros(0, np.int64)
    self.assertEmpty(made.of(of, nothing, nothing))

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
