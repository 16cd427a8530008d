"""Tests of locks, held by this process and by others."""

import os
import signal

from absl.testing import absltest

from rlds2reverb.datasets import locks


class LockedTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._path = os.path.join(self.create_tempdir().full_path, 'new', 'lock')

  def _hold_in_a_child(self):
    """Returns the id of a process that has the lock until it is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
      with locks.locked(self._path, 'target'):
        os.write(writer, b'x')
        signal.pause()
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return child

  def test_is_made_and_removed(self):
    with locks.locked(self._path, 'target') as is_locked:
      self.assertTrue(is_locked)
      self.assertTrue(os.path.exists(self._path))
    self.assertFalse(os.path.exists(self._path))

  def test_a_process_that_lives_keeps_it_and_one_that_died_does_not(self):
    child = self._hold_in_a_child()
    try:
      with self.assertRaisesRegex(
          BlockingIOError, r'^Another process is writing target\.$'
      ):
        with locks.locked(self._path, 'target'):
          pass
    finally:
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
    self.assertTrue(os.path.exists(self._path))
    with locks.locked(self._path, 'target') as is_locked:
      self.assertTrue(is_locked)

  def test_no_folder_can_be_made(self):
    path = os.path.join(self.create_tempfile().full_path, 'lock')
    with self.assertRaisesRegex(OSError, 'target cannot be written'):
      with locks.locked(path, 'target'):
        pass


if __name__ == '__main__':
  absltest.main()
