"""The protocol buffers of Reverb's checkpoints and requests.

`reverb_protos.binpb` holds the descriptors of `reverb/cc/schema.proto` and
`reverb/cc/checkpointing/checkpoint.proto` of Reverb 0.14.0 (Apache License
2.0), so that checkpoints can be written and read without Reverb. If Reverb is
installed, these are its own classes, in any order of imports. The file also
declares the requests of Reverb's service, which its package omits. Their nested
messages are declared as `bytes`, which have the same wire format.

    message InsertStreamRequest {
      repeated bytes chunks = 1;
      repeated bytes items = 2;
      repeated uint64 keep_chunk_keys = 3;
    }
    message InsertStreamResponse { repeated uint64 keys = 1; }
    message ServerInfoResponse {
      repeated bytes tables_state_id = 1;  // Drawn when the server starts.
      repeated bytes table_info = 2;
    }
    message MutatePrioritiesRequest {
      repeated string table = 1;
      repeated bytes updates = 2;
    }
"""

import functools
import pathlib
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory
from google.protobuf import timestamp_pb2  # noqa: F401
from tensorflow.core.framework import tensor_pb2  # noqa: F401
from tensorflow.core.protobuf import struct_pb2  # noqa: F401

_POOL = descriptor_pool.Default()
_PATH = pathlib.Path(__file__).with_name('reverb_protos.binpb')

for file in descriptor_pb2.FileDescriptorSet.FromString(
    _PATH.read_bytes()
).file:
  _POOL.AddSerializedFile(file.SerializeToString())


def __getattr__(name: str) -> Any:
  """Returns the class of a message."""
  return _message_class(name)


@functools.cache
def _message_class(name: str) -> Any:
  try:
    message = _POOL.FindMessageTypeByName(f'deepmind.reverb.{name}')
  except KeyError:
    raise AttributeError(f'There is no message {name}.') from None
  return message_factory.GetMessageClass(message)
