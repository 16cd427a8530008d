"""Tests of atomic writes of folders, also if the process is killed."""

import os
import random
import signal
import stat
import time
from unittest import mock

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.datasets import files
from tests import ram_files  # noqa: F401

_FILES = ('a', 'b', 'MARKER')


def _write(directory, text, **kwargs):
  with files.new_folder(directory, ['MARKER'], **kwargs) as folder:
    for name in _FILES:
      with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
        f.write(text)


def _read(directory):
  """Returns the text of the files, which must be of one writer."""
  texts = set()
  for name in _FILES:
    with open(os.path.join(directory, name), encoding='utf-8') as f:
      texts.add(f.read())
  (text,) = texts
  return text


class NewFolderTest(parameterized.TestCase, tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self._parent = self.create_tempdir().full_path
    self._target = os.path.join(self._parent, 'data')

  def _assert_alone(self):
    self.assertEqual(os.listdir(self._parent), ['data'])

  def test_folder_appears_only_when_complete(self):
    with files.new_folder(self._target, []) as folder:
      self.assertFalse(os.path.exists(self._target))
      self.assertEqual(folder, os.path.join(self._parent, '.data.unfinished'))
    self.assertTrue(os.path.isdir(self._target))
    _write(self._target, 'new')  # An empty folder is taken.
    self.assertEqual(_read(self._target), 'new')
    self._assert_alone()
    deep = os.path.join(self._parent, 'x', 'y', 'data')
    _write(deep, 'new')
    self.assertEqual(_read(deep), 'new')

  def test_existing_folder_is_kept_without_replace(self):
    _write(self._target, 'old')
    with self.assertRaisesRegex(FileExistsError, 'data is not empty'):
      _write(self._target, 'new')
    with self.assertRaises(KeyboardInterrupt):
      with files.new_folder(self._target, [], replace=True) as folder:
        os.mkdir(os.path.join(folder, 'a'))
        raise KeyboardInterrupt
    self.assertEqual(_read(self._target), 'old')
    self._assert_alone()
    with files.new_folder(self._target, [], replace=True):
      self.assertEqual(_read(self._target), 'old')
    self.assertEmpty(os.listdir(self._target))
    self._assert_alone()

  @parameterized.parameters(True, False)
  def test_killed_at_any_moment(self, can_exchange):
    if not can_exchange:
      # NFS cannot, but there is none here.
      self.enter_context(
          mock.patch.object(files, '_exchange', lambda *_: False)
      )
    _write(self._target, '0')
    for _ in range(8):
      child = os.fork()
      if not child:
        for round_ in range(10**6):
          _write(self._target, str(round_), replace=True)
      time.sleep(random.uniform(0, 0.05))
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      if not can_exchange:
        files.recover_interrupted_write(self._target)
      self.assertTrue(_read(self._target).isdigit())
    _write(self._target, 'last', replace=True)
    self.assertEqual(_read(self._target), 'last')
    self._assert_alone()

  def test_killed_between_two_renames(self):
    replaced = os.path.join(self._parent, '.data.replaced')
    _write(self._target, 'old')
    _write(os.path.join(self._parent, '.data.unfinished'), 'new')
    os.rename(self._target, replaced)
    files.recover_interrupted_write(self._target)
    self.assertEqual(_read(self._target), 'old')
    self._assert_alone()
    os.rename(self._target, replaced)
    with self.assertRaisesRegex(FileExistsError, 'not empty'):
      _write(self._target, 'new')
    self.assertEqual(_read(self._target), 'old')
    self._assert_alone()
    # A living writer is not disturbed.
    with files.new_folder(self._target, [], replace=True):
      os.rename(self._target, replaced)
      files.recover_interrupted_write(self._target)
      self.assertFalse(os.path.exists(self._target))
      os.rename(replaced, self._target)

  def test_a_second_writer_is_refused(self):
    with files.new_folder(self._target, []) as folder:
      for _ in range(2):
        with self.assertRaisesRegex(
            BlockingIOError, f'Another process is writing {self._target}'
        ):
          _write(self._target, 'second')
        child = os.fork()
        if not child:
          try:
            _write(self._target, 'second')
          except BlockingIOError:
            os._exit(3)
          os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1] >> 8, 3)
      # It may write another one.
      other = os.path.join(self._parent, 'other')
      _write(other, 'other')
      self.assertEqual(_read(other), 'other')
      os.mkdir(os.path.join(folder, 'a'))
    self.assertEqual(os.listdir(self._target), ['a'])

  def test_unfinished_folder_is_kept_if_move_fails(self):
    with self.assertRaisesRegex(OSError, 'All is written, .* kept in') as e:
      with files.new_folder(self._target, []) as folder:
        with open(os.path.join(folder, 'a'), 'wb'):
          pass
        # Another program does this, which does not use the lock.
        os.makedirs(os.path.join(self._target, 'other'))
    kept = str(e.exception).rsplit('kept in ', 1)[1].rstrip('.')
    self.assertEqual(os.listdir(kept), ['a'])
    self.assertEqual(os.listdir(self._target), ['other'])
    _write(self._target, 'new', replace=True)
    self.assertEqual(os.listdir(kept), ['a'])

  def test_a_symbolic_link_stays(self):
    real = os.path.join(self._parent, 'real', 'data')
    os.symlink(real, self._target)
    for text in 'first', 'second':  # It points to nothing at first.
      _write(self._target, text, replace=True)
      self.assertEqual(_read(real), text)
      self.assertEqual(os.readlink(self._target), real)
      self.assertEqual(os.listdir(os.path.dirname(real)), ['data'])

  def test_unwritable_path_raises_one_line_error(self):
    file = os.path.join(self._parent, 'file')
    with open(file, 'wb'):
      pass
    for path, message in (
        ('/proc', '/proc is a mount point'),
        ('/proc/data', '/proc/data cannot be written: '),  # Not even by root.
        (os.path.join(file, 'data'), 'file/data cannot be written'),
        (file, 'file is a file'),
        ('s3://bucket/data', 's3://bucket/data cannot be reached'),
    ):
      with self.assertRaisesRegex(OSError, message) as e:
        _write(path, 'new', replace=True)
      self.assertNotIn('\n', str(e.exception))
    self.assertEqual(os.listdir(self._parent), ['file'])

  def test_umask_sets_permissions(self):
    original_umask = os.umask(0o027)
    try:
      _write(self._target, 'old')
      _write(self._target, 'new', replace=True)
      files.write_text(os.path.join(self._target, 'text'), 'text')
    finally:
      os.umask(original_umask)
    mode = lambda path: stat.S_IMODE(os.stat(path).st_mode)
    self.assertEqual(mode(self._target), 0o750)
    for name in *_FILES, 'text':
      self.assertEqual(mode(os.path.join(self._target, name)), 0o640)


class RemoteTest(tf.test.TestCase):

  def test_folder_at_url_is_written_when_complete(self):
    gfile = tf.io.gfile
    with files.new_folder('ram://whole/x/data', ['MARKER']) as folder:
      for name in 'MARKER', 'z':
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
          f.write(name)
      self.assertEmpty(gfile.listdir('ram://whole/x/data'))
    self.assertFalse(os.path.exists(folder))
    for name in 'MARKER', 'z':
      with gfile.GFile(f'ram://whole/x/data/{name}') as f:
        self.assertEqual(f.read(), name)
    with self.assertRaisesRegex(FileExistsError, 'is not empty'):
      _write('ram://whole/x/data', 'new')
    with self.assertRaisesRegex(OSError, 'cannot be replaced in one step'):
      _write('ram://whole/x/data', 'new', replace=True)
    _write('ram://whole/x/new', 'new', replace=True)
    self.assertLen(gfile.listdir('ram://whole/x/new'), len(_FILES))

  def test_local_folder_is_kept_if_copy_fails(self):
    with self.assertRaisesRegex(OSError, 'All is written, .* kept in') as e:
      with files.new_folder('ram://whole/y', []) as folder:
        with open(os.path.join(folder, 'a'), 'wb'):
          pass
        tf.io.gfile.makedirs('ram://whole/y/a')
    self.assertIn(folder, str(e.exception))
    self.assertEqual(os.listdir(folder), ['a'])


class WriteTextTest(tf.test.TestCase):

  def test_write_text_replaces_existing_file(self):
    folder = self.create_tempdir().full_path
    path = os.path.join(folder, 'text')
    for text in 'a longer text', 'ä':
      files.write_text(path, text)
      with open(path, encoding='utf-8') as f:
        self.assertEqual(f.read(), text)
    self.assertEqual(os.listdir(folder), ['text'])
    with self.assertRaises(UnicodeEncodeError):
      files.write_text(path, '\ud800')
    self.assertEqual(os.listdir(folder), ['text'])

  def test_write_text_to_url(self):
    tf.io.gfile.makedirs('ram://write_text')
    files.write_text('ram://write_text/a', 'ä')
    with tf.io.gfile.GFile('ram://write_text/a') as f:
      self.assertEqual(f.read(), 'ä')


if __name__ == '__main__':
  tf.test.main()
