"""Reverb's protocol buffers: what its checkpoints and requests consist of.

`reverb_protos.binpb` holds the descriptors of `reverb/cc/schema.proto` and
`reverb/cc/checkpointing/checkpoint.proto` of Reverb 0.14.0 (Apache License
2.0), so that checkpoints can be written and read where Reverb is not installed.
Where it is, these are its own classes, whichever is imported first.
"""

import pathlib

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import timestamp_pb2  # pylint: disable=unused-import  # noqa: F401
from tensorflow.core.framework import tensor_pb2  # pylint: disable=unused-import  # noqa: F401
from tensorflow.core.protobuf import struct_pb2  # pylint: disable=unused-import  # noqa: F401

_POOL = descriptor_pool.Default()
for _file in descriptor_pb2.FileDescriptorSet.FromString(
    pathlib.Path(__file__).with_name('reverb_protos.binpb').read_bytes()
).file:
  _POOL.AddSerializedFile(_file.SerializeToString())


def _message(name: str):
  return message_factory.GetMessageClass(
      _POOL.FindMessageTypeByName(f'deepmind.reverb.{name}')
  )


ChunkData = _message('ChunkData')
KeyDistributionOptions = _message('KeyDistributionOptions')
PrioritizedItem = _message('PrioritizedItem')
PriorityTableCheckpoint = _message('PriorityTableCheckpoint')
RateLimiterCheckpoint = _message('RateLimiterCheckpoint')
RateLimiterInfo = _message('RateLimiterInfo')
TableInfo = _message('TableInfo')
