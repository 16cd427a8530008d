"""Tests of checkpoints that are written without a server."""

from absl.testing import parameterized
import reverb
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.checkpoint import write
from tests import reverb_testing
from tests.replay.checkpoint import checkpoints


class WriteTest(checkpoints.CheckpointTestCase):

  def test_unsuitable_tables_raise(self):
    once = checkpoints.once(reverb.selectors.Fifo)
    small = reverb_testing.make_table(signature=once.info.signature, max_size=3)
    other = checkpoints.once(reverb.selectors.Fifo, checkpoints.OTHER)
    for tables, message in (
        ([once, once], 'has table .* twice'),
        ([other], f"'{checkpoints.OTHER}', which gets no items"),
        ([small], 'its max_size is 3, and the data has 4 items'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        self.write(checkpoints.episodes([5]), reverb_tables=tables)

  @parameterized.parameters((1.0, 1e308), (2.0, 1e-200), (3.0, 1e103))
  def test_weights_that_overflow_or_vanish(self, exponent, priority):
    table = reverb.Table(
        reverb_testing.TABLE,
        sampler=reverb.selectors.Prioritized(exponent),
        remover=reverb.selectors.Fifo(),
        max_size=500,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    for invalid in priority, lambda item: tf.constant(priority, tf.float64):
      items = items_lib.TableItems(reverb_testing.TABLE, priority=invalid)
      with self.assertRaisesRegex(ValueError, 'Scale the priorities'):
        self.write(checkpoints.episodes([9]), items, reverb_tables=[table])

  def test_default_settings_equal_those_of_a_reverb_table(self):
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
