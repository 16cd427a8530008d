"""Tests of finding the versions of a data set."""

import os

from absl.testing import absltest

from rlds2reverb.datasets import identity
from rlds2reverb.datasets import versions


class VersionsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = self.create_tempdir().full_path

  def _add(self, name, info='{}'):
    folder = os.path.join(self._directory, name)
    os.makedirs(folder, exist_ok=True)
    if info:
      with open(os.path.join(folder, versions.INFO_FILE), 'w') as f:
        f.write(info)
    return folder

  def test_the_newest_is_found(self):
    one = self._add('9.0.0')
    with self.assertNoLogs(level='WARNING'):
      self.assertEqual(versions.find_folder(self._directory), one)
    newest = self._add('10.0.0')
    self._add('11.0.0', info='')  # not a data set
    self._add('later')  # not a version
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(versions.find_folder(self._directory), newest)
    self.assertIn('Reading version 10.0.0 of', logs.output[0])
    self.assertEqual(versions.find_folder(newest), newest)

  def test_none(self):
    self._add('1.0.0', info='')
    with self.assertRaisesRegex(FileNotFoundError, "It has .'1.0.0'.\\.$"):
      versions.find_folder(self._directory)

  def test_fingerprint(self):
    one = versions.fingerprint(self._add('1.0.0', '{"a": 1}'))
    other = versions.fingerprint(self._add('2.0.0', '{"a": 2}'))
    self.assertEqual(one, identity.fingerprint('{"a": 1}'))
    self.assertNotEqual(one, other)
    self.assertEqual(
        versions.fingerprint(self._directory), identity.fingerprint()
    )


if __name__ == '__main__':
  absltest.main()
