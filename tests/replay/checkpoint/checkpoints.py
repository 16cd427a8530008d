"""Writes, serves and damages checkpoints for tests."""

import os
import shutil

from absl.testing import parameterized
from reverb.cc.checkpointing import checkpoint_pb2
import tensorflow as tf

from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import reverb_testing

OTHER = 'other_table'
PAIRS = items.TableItems(reverb_testing.TABLE)
FILES = ('tables.tfrecord', 'items.tfrecord', 'chunks.tfrecord')


def episodes(lengths):
  return golden.make_episodes(lengths, apart=1000)


def once(sampler, name=reverb_testing.TABLE):
  """Returns a table for `episodes` that samples each item once."""
  return reverb_testing.make_table(
      signature=reverb_testing.signature_of(golden.stacked(episodes([2]))),
      max_size=100_000,
      name=name,
      sampler=sampler,
  )


def records_of(directory, file):
  dataset = tf.data.TFRecordDataset(os.path.join(directory, file), 'ZLIB')
  return list(dataset.as_numpy_iterator())


def rewrite(directory, file, contents):
  options = tf.io.TFRecordOptions('ZLIB')
  with tf.io.TFRecordWriter(os.path.join(directory, file), options) as writer:
    for content in contents:
      writer.write(content)


class CheckpointTestCase(parameterized.TestCase, tf.test.TestCase):
  """Writes, serves and copies checkpoints in temporary folders."""

  def new(self, name='checkpoint'):
    return os.path.join(self.create_tempdir().full_path, name)

  def write(self, episodes, tables=PAIRS, reverb_tables=(), **options):
    path = self.new()
    write.write_reverb_checkpoint(
        # With batches of one, chunks do not depend on other episodes.
        golden.batched(episodes, batch_size=1),
        path,
        tables,
        reverb_tables=reverb_tables,
        options=options_lib.ConversionOptions(**options),
    )
    return path

  def serve(self, path):
    server = serve.restore_reverb_server(path)
    self.addCleanup(server.stop)
    return server.localhost_client()

  def copy(self, path):
    return shutil.copytree(path, self.new())

  def serve_once(self, path):
    """Serves a checkpoint with a table that samples each item once."""
    (table,) = records_of(path, 'tables.tfrecord')
    table = checkpoint_pb2.PriorityTableCheckpoint.FromString(table)
    table.max_times_sampled = 1
    copy = self.copy(path)
    rewrite(copy, 'tables.tfrecord', [table.SerializeToString()])
    return self.serve(copy)
