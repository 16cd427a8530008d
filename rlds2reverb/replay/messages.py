"""Reverb's protocol buffers: what its checkpoints and requests consist of.

The classes read and write the bytes of the messages of the same names of
Reverb 0.14.0, in `reverb/cc/schema.proto` and
`reverb/cc/checkpointing/checkpoint.proto`. They are defined here so that a
checkpoint can be written and read where Reverb is not installed. Fields that
Reverb no longer uses are left out, and kept as unknown fields.
"""

from typing import Any, Dict, Tuple

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import timestamp_pb2
from tensorflow.core.framework import tensor_pb2
from tensorflow.core.protobuf import struct_pb2

_PACKAGE = 'rlds2reverb'
_FILE = 'rlds2reverb/replay/messages.proto'

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    'bool': _Field.TYPE_BOOL,
    'double': _Field.TYPE_DOUBLE,
    'int32': _Field.TYPE_INT32,
    'int64': _Field.TYPE_INT64,
    'string': _Field.TYPE_STRING,
    'uint64': _Field.TYPE_UINT64,
}
_TENSOR = tensor_pb2.TensorProto.DESCRIPTOR.full_name
_STRUCTURE = struct_pb2.StructuredValue.DESCRIPTOR.full_name
_TIMESTAMP = timestamp_pb2.Timestamp.DESCRIPTOR.full_name

# The fields of each message, by name: their types, and their numbers. A message
# within a message has the name of both.
_FIELDS: Dict[str, Dict[str, Tuple[str, int]]] = {
    'SequenceRange': {
        'episode_id': ('uint64', 1),
        'start': ('int32', 2),
        'end': ('int32', 3),
        'sparse': ('bool', 4),
    },
    'ChunkTensors': {'tensors': (f'repeated {_TENSOR}', 1)},
    'ChunkData': {
        'chunk_key': ('uint64', 1),
        'sequence_range': ('SequenceRange', 2),
        'delta_encoded': ('bool', 4),
        'data': ('ChunkTensors', 5),
        'data_tensors_len': ('int32', 6),
        'data_uncompressed_size': ('int64', 7),
    },
    'ChunkSlice': {
        'chunk_key': ('uint64', 1),
        'offset': ('int32', 2),
        'length': ('int32', 3),
        'index': ('int32', 4),
    },
    'Column': {
        'chunk_slices': ('repeated ChunkSlice', 1),
        'squeeze': ('bool', 2),
    },
    'FlatTrajectory': {'columns': ('repeated Column', 1)},
    'PrioritizedItem': {
        'key': ('uint64', 1),
        'table': ('string', 2),
        'priority': ('double', 5),
        'times_sampled': ('int32', 6),
        'inserted_at': (_TIMESTAMP, 7),
        'flat_trajectory': ('FlatTrajectory', 8),
    },
    'PrioritizedOptions': {'priority_exponent': ('double', 1)},
    'HeapOptions': {'min_heap': ('bool', 1)},
    'KeyDistributionOptions': {
        'fifo': ('bool', 1),
        'uniform': ('bool', 2),
        'prioritized': ('PrioritizedOptions', 3),
        'heap': ('HeapOptions', 4),
        'lifo': ('bool', 6),
        'is_deterministic': ('bool', 7),
    },
    'RateLimiterInfo': {
        'samples_per_insert': ('double', 1),
        'min_diff': ('double', 2),
        'max_diff': ('double', 3),
        'min_size_to_sample': ('int64', 4),
    },
    'TableInfo': {
        'sampler_options': ('KeyDistributionOptions', 1),
        'remover_options': ('KeyDistributionOptions', 2),
        'max_size': ('int64', 3),
        'max_times_sampled': ('int32', 4),
        'rate_limiter_info': ('RateLimiterInfo', 5),
        'signature': (_STRUCTURE, 6),
        'name': ('string', 8),
    },
    'RateLimiterCheckpoint': {
        'samples_per_insert': ('double', 2),
        'min_diff': ('double', 3),
        'max_diff': ('double', 4),
        'min_size_to_sample': ('int64', 5),
        'sample_count': ('int64', 6),
        'insert_count': ('int64', 7),
        'delete_count': ('int64', 8),
    },
    'PriorityTableCheckpoint': {
        'table_name': ('string', 1),
        'rate_limiter': ('RateLimiterCheckpoint', 3),
        'sampler': ('KeyDistributionOptions', 4),
        'remover': ('KeyDistributionOptions', 5),
        'max_size': ('int64', 6),
        'max_times_sampled': ('int32', 7),
        'num_deleted_episodes': ('int64', 8),
        'signature': (_STRUCTURE, 9),
        'num_unique_samples': ('int64', 10),
    },
}
# Fields that are written even if they have their default value.
_DISTRIBUTIONS = ('fifo', 'uniform', 'prioritized', 'heap', 'lifo')


def _define_file() -> descriptor_pb2.FileDescriptorProto:
  """Returns the definition of the messages."""
  file = descriptor_pb2.FileDescriptorProto(
      name=_FILE,
      package=_PACKAGE,
      syntax='proto3',
      dependency=[
          module.DESCRIPTOR.name
          for module in (timestamp_pb2, tensor_pb2, struct_pb2)
      ],
  )
  for name, fields in _FIELDS.items():
    message = file.message_type.add(name=name)
    for field_name, (type_name, number) in fields.items():
      repeated, _, type_name = type_name.rpartition(' ')
      field = message.field.add(
          name=field_name,
          number=number,
          label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
          type=_SCALARS.get(type_name, _Field.TYPE_MESSAGE),
      )
      if type_name in _FIELDS:
        field.type_name = f'.{_PACKAGE}.{type_name}'
      elif type_name not in _SCALARS:
        field.type_name = f'.{type_name}'
      if name == 'KeyDistributionOptions' and field_name in _DISTRIBUTIONS:
        if not message.oneof_decl:
          message.oneof_decl.add(name='distribution')
        field.oneof_index = 0
  return file


def _message(name: str) -> Any:
  return message_factory.GetMessageClass(
      _POOL.FindMessageTypeByName(f'{_PACKAGE}.{name}')
  )


_POOL = descriptor_pool.Default()
_POOL.Add(_define_file())

ChunkData = _message('ChunkData')
ChunkSlice = _message('ChunkSlice')
Column = _message('Column')
FlatTrajectory = _message('FlatTrajectory')
KeyDistributionOptions = _message('KeyDistributionOptions')
PrioritizedItem = _message('PrioritizedItem')
PriorityTableCheckpoint = _message('PriorityTableCheckpoint')
RateLimiterInfo = _message('RateLimiterInfo')
RateLimiterCheckpoint = _message('RateLimiterCheckpoint')
SequenceRange = _message('SequenceRange')
TableInfo = _message('TableInfo')
