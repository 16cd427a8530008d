"""Tests that sequences equal the items of observers, and can be written."""

import os

import tensorflow as tf

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import sequences
from tests import golden
from tests import reverb_testing


def _columns(sequence):
  return tuple(
      (leaf.dtype.str, leaf.shape, reverb_testing.bytes_of(leaf))
      for leaf in tf.nest.flatten(sequence)
  )


class SequencesTest(tf.test.TestCase):

  def test_written_under_an_identity(self):
    # More frames than a segment has.
    lengths = [4, 1, 2, 1500]
    count = sum(lengths)
    data = golden.stacked(golden.make_episodes(lengths, apart=10000))
    actual = sequences.convert_rlds_to_sequences(
        data, windows_lib.Windows(4, end='tile')
    )
    expected = [
        (1.0, _columns(sequence)) for sequence in actual.as_numpy_iterator()
    ]
    self.assertLen(set(expected), count)
    names = (reverb_testing.TABLE, 'other_table')
    tables = [items.TableItems(name) for name in names]
    directory = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    options = options_lib.ConversionOptions(identity='sequences')
    write.write_reverb_checkpoint(
        actual,
        directory,
        tables,
        options=options,
        reverb_tables=[
            reverb_testing.make_table(name=name, max_size=2000)
            for name in names
        ],
    )
    with reverb_testing.reverb_server(
        data, tables=names, max_size=2000
    ) as client:
      for counts in ((count, 0), (0, count)):
        self.assertEqual(
            insert.write_rlds_to_reverb(
                actual, client, tables, options=options
            ),
            dict.fromkeys(names, counts),
        )
      written = [reverb_testing.contents(client, name) for name in names]
    server = serve.restore_reverb_server(directory)
    written += [
        reverb_testing.contents(server.localhost_client(), name)
        for name in names
    ]
    server.stop()
    for contents in written:
      self.assertEqual(contents.items, expected)
      self.assertEqual(contents.num_episodes, count)


if __name__ == '__main__':
  tf.test.main()
