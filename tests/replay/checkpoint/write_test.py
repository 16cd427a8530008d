"""Tests of checkpoints that are written without a server."""

import reverb
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.replay.checkpoint import write
from tests import testing
from tests.replay.checkpoint import checkpoints


class WriteTest(checkpoints.CheckpointTestCase):

  def test_tables_that_do_not_fit(self):
    once = checkpoints.once(reverb.selectors.Fifo)
    small = testing.make_table(signature=once.info.signature, max_size=3)
    other = checkpoints.once(reverb.selectors.Fifo, checkpoints.OTHER)
    for tables, message in (
        ([once, once], 'describes a table twice'),
        ([other], f"'{checkpoints.OTHER}', which no items go into"),
        ([small], 'its max_size is 3, and the data makes 4 items'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.write(checkpoints.episodes([5]), reverb_tables=tables)

  def test_default_settings_are_those_of_a_reverb_table(self):
    spec = {'x': tf.TensorSpec([3], tf.float32, 'x')}
    table = reverb.Table(
        'a',
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=7,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=tensor_spec.add_outer_dim(spec),
    )
    self.assertEqual(
        write.table_checkpoint('a', None, 7, spec),
        write.table_checkpoint('a', table, 7, spec),
    )


if __name__ == '__main__':
  tf.test.main()
