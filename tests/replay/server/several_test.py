"""Tests of inserts into several real servers at once."""

import contextlib

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

# One episode has no items, and one has several chunks.
_LENGTHS = (3, 4, 2, 6, 5, 4, 3, 7, 1, 200)
_EPISODES = [
    golden.make_episode([1] * length, terminal=True, base=1000 * index)
    for index, length in enumerate(_LENGTHS)
]


def _pairs(indices):
  """Returns the rewards of the items of two frames of some episodes."""
  return sorted(
      _EPISODES[index]['reward'][step : step + 2].tolist()
      for index in indices
      for step in range(_LENGTHS[index] - 1)
  )


def _source(data, **kwargs):
  options = options_lib.ConversionOptions(identity='data')
  source = frames.make_frame_source(
      data, items.TableItems(testing.TABLE), options
  )
  return source._replace(**kwargs)


def _rewards(client):
  """Takes all items out of the table; returns their rewards."""
  return sorted(
      [frame.reward.tolist() for frame in item]
      for item in testing.drain(client)
  )


class SeveralServersTest(tf.test.TestCase):

  def start(self, data):
    """Returns a client of a new server."""
    spec = specs.create_trajectory_data_spec(data)
    return self.enter_context(testing.reverb_server(spec))

  def test_every_item_is_on_the_server_of_its_episode(self):
    data = golden.batched(_EPISODES)
    clients = [self.start(data) for _ in range(3)]
    expected = [_pairs(range(server, 10, 3)) for server in range(3)]
    for is_again in False, True:
      _, counts = insert.insert(_source(data), clients, timeout=30.0)
      for count, pairs in zip(counts, expected):
        new = 0 if is_again else len(pairs)
        self.assertEqual(count, {testing.TABLE: (new, len(pairs) - new)})
    self.assertEqual(list(map(_rewards, clients)), expected)
    # Episodes that a field names are spread evenly: within five standard
    # deviations of a uniform draw.
    names = [insert.server_of(f'episode {i}', 4) for i in range(4000)]
    np.testing.assert_allclose(np.bincount(names), 1000, atol=5 * np.sqrt(750))

  @pytest.mark.long
  def test_a_server_that_is_gone_and_a_second_run(self):
    data = golden.stacked(_EPISODES)
    here = self.start(data)
    stack = contextlib.ExitStack()
    spec = specs.create_trajectory_data_spec(data)
    gone = stack.enter_context(testing.reverb_server(spec))
    # It stops when the first episode has been read.
    source = _source(data, watch=lambda block: stack.close())
    with self.assertRaisesRegex(
        (insert.InsertError, ConnectionError),
        rf'{here.server_address}: Table .* holds \d+ items',
    ):
      insert.insert(source, [here, gone], timeout=1.0)
    other = self.start(data)
    insert.insert(_source(data), [here, other], timeout=30.0)
    self.assertEqual(_rewards(here), _pairs(range(0, 10, 2)))
    self.assertEqual(_rewards(other), _pairs(range(1, 10, 2)))

  def test_an_invalid_episode_is_the_error_that_is_raised(self):
    invalid = golden.make_episode([1, 2, 1], terminal=True)
    data = golden.stacked([*_EPISODES[:3], invalid])
    clients = [self.start(data) for _ in range(2)]
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Discount must lie'
    ):
      insert.insert(_source(data), clients, timeout=30.0)
    self.assertEqual(_rewards(clients[0]), _pairs([0, 2]))
    self.assertEqual(_rewards(clients[1]), _pairs([1]))


if __name__ == '__main__':
  absltest.main()
