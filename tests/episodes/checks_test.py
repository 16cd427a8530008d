"""Tests of the checks of arguments."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.episodes import checks


class ChecksTest(parameterized.TestCase):

  def test_choice(self):
    checks.check_choice('end', 'drop', ['drop', 'pad'])
    with self.assertRaisesRegex(
        ValueError,
        "^end must be one of 'drop', 'pad', but is 'drp'. Did you mean drop"
        r'\?$',
    ):
      checks.check_choice('end', 'drp', ['drop', 'pad'])

  @parameterized.parameters(1, 7, np.int32(3))
  def test_positive(self, value):
    checks.check_positive('length', value)

  @parameterized.parameters(0, -1, True, np.int64(0))
  def test_not_positive(self, value):
    with self.assertRaisesRegex(
        ValueError, f'^length must be a positive integer, but is .*{value}'
    ):
      checks.check_positive('length', value)

  @parameterized.parameters(2.0, '2', None)
  def test_not_an_integer(self, value):
    with self.assertRaisesRegex(ValueError, 'known when the pipeline is built'):
      checks.check_positive('length', value)

  def test_known(self):
    checks.check_known('A file', 'agent', 1, {1: 'a', 2: 'b'})
    with self.assertRaisesRegex(
        ValueError,
        r"^A file has no agent 'lfet'. Did you mean left\? It has \['left',"
        r" 'right'\].$",
    ):
      checks.check_known('A file', 'agent', 'lfet', ['right', 'left'])

  def test_counted(self):
    self.assertEqual(checks.counted(1, 'file'), '1 file')
    self.assertEqual(checks.counted(0, 'file'), '0 files')
    self.assertEqual(
        checks.counted(1234, 'file is', 'files are'), '1,234 files are'
    )

  def test_did_you_mean(self):
    names = ['reward', 'action']
    self.assertEqual(
        checks.did_you_mean('rewards', names), ' Did you mean reward?'
    )
    self.assertEqual(checks.did_you_mean('zzz', names), '')


if __name__ == '__main__':
  absltest.main()
