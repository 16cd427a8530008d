"""Tests of operations that happen at once, or survive a crash."""

import os

from absl.testing import absltest

from rlds2reverb.datasets import durable


class DurableTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._parent = self.create_tempdir().full_path

  def _folder(self, name, file):
    path = os.path.join(self._parent, name)
    os.mkdir(path)
    with open(os.path.join(path, file), 'wb') as f:
      f.write(b'x')
    return path

  def test_exchange(self):
    one, other = self._folder('one', 'a'), self._folder('other', 'b')
    # A file system that cannot do it says so, and leaves both.
    is_done = durable.exchange(one, other)
    self.assertEqual(os.listdir(one), ['b' if is_done else 'a'])
    self.assertEqual(os.listdir(other), ['a' if is_done else 'b'])

  def test_exchange_with_nothing(self):
    one = self._folder('one', 'a')
    self.assertFalse(
        durable.exchange(one, os.path.join(self._parent, 'nothing'))
    )
    self.assertEqual(os.listdir(one), ['a'])

  def test_sync_leaves_the_files(self):
    one = self._folder('one', 'a')
    durable.sync_tree(self._parent)
    self.assertEqual(os.listdir(one), ['a'])
    with self.assertRaises(FileNotFoundError):
      durable.sync(os.path.join(one, 'nothing'))


if __name__ == '__main__':
  absltest.main()
