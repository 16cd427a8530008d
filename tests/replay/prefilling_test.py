"""Recorded and own experience in one trainer, through a real server."""

import numpy as np
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import items
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import sampling
from rlds2reverb.replay.server import table_kinds
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

_OWN = 'own'
_RECORDED = golden.stacked(
    [golden.make_episode([1] * 21, terminal=True) for _ in range(4)]
)
# Own actions are above 1000.
_OWN_DATA = golden.stacked(
    [golden.make_episode([1] * 21, terminal=True, base=1000) for _ in range(3)]
)


class PrefillingTest(tf.test.TestCase):

  def _client(self, *names):
    spec = specs.create_trajectory_data_spec(_RECORDED)
    server = reverb.Server(
        [table_kinds.create_reverb_table(name, spec, 1000) for name in names]
    )
    self.addCleanup(server.stop)
    return server.localhost_client()

  def _record(self, client):
    insert.write_rlds_to_reverb(
        _RECORDED, client, items.TableItems(testing.TABLE)
    )

  def _act(self, client, table):
    """Writes frames as an agent's driver does, one by one."""
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        client, table, sequence_length=2
    )
    for frame in conversion.convert_rlds_to_trajectories(_OWN_DATA):
      observer(trajectory.Trajectory(*tf.nest.map_structure(np.array, frame)))
    observer.close()

  def _is_own(self, dataset, num_batches):
    """Returns which items are own ones, `[num_batches, B]`."""
    return np.array(
        [
            data.action[:, 0].numpy() > 1000
            for data, _ in dataset.take(num_batches)
        ]
    )

  def test_an_agent_goes_on_with_a_table_of_recorded_episodes(self):
    client = self._client(testing.TABLE)
    self._record(client)
    self.assertEqual(testing.size(client), 80)
    self._act(client, testing.TABLE)
    self.assertEqual(testing.size(client), 140)
    dataset = sampling.sample_reverb_servers(client, testing.TABLE, 2, 16)
    own = self._is_own(dataset, 300)
    self.assertLess(
        testing.chi_square([(~own).sum(), own.sum()], [80 / 140, 60 / 140]),
        testing.CHI_SQUARE_LIMITS[1],
    )


if __name__ == '__main__':
  tf.test.main()
