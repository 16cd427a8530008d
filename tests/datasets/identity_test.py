"""Tests of hashes and comparisons by value."""

import dataclasses

from absl.testing import absltest
import numpy as np

from rlds2reverb.datasets import identity
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import fields
from rlds2reverb.transforms import normalization


@dataclasses.dataclass(eq=False)
class _Values(identity.ByValue):
  value: object


class FingerprintTest(absltest.TestCase):

  def test_equal_where_the_content_is(self):
    def make():
      return (
          'train',
          {'b': 1, 'a': [None, True]},
          np.array([1.5, 2]),
          applying.Compose([fields.ClipField('action', np.zeros(2), 1)]),
      )

    self.assertEqual(
        identity.fingerprint(*make()), identity.fingerprint(*make())
    )

  def test_different_otherwise(self):
    values = [
        1,
        '1',
        True,
        None,
        [1],
        [[1]],
        {'a': 1},
        {'a': 2},
        np.array([1]),
        np.array([1.0]),
        np.dtype(np.float32),
        normalization.ScaleReward(1.0),
        normalization.ScaleReward(2.0),
        normalization.ScaleReward(1.0, 2.0),
        fields.ClipField('action', np.zeros(2)),
        fields.ClipField('action', np.ones(2)),
    ]
    prints = [identity.fingerprint(value) for value in values]
    self.assertLen(set(prints), len(values))

  def test_a_function_has_none(self):
    with self.assertRaisesRegex(ValueError, 'Name it by a string'):
      identity.fingerprint([lambda: 1])

  def test_the_hash_stays(self):
    # Keys on servers and files on disk are made of it.
    self.assertEqual(identity.fingerprint('a', 1), '2657442bb4a48d62')
    self.assertEqual(identity.fingerprint(), '4f53cda18c2baa0c')


class ByValueTest(absltest.TestCase):

  def test_equal(self):
    for one, other in (
        ([1, 2], np.array([1.0, 2.0])),
        ((1, [2]), [1, (2,)]),
        ({'a': np.zeros(2)}, {'a': [0, 0]}),
        (np.nan, float('nan')),
        (np.float32(0.5), 0.5),
    ):
      self.assertEqual(_Values(one), _Values(other))
      self.assertEqual(hash(_Values(one)), hash(_Values(other)))

  def test_not_equal(self):
    for one, other in (
        ([1, 2], [2, 1]),
        ({'a': 1}, {'b': 1}),
        (np.zeros(2), np.zeros(3)),
        (None, 0),
    ):
      self.assertNotEqual(_Values(one), _Values(other))
    self.assertNotEqual(_Values(1), 1)


if __name__ == '__main__':
  absltest.main()
