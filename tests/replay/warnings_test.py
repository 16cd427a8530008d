"""Tests that all functions that convert a data set log the same warnings."""

from absl import logging
from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils

from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import opening
from rlds2reverb.replay.local import appendable
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import options as options_lib
from tests import golden
from tests import reverb_testing

_ITEMS = items_lib.TableItems(reverb_testing.TABLE)
_BEGINNINGS = [
    'In 2 terminal episodes (the first is episode 1) the last transition has a',
    'In 3 episodes (the first is episode 0) the last transition is dropped,',
    'The data holds NaN: 1 in observation.',
    f'Skipped 1 invalid episodes. The first: {golden.NO_FIRST}',
]


def _data():
  with_nan = dict(
      golden.TRUNCATED,
      observation=np.array([[1, 2], [np.nan, 0], [3, 0], [4, 5]], 'f'),
  )
  bad = dict(golden.COMPLETE, is_first=np.zeros(4, bool))
  return golden.stacked([with_nan, golden.COMPLETE, bad, golden.COMPLETE])


def _push(data, options):
  with reverb_testing.reverb_server(data) as client:
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        client, reverb_testing.TABLE, sequence_length=2
    )
    push.push_rlds_to_reverb(data, observer, options=options, method='observer')
    observer.close()


def _write(data, options):
  with reverb_testing.reverb_server(data) as client:
    insert.write_rlds_to_reverb(data, client, _ITEMS, options=options)


_WAYS = {
    'push, observer': _push,
    'write': _write,
    'open': lambda data, options: opening.open_replay_buffer(
        data, options=options
    ),
    'append': lambda data, options: appendable.AppendableReplayBuffer(
        data, 100, options=options
    ),
    # It writes a checkpoint.
    'open, server': lambda data, options: opening.open_replay_buffer(
        data, reverb_server=True, options=options
    ),
}


class WarningsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*_WAYS)
  def test_all_functions_log_the_same_warnings(self, way):
    rules = options_lib.ConversionRules(invalid_episodes='skip')
    with self.assertLogs(logging.get_absl_logger(), 'WARNING') as logs:
      _WAYS[way](_data(), options_lib.ConversionOptions(rules))
    self.assertLen(logs.records, len(_BEGINNINGS))
    for record, sentence in zip(logs.records, _BEGINNINGS):
      self.assertStartsWith(record.getMessage(), sentence)

  def test_valid_episode_logs_no_warning(self):
    episode = dict(golden.COMPLETE, reward=np.array([1, 2, 3, 0], 'f'))
    rules = options_lib.ConversionRules(terminal_discount='transition')
    with self.assertNoLogs(logging.get_absl_logger(), 'WARNING'):
      _WAYS['open'](
          golden.stacked([episode]), options_lib.ConversionOptions(rules)
      )


if __name__ == '__main__':
  tf.test.main()
