"""Tests of expanding and refusing paths, and of file operations."""

import json
import os
import pathlib
from unittest import mock

from absl.testing import parameterized
from etils import epath
import tensorflow as tf

from rlds2reverb.datasets import files
from tests import ram_files  # noqa: F401


class ExpandTest(parameterized.TestCase, tf.test.TestCase):

  def setUp(self):
    super().setUp()
    home = {'HOME': '/home/someone'}
    self.enter_context(mock.patch.dict(os.environ, home))

  @parameterized.parameters(
      ('/a/b', '/a/b'),
      ('/a/../b/', '/b'),
      ('~', '/home/someone'),
      (pathlib.Path('~/a'), '/home/someone/a'),
      (epath.Path('/a'), '/a'),
      (os.fsencode('/a'), '/a'),
      ('/a/~/b', '/a/~/b'),
      ('/a:b/c', '/a:b/c'),
      ('gs://bucket/a/', 'gs://bucket/a'),
      (epath.Path('gs://bucket/a'), 'gs://bucket/a'),
  )
  def test_expand(self, path, expected):
    self.assertEqual(files.expand(path), expected)

  def test_relative(self):
    self.assertEqual(files.expand('a/b'), os.path.join(os.getcwd(), 'a', 'b'))
    self.assertEqual(files.expand('a:b'), os.path.join(os.getcwd(), 'a:b'))

  @parameterized.parameters(
      ('', 'must not be empty'),
      ('foo://a/b', 'no file system for foo://'),
      (pathlib.Path('gs://bucket/a'), 'gs:/bucket/a is a URL that has lost'),
  )
  def test_invalid_path_raises(self, path, message):
    with self.assertRaisesRegex(ValueError, message):
      files.expand(path)


class FilesTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.parameters('local', 'ram')
  def test_names_existence_and_text_of_files(self, kind):
    folder = self.create_tempdir().full_path if kind == 'local' else 'ram://f'
    tf.io.gfile.makedirs(f'{folder}/data/1.0.0')
    tf.io.gfile.makedirs(f'{folder}/data/c~')
    with tf.io.gfile.GFile(f'{folder}/data/b', 'w') as f:
      f.write('ä\n')
    self.assertEqual(files.names_in(f'{folder}/data'), ['1.0.0', 'b', 'c~'])
    self.assertEqual(files.names_in(f'{folder}/data/b'), [])
    self.assertEqual(files.names_in(f'{folder}/none'), [])
    self.assertTrue(files.is_folder(f'{folder}/data'))
    self.assertFalse(files.is_folder(f'{folder}/data/b'))
    self.assertTrue(files.exists(f'{folder}/data/b'))
    self.assertFalse(files.exists(f'{folder}/none'))
    with files.open_text(f'{folder}/data/b') as f:
      self.assertEqual(f.name, f'{folder}/data/b')
      self.assertEqual(f.read(), 'ä\n')
    with self.assertRaises(FileNotFoundError):
      files.open_text(f'{folder}/none')

  def test_json_that_is_nested_too_deeply(self):
    path = self.create_tempfile(content='[' * 100_000).full_path
    with self.assertRaisesRegex(ValueError, f'{path} .* nested too deeply'):
      with files.open_text(path) as f:
        json.load(f)

  def test_local_files_lists_files_recursively(self):
    folder = self.create_tempdir()
    expected = [folder.create_file(name).full_path for name in ('a/b', 'c')]
    self.assertEqual(files.local_files(folder.full_path), expected)
    self.assertEqual(files.local_files(expected[0]), expected[:1])


if __name__ == '__main__':
  tf.test.main()
