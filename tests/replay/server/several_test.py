"""Tests of inserts into several real servers."""

import contextlib

from absl.testing import absltest
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.replay import frames
from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import reverb_testing

# One episode has no items, and one has several chunks.
_EPISODES = golden.make_episodes((3, 4, 2, 6, 5, 4, 3, 7, 1, 200))


def _source(data, **kwargs):
  options = options_lib.ConversionOptions(identity='data')
  source = frames.make_frame_source(
      data, items.TableItems(reverb_testing.TABLE), options
  )
  return source._replace(**kwargs)


class SeveralServersTest(tf.test.TestCase):

  def start(self, count=1):
    """Returns clients of new servers."""
    data = golden.stacked(_EPISODES)
    return [
        self.enter_context(reverb_testing.reverb_server(data))
        for _ in range(count)
    ]

  def check(self, clients, episodes=_EPISODES):
    """Asserts that each server has the items of its episodes."""
    for server, client in enumerate(clients):
      self.assertCountEqual(
          reverb_testing.take_rewards(client),
          reverb_testing.pairs(episodes[server :: len(clients)]),
      )

  def test_names_are_spread(self):
    # Within five standard deviations of a uniform draw.
    names = [insert.server_of(f'episode {i}', 4) for i in range(4000)]
    np.testing.assert_allclose(np.bincount(names), 1000, atol=5 * np.sqrt(750))

  @pytest.mark.long
  def test_insert_without_one_server_fails_and_second_run_completes(self):
    data = golden.stacked(_EPISODES)
    here, other = self.start(2)
    stack = contextlib.ExitStack()
    gone = stack.enter_context(reverb_testing.reverb_server(data))
    # It stops when the first episode has been read.
    source = _source(data, watch=lambda block: stack.close())
    with self.assertRaisesRegex(
        (insert.InsertError, ConnectionError),
        rf'{here.server_address}: Table .* holds \d+ items',
    ):
      insert.insert(source, [here, gone], timeout=1.0)
    insert.insert(_source(data), [here, other], timeout=30.0)
    self.check([here, other])

  def test_an_invalid_episode_is_the_error_that_is_raised(self):
    invalid = golden.make_episode([1, 2, 1], terminal=True)
    data, clients = golden.stacked([*_EPISODES[:3], invalid]), self.start(2)
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'Discount must lie'
    ):
      insert.insert(_source(data), clients, timeout=30.0)
    self.check(clients, _EPISODES[:3])


if __name__ == '__main__':
  absltest.main()
