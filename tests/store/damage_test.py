"""Tests of JSON files: damage is an error that names the file."""

import os
import struct
import zipfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.store import damage

_REMEDY = 'Remove it.'


class DamageTest(parameterized.TestCase):

  def test_an_object_is_read(self):
    path = self.create_tempfile(content='{"a": [1, {"b": null}]}').full_path
    self.assertEqual(damage.read_json(path, _REMEDY), {'a': [1, {'b': None}]})
    self.assertEqual(damage.loads_json('[NaN, "x"]')[1:], ['x'])
    deep = damage.loads_json('[' * 100 + ']' * 100)
    for _ in range(99):
      (deep,) = deep
    self.assertEqual(deep, [])

  @parameterized.parameters(
      ('', 'it is empty'),
      ('\0\0', 'it is empty'),
      ('[1]', 'instead of a JSON object'),
      ('{"a": 1', 'delimiter'),
      ('[' * 100_000 + ']' * 100_000, 'its values are nested too deeply'),
      ('{"a":' * 5000 + '1' + '}' * 5000, 'its values are nested too deeply'),
      ('{"a":' * 5000, 'its values are nested too deeply'),
  )
  def test_damaged_files(self, text, message):
    path = self.create_tempfile(content=text).full_path
    message = rf'^{path} is damaged: .*{message}.*\. Remove it\.$'
    with self.assertRaisesRegex(OSError, message):
      damage.read_json(path, _REMEDY)

  def test_an_archive_with_wrong_offsets(self):
    path = self.create_tempdir().create_file('a.npz').full_path
    np.savez(path, a=np.arange(3))
    with open(path, 'r+b') as f:
      # The offset of the directory, in the last 22 bytes of the archive.
      f.seek(-6, os.SEEK_END)
      [offset] = struct.unpack('<I', f.read(4))
      f.seek(-6, os.SEEK_END)
      f.write(struct.pack('<I', offset + 1000))
    with self.assertRaisesRegex(OSError, f'{path} is damaged: .* {_REMEDY}'):
      with damage.naming_damage(path, _REMEDY):
        with zipfile.ZipFile(path) as archive:
          archive.open('a.npy').read()
    with self.assertRaises(FileNotFoundError):
      with damage.naming_damage(path, _REMEDY):
        os.stat(f'{path}.none')


if __name__ == '__main__':
  absltest.main()
