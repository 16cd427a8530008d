"""Data without a file, with an empty one, or without a key of its metadata.

One at a time is taken away. What is read is right then, or the error names the
file or the key.
"""

import json
import os
import re
import zipfile

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf
import tree

from rlds2reverb import formats
from tests.formats import expected

_POINTER = (
    b'version https://git-lfs.github.com/spec/v1\n'
    b'oid sha256:4d7a214614ab2935c943f9e0ff69d22ea\nsize 12345\n'
)
_STEPS = {'episode_column': 'run', 'column_names': {'observations': 'obs'}}
_CASES = (
    ('calvin', 'calvin', {}),
    ('d3rlpy', 'd3rlpy/arrays.h5', {}),
    ('imitation', 'imitation/folder', {}),
    ('imitation', 'imitation/trajectories.npz', {}),
    ('lerobot', 'lerobot/v2.1', {}),
    ('lerobot', 'lerobot/v2.1', {'modality': True}),
    ('lerobot', 'lerobot/v3.0', {}),
    ('minari', 'minari/cartpole', {}),
    ('minari', 'minari/rooms_arrow', {}),
    ('minari', 'minari/rooms_parquet', {}),
    ('parquet', 'parquet/steps', _STEPS),
    ('parquet', 'parquet/episodes.parquet', {}),
    ('rllib', 'rllib/plain', {}),
    ('rllib', 'rllib/table', {}),
    ('rllib', 'rllib/columns/cartpole-v1/run-000001-00001', {}),
    ('rllib', 'rllib/episodes/cartpole-v1/run-000001-00001', {}),
    ('robomimic', 'robomimic/low_dim.hdf5', {}),
    ('torchrl', 'torchrl/flat/storage', {}),
    ('torchrl', 'torchrl/nested/storage', {}),
    ('torchrl', 'torchrl/transitions', {}),
    ('zarr', 'zarr/pusht.zarr', {}),
    ('zarr', 'zarr/umi.zarr.zip', {}),
)
_EVERYDAY = (
    'imitation/trajectories.npz',
    'minari/cartpole',
    'robomimic/low_dim.hdf5',
)
# Without these files a data set has fewer episodes or fields, but is complete.
_OPTIONAL = re.compile(
    # Zarr reads a chunk that is not there as its fill value.
    r'/data/\w+/[0-9.]+$'
    # Minari's spaces tell the shapes of lists.
    r'|metadata\.json$'
)


def _episodes(path, form, options):
  return list(formats.load(path, form, **options).as_numpy_iterator())


def _one_of_each_kind(paths):
  """Returns the last of the paths that differ only in their numbers."""
  return sorted({re.sub(r'\d+', '#', path): path for path in paths}.values())


def _key_paths(content, depth=3):
  """Yields the paths of all keys of nested objects."""
  if isinstance(content, dict) and depth:
    for key, value in content.items():
      yield (key,)
      for below in _key_paths(value, depth - 1):
        yield key, *below


class _IncompleteData(tf.test.TestCase, parameterized.TestCase):

  def _copy(self, path):
    folder = self.create_tempdir().full_path
    if path == 'calvin':
      return expected.write_calvin(self)[0]
    if path.startswith('torchrl'):
      with zipfile.ZipFile(f'{expected.DATA}/torchrl.zip') as archive:
        archive.extractall(f'{folder}/torchrl')
      return os.path.join(folder, path)
    return expected.copy_of(self, *path.split('/'))

  def _prepare(self, form, path, options):
    if form == 'zarr':
      pytest.importorskip('zarr')
      pytest.importorskip('imagecodecs')
    path = self._copy(path)
    if options.get('modality'):
      part = {'arm': {'start': 0, 'end': 2}}
      video = {'top': {'original_key': 'observation.images.top'}}
      expected.change_json(
          f'{path}/meta/modality.json',
          lambda json: json.update(state=part, action=part, video=video),
      )
    files = [path]
    if os.path.isdir(path):
      files = [
          os.path.join(folder, name)
          for folder, _, names in os.walk(path)
          for name in names
          if name != 'expected.npz'
      ]
    files = _one_of_each_kind(sorted(files))
    return path, files, _episodes(path, form, options)

  def _check(self, whole, path, form, options, *names, may_differ=False):
    """Checks that data is read as before, or that an error names something."""
    try:
      actual = _episodes(path, form, options)
    except (ValueError, OSError, tf.errors.InvalidArgumentError) as e:
      self.assertNotIsInstance(e, (json.JSONDecodeError, UnicodeError))
      self.assertTrue(
          any(name in str(e) for name in names), f'{names}: {str(e)[:500]}'
      )
      return
    if not may_differ:
      self.assertLen(actual, len(whole))
      for actual_value, expected_value in zip(actual, whole):
        tree.assert_same_structure(actual_value, expected_value)
        tree.map_structure(
            np.testing.assert_array_equal, actual_value, expected_value
        )

  def _check_files(self, form, path, options):
    path, files, whole = self._prepare(form, path, options)
    for file in files:
      with open(file, 'rb') as f:
        content = f.read()
      half = content[: len(content) // 2]
      for kind, change in (('gone', None), ('empty', b''), ('cut', half)):
        if change == content:
          continue
        with self.subTest(f'{os.path.relpath(file, path)} {kind}'):
          if change is None:
            os.remove(file)
          else:
            with open(file, 'wb') as f:
              f.write(change)
          may_differ = kind == 'gone' and _OPTIONAL.search(file)
          names = [os.path.basename(file), f'{os.path.dirname(file)} ']
          if form == 'zarr':
            names.append(path)
          if kind == 'gone':
            folder = os.path.dirname(file)
            names += [folder, f'{os.path.dirname(folder)}.']
          self._check(whole, path, form, options, *names, may_differ=may_differ)
      with open(file, 'wb') as f:
        f.write(content)


class IncompleteTest(_IncompleteData):

  @parameterized.parameters(*(case for case in _CASES if case[1] in _EVERYDAY))
  def test_missing_empty_and_truncated_files(self, form, path, options):
    self._check_files(form, path, options)


@pytest.mark.long
class MoreIncompleteTest(_IncompleteData):

  @parameterized.parameters(
      *(case for case in _CASES if case[1] not in _EVERYDAY)
  )
  def test_missing_empty_and_truncated_files(self, form, path, options):
    self._check_files(form, path, options)

  @parameterized.parameters(*_CASES)
  def test_git_lfs_pointers_are_reported(self, form, path, options):
    path, files, whole = self._prepare(form, path, options)
    for file in files:
      with open(file, 'rb') as f:
        content = f.read()
      with self.subTest(os.path.relpath(file, path)):
        with open(file, 'wb') as f:
          f.write(_POINTER)
        self._check(whole, path, form, options, f'{file} is a Git LFS pointer')
      with open(file, 'wb') as f:
        f.write(content)

  @parameterized.parameters(
      *(case for case in _CASES if '.' not in case[1][-8:])
  )
  def test_missing_keys_and_null_values(self, form, path, options):
    path, files, whole = self._prepare(form, path, options)
    for file in files:
      if not file.endswith(('.json', '.jsonl', '.zarray', '.zgroup')):
        continue
      with open(file, encoding='utf-8') as f:
        text = f.read()
      # RLlib's files of lines end with .json, too.
      is_lines = file.endswith('l') or form == 'rllib'
      first, *rest = text.splitlines() if is_lines else [text]
      for *above, key in _key_paths(json.loads(first)):
        for change in 'remove', None:
          content = json.loads(first)
          inner = content
          for name in above:
            inner = inner[name]
          if change == 'remove':
            del inner[key]
          else:
            inner[key] = change
          with self.subTest(
              f'{os.path.relpath(file, path)} {above} {key} {change}'
          ):
            with open(file, 'w', encoding='utf-8') as f:
              f.write('\n'.join([json.dumps(content), *rest]))
            self._check(
                whole,
                path,
                form,
                options,
                *above,
                key,
                os.path.basename(file),
                may_differ=True,
            )
      with open(file, 'w', encoding='utf-8') as f:
        f.write('\n'.join([first, *rest]))


if __name__ == '__main__':
  tf.test.main()
