"""Tests of limits of memory."""

import resource
from unittest import mock

from absl.testing import absltest

from rlds2reverb.jobs import memory

_NONE = resource.RLIM_INFINITY


class MemoryTest(absltest.TestCase):

  def test_what_is_limited(self):
    addresses = r'address space is limited to 2,400 MB \(ulimit -v\), and Ten'
    memory_ = r'memory is limited to 300 MB \(a control group\), and TensorFlow'
    for found, container, limits, message in (
        (_NONE, 'max', [], ''),
        (3 * 10**9, 'max', [3 * 10**9], ''),
        (_NONE, '700000000\n', [700_000_000], ''),
        (4 * 10**9, '700000000\n', [4 * 10**9, 700_000_000], ''),
        (_NONE, '300000000\n', [300_000_000], memory_),
        (24 * 10**8, 'max', [24 * 10**8], addresses),
    ):
      path = self.create_tempfile(content=container).full_path
      with mock.patch.object(memory, '_CONTAINER', path), mock.patch.object(
          resource, 'getrlimit', return_value=(found, -1)
      ):
        self.assertEqual([n for n, _ in memory.limits().values()], limits)
        if not message:
          memory.check()
          continue
        with self.assertRaisesRegex(OSError, message):
          memory.check()


if __name__ == '__main__':
  absltest.main()
