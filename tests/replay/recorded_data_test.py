"""Tests that recorded data is sampled unchanged from a Reverb server.

The data is recorded from real environments. What is sampled must be equal, bit
by bit, to what was recorded.
"""

import os
import tempfile

from absl.testing import parameterized
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.replay.server import push
from tests import contract
from tests import golden
from tests import recordings
from tests import reverb_testing

_FRAME_FIELDS = (
    'observation',
    'action',
    'reward',
    'discount',
    'is_first',
    'is_last',
    'is_terminal',
)


def _load(path):
  """Yields the data as users load it: stacked by us, and nested by TFDS."""
  yield loading.load_episodes(path)
  yield tfds.builder_from_directory(path).as_dataset(split='train')


def _sample(data):
  """Pushes episodes; returns the sequences that a server gives, in order."""
  with reverb_testing.reverb_server(data) as client:
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        client, reverb_testing.TABLE, sequence_length=2
    )
    push.push_rlds_to_reverb(data, observer)
    observer.close()
    return reverb_testing.drain(client)


@pytest.mark.long
class RecordedDataTest(parameterized.TestCase, tf.test.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.paths = {
        name: os.path.join(recordings.FOLDER, name) for name in recordings.NAMES
    }
    # CartPole needs no additional package, so it is recorded in the test.
    cls.paths['cartpole'] = os.path.join(folder, 'cartpole')
    recording.record_episodes(
        'CartPole-v1', cls.paths['cartpole'], 4, max_steps=15, seed=3
    )

  @parameterized.parameters(*recordings.NAMES, 'cartpole')
  def test_sampled_items_equal_recorded_frames(self, name):
    expected = []
    for steps in recordings.read(self.paths[name]):
      rows = [{key: step[key] for key in _FRAME_FIELDS} for step in steps]
      frames = golden.expected_frames([contract.stack(rows)])
      expected += [each for pair in zip(frames, frames[1:]) for each in pair]
    for data in _load(self.paths[name]):
      sampled = _sample(data)
      self.assertEqual({len(item) for item in sampled}, {2})
      golden.assert_frames_equal(self, sum(sampled, []), expected)


if __name__ == '__main__':
  tf.test.main()
