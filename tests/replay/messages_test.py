from absl.testing import absltest
from absl.testing import parameterized
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2

from rlds2reverb.replay import messages

_ALL = {
    'ChunkData': schema_pb2.ChunkData,
    'ChunkSlice': schema_pb2.FlatTrajectory.ChunkSlice,
    'ChunkTensors': schema_pb2.ChunkData.Data,
    'Column': schema_pb2.FlatTrajectory.Column,
    'FlatTrajectory': schema_pb2.FlatTrajectory,
    'HeapOptions': schema_pb2.KeyDistributionOptions.Heap,
    'KeyDistributionOptions': schema_pb2.KeyDistributionOptions,
    'PrioritizedItem': schema_pb2.PrioritizedItem,
    'PrioritizedOptions': schema_pb2.KeyDistributionOptions.Prioritized,
    'PriorityTableCheckpoint': checkpoint_pb2.PriorityTableCheckpoint,
    'RateLimiterCheckpoint': checkpoint_pb2.RateLimiterCheckpoint,
    'RateLimiterInfo': schema_pb2.RateLimiterInfo,
    'SequenceRange': schema_pb2.SequenceRange,
    'TableInfo': schema_pb2.TableInfo,
}
# What a running server says of a table, and a checkpoint does not have.
_OF_SERVERS = {
    'RateLimiterInfo': {'insert_stats', 'sample_stats'},
    'TableInfo': {
        'current_size',
        'num_episodes',
        'num_deleted_episodes',
        'num_unique_samples',
        'table_worker_time',
    },
}


class MessagesTest(parameterized.TestCase):

  def test_all_are_compared(self):
    file = messages.ChunkData.DESCRIPTOR.file
    self.assertCountEqual(file.message_types_by_name, _ALL)

  @parameterized.named_parameters((name, name) for name in _ALL)
  def test_fields_are_those_of_reverb(self, name):
    ours = messages.ChunkData.DESCRIPTOR.file.message_types_by_name[name]
    theirs = _ALL[name].DESCRIPTOR
    expected = {
        field.name: field
        for field in theirs.fields
        if not field.name.startswith('deprecated_')
        and field.name not in _OF_SERVERS.get(name, ())
    }
    self.assertCountEqual(ours.fields_by_name, expected)
    for field in ours.fields:
      other = expected[field.name]
      self.assertEqual(field.number, other.number)
      self.assertEqual(field.type, other.type)
      self.assertEqual(field.label, other.label)
      self.assertEqual(
          field.containing_oneof is None, other.containing_oneof is None
      )
      if field.message_type is not None:
        type_name = field.message_type.name
        self.assertEqual(
            other.message_type.full_name,
            _ALL[type_name].DESCRIPTOR.full_name
            if type_name in _ALL
            else field.message_type.full_name,
        )


if __name__ == '__main__':
  absltest.main()
