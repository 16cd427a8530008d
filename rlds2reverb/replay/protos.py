"""Reverb's protocol buffers: what its checkpoints and requests consist of.

`reverb_protos.binpb` holds the descriptors of `reverb/cc/schema.proto` and
`reverb/cc/checkpointing/checkpoint.proto` of Reverb 0.14.0 (Apache License
2.0), so that checkpoints can be written and read where Reverb is not installed.
Where it is, these are its own classes, whichever is imported first. Reverb's
package lacks the requests of its service. They are defined here, with the
encoded bytes of the messages within them: on the wire these are the same.
"""

import functools
import pathlib
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import timestamp_pb2  # pylint: disable=unused-import  # noqa: F401
from tensorflow.core.framework import tensor_pb2  # pylint: disable=unused-import  # noqa: F401
from tensorflow.core.protobuf import struct_pb2  # pylint: disable=unused-import  # noqa: F401

_SERVICE = {
    'InsertStreamRequest': {
        'chunks': 'BYTES',
        'items': 'BYTES',
        'keep_chunk_keys': 'UINT64',
    },
    'InsertStreamResponse': {'keys': 'UINT64'},
    # The number that a server draws when it starts, and its tables.
    'ServerInfoResponse': {'tables_state_id': 'BYTES', 'table_info': 'BYTES'},
    'MutatePrioritiesRequest': {'table': 'STRING', 'updates': 'BYTES'},
}
_Field = descriptor_pb2.FieldDescriptorProto


def _pool() -> descriptor_pool.DescriptorPool:
  """Returns the pool of all messages, Reverb's and those of `_SERVICE`."""
  pool = descriptor_pool.Default()
  files = descriptor_pb2.FileDescriptorSet.FromString(
      pathlib.Path(__file__).with_name('reverb_protos.binpb').read_bytes()
  )
  service = files.file.add(
      name='rlds2reverb/replay/service.proto',
      package='deepmind.reverb',
      syntax='proto3',
  )
  for name, fields in _SERVICE.items():
    message = service.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
      message.field.add(
          name=field,
          number=number,
          label=_Field.LABEL_REPEATED,
          type=_Field.Type.Value(f'TYPE_{kind}'),
      )
  for file in files.file:
    pool.AddSerializedFile(file.SerializeToString())
  return pool


_POOL = _pool()


def __getattr__(name: str) -> Any:
  """Returns the class of a message."""
  return _message_class(name)


@functools.lru_cache(maxsize=None)
def _message_class(name: str) -> Any:
  try:
    message = _POOL.FindMessageTypeByName(f'deepmind.reverb.{name}')
  except KeyError:
    raise AttributeError(f'There is no message {name}.') from None
  return message_factory.GetMessageClass(message)
