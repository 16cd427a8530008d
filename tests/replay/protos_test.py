"""Tests of Reverb's protocol buffers when Reverb is not installed."""

import inspect
import subprocess
import sys

from absl.testing import absltest
import pytest
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2

from rlds2reverb.replay import protos

_OURS_FIRST = """
from rlds2reverb.replay import protos
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2
assert protos.PrioritizedItem is schema_pb2.PrioritizedItem
table = checkpoint_pb2.PriorityTableCheckpoint
assert protos.PriorityTableCheckpoint is table
"""


class ProtosTest(absltest.TestCase):

  def test_messages_are_those_of_reverb(self):
    found = 0
    for module in (schema_pb2, checkpoint_pb2):
      for name, kind in vars(module).items():
        if hasattr(protos, name) and inspect.isclass(kind):
          self.assertIs(getattr(protos, name), kind)
          found += 1
    self.assertEqual(found, 16)

  @pytest.mark.long
  def test_import_order_does_not_matter(self):
    subprocess.run([sys.executable, '-c', _OURS_FIRST], check=True)


if __name__ == '__main__':
  absltest.main()
