"""Tests of Reverb's protocol buffers, as they are without Reverb."""

import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

_PROGRAM = """
{imports}
import inspect
for module in (schema_pb2, checkpoint_pb2):
  for name, kind in vars(module).items():
    if hasattr(protos, name) and inspect.isclass(kind):
      assert getattr(protos, name) is kind, name
      print(name)
"""
_OURS = 'from rlds2reverb.replay import protos'
_REVERB = """from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2"""


class ProtosTest(parameterized.TestCase):

  @parameterized.parameters(f'{_OURS}\n{_REVERB}', f'{_REVERB}\n{_OURS}')
  def test_are_those_of_reverb(self, imports):
    program = _PROGRAM.format(imports=imports)
    output = subprocess.check_output([sys.executable, '-c', program])
    self.assertLen(output.split(), 16)


if __name__ == '__main__':
  absltest.main()
