"""Tests that a damaged checkpoint is refused by whatever opens one."""

import os
import random
import shutil

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import describing
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import opening
from rlds2reverb.replay.checkpoint import episodes as episodes_lib
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from tests import reverb_testing
from tests.replay.checkpoint import checkpoints

_TABLES = [
    checkpoints.PAIRS,
    items_lib.TableItems(checkpoints.OTHER, windows_lib.Windows(5)),
]
_ERRORS = (records.CheckpointError, FileNotFoundError)


def _bytes_of(nest):
  return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(nest)]


def _items_of(path):
  """Returns the contents of the items of a checkpoint by table and key."""
  server = serve.restore_reverb_server(path)
  try:
    client = server.localhost_client()
    found = {}
    for name, info in client.server_info().items():
      items = found[name] = {}
      while len(items) < info.current_size:
        for sample in client.sample(name, 500, emit_timesteps=False):
          items[int(np.ravel(sample.info.key)[0])] = _bytes_of(sample.data)
    return found
  finally:
    server.stop()


def _frames_of(path):
  buffer = opening.open_replay_buffer(path, table_name=reverb_testing.TABLE)
  return _bytes_of(buffer.gather_all())


def _episodes_of(path):
  dataset = episodes_lib.read_checkpoint_episodes(path, reverb_testing.TABLE)
  return list(map(_bytes_of, dataset.as_numpy_iterator()))


def _merged(path, folder):
  merge.merge_reverb_checkpoints([path], folder)
  return _items_of(folder)


# What opens a checkpoint: functions of its path, and of a folder that is new.
_OPENERS = {
    'open': lambda path, _: _frames_of(path),
    'restore': lambda path, _: _items_of(path),
    'merge': _merged,
    'episodes': lambda path, _: _episodes_of(path),
    'describe': lambda path, _: describing.describe(path).tables,
}


def _damage_bytes(rng, path):
  """Damages the bytes of a file."""
  with open(path, 'rb') as f:
    content = bytearray(f.read())
  position = rng.randrange(len(content))
  change = rng.choice(
      [
          (1, bytes([content[position] ^ 1 << rng.randrange(8)])),
          (16, rng.randbytes(16)),
          (len(content), b''),
          (rng.randrange(1, 100), b''),
          (0, rng.randbytes(8)),
      ]
  )
  content[position : position + change[0]] = change[1]
  with open(path, 'wb') as f:
    f.write(content)


def _damage_records(rng, directory, file):
  """Damages a file, but no record of it."""
  contents = checkpoints.records_of(directory, file)
  record_index = rng.randrange(len(contents))
  one, other = contents[record_index], rng.choice(contents)
  damaged = rng.choice(
      [
          contents[:record_index] + contents[record_index + 1 :],
          contents[:record_index],
          contents[::2],
          contents[:record_index] + [other, one] + contents[record_index + 1 :],
          contents[:record_index] + [other] + contents[record_index + 1 :],
      ]
  )
  checkpoints.rewrite(directory, file, damaged)


def _damage(rng, directory):
  file = rng.choice(checkpoints.FILES)
  path = os.path.join(directory, file)
  kind = rng.randrange(12)
  if kind == 0:
    os.remove(path)
  elif kind == 1:
    os.remove(os.path.join(directory, records.DONE))
  elif kind == 2:
    others = [other for other in checkpoints.FILES if other != file]
    shutil.copy(os.path.join(directory, rng.choice(others)), path)
  elif kind < 8:
    _damage_bytes(rng, path)
  else:
    _damage_records(rng, directory, file)


class DamagesTest(checkpoints.CheckpointTestCase):

  def intact(self, own):
    path = self.write(checkpoints.episodes([30, 70, 3, 12]), _TABLES)
    return path if own else self.serve(path).checkpoint()

  @parameterized.parameters((False, 5), (True, 50))
  @pytest.mark.few(1)
  def test_damaged_checkpoints_are_refused_or_read_correctly(self, own, count):
    path, tries, refused = self.intact(own), 0, 0
    expected = {name: of(path, self.new()) for name, of in _OPENERS.items()}
    for seed in range(count):
      rng = random.Random(seed)
      copy = self.copy(path)
      _damage(rng, copy)
      names = list(_OPENERS)
      for opener in names if count > 5 else [names[seed % len(names)]]:
        tries += 1
        with self.subTest(seed=seed, opener=opener):
          try:
            actual = _OPENERS[opener](copy, self.new())
          except _ERRORS as error:
            self.assertIn(copy, str(error))
            refused += 1
          else:
            self.assertEqual(actual, expected[opener])
    self.assertGreaterEqual(refused, tries / 2)

  def test_records_that_are_missing(self):
    path = self.intact(own=True)
    for file, left, sentence in (
        ('tables', slice(1), 'items of a table that is not in'),
        ('tables', slice(1, None), 'items of a table that is not in'),
        ('items', slice(1, None), 'has .* items, but'),
        ('items', slice(-1), 'has .* items, but'),
        ('items', slice(None, None, 2), 'has .* items, but'),
        ('chunks', slice(1), 'chunks that its items refer to'),
    ):
      file, copy = f'{file}.tfrecord', self.copy(path)
      contents = checkpoints.records_of(copy, file)
      checkpoints.rewrite(copy, file, contents[left])
      with self.assertRaisesRegex(records.CheckpointError, sentence):
        records.read_index(copy)


if __name__ == '__main__':
  tf.test.main()
