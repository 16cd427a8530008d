"""Tests of inserts into several real servers at once."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import insert_stream
from rlds2reverb.replay.server import tables
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
  source = frames.make_frame_source(
      data,
      items.TableItems(testing.TABLE),
      options_lib.ConversionOptions(identity='data'),
  )
  return source._replace(**kwargs)


def _rewards(client):
  """Takes all items out of the table; returns their rewards."""
  return sorted(
      [frame.reward.tolist() for frame in item]
      for item in testing.drain(client)
  )


class SeveralServersTest(parameterized.TestCase, tf.test.TestCase):

  def _start(self, data):
    spec = specs.create_trajectory_data_spec(data)
    signature = tensor_spec.add_outer_dim(spec)
    server = reverb.Server([testing.make_table(signature=signature)])
    self.addCleanup(server.stop)
    return server, reverb.Client(f'localhost:{server.port}')

  @parameterized.parameters(golden.stacked, golden.batched)
  def test_every_item_is_on_the_server_of_its_episode(self, make):
    data = make(_EPISODES)
    clients = [self._start(data)[1] for _ in range(3)]
    for is_again in False, True:
      _, counts = insert.insert(_source(data), clients, timeout=30.0)
      for server, count in enumerate(counts):
        number = len(_pairs(range(server, len(_LENGTHS), 3)))
        new = 0 if is_again else number
        self.assertEqual(
            count, {testing.TABLE: tables.WrittenItems(new, number - new)}
        )
    for server, client in enumerate(clients):
      self.assertEqual(
          _rewards(client), _pairs(range(server, len(_LENGTHS), 3))
      )

  @pytest.mark.long
  def test_a_server_that_is_gone_and_a_second_run(self):
    data = golden.stacked(_EPISODES)
    _, here = self._start(data)
    server, gone = self._start(data)
    # It stops when the first episode has been read.
    stops = iter([server.stop])
    source = _source(data, watch=lambda block: next(stops, lambda: None)())
    with self.assertRaisesRegex(
        (insert_stream.InsertError, ConnectionError),
        rf'{here.server_address}: Table .* holds \d+ items',
    ):
      insert.insert(source, [here, gone], timeout=1.0)
    _, other = self._start(data)
    insert.insert(_source(data), [here, other], timeout=30.0)
    self.assertEqual(_rewards(here), _pairs(range(0, 10, 2)))
    self.assertEqual(_rewards(other), _pairs(range(1, 10, 2)))

  def test_an_invalid_episode_is_the_error_that_is_raised(self):
    invalid = golden.make_episode([1, 2, 1], terminal=True)
    data = golden.stacked([*_EPISODES[:3], invalid])
    clients = [self._start(data)[1] for _ in range(2)]
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Discount must lie'
    ):
      insert.insert(_source(data), clients, timeout=30.0)
    self.assertEqual(_rewards(clients[0]), _pairs([0, 2]))
    self.assertEqual(_rewards(clients[1]), _pairs([1]))

  def test_episodes_that_a_field_names_are_spread_evenly(self):
    counts = np.bincount(
        [insert.server_of(f'episode {i}', 4) for i in range(4000)]
    )
    # Within five standard deviations of a uniform draw.
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(750))


if __name__ == '__main__':
  absltest.main()
