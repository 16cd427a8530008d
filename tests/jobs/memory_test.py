"""Tests of limits of memory, as files of Linux say them."""

import resource
from unittest import mock

from absl.testing import absltest

from rlds2reverb.jobs import memory

_GROUPS = '/proc/self/cgroup'
_ROOT = '/sys/fs/cgroup'


class MemoryTest(absltest.TestCase):

  def _check(self, addresses, files, limit):
    with mock.patch.object(
        memory, '_read', lambda path: files.get(path, '')
    ), mock.patch.object(resource, 'getrlimit', lambda _: (addresses, -1)):
      self.assertEqual(memory.limit(), limit)
      memory.check()

  def test_the_least_limit_counts(self):
    none = resource.RLIM_INFINITY
    self._check(none, {}, 0)
    self._check(3 * 10**9, {}, 3 * 10**9)
    # A container, and a service of systemd.
    self._check(none, {f'{_ROOT}/memory.max': '700000000\n'}, 700_000_000)
    service = {
        _GROUPS: '0::/system.slice/job.service\n',
        f'{_ROOT}/memory.max': 'max\n',
        f'{_ROOT}/system.slice/job.service/memory.max': '800000000\n',
    }
    self._check(none, service, 800_000_000)
    self._check(4 * 10**9, service, 800_000_000)
    # Version 1, where the greatest number stands for no limit.
    old = {
        _GROUPS: '5:cpu:/a\n4:memory:/job\n0::/\n',
        f'{_ROOT}/memory/memory.limit_in_bytes': f'{(1 << 63) - 4096}\n',
        f'{_ROOT}/memory/job/memory.limit_in_bytes': '900000000\n',
    }
    self._check(none, old, 900_000_000)

  def test_too_little_to_start(self):
    files = {f'{_ROOT}/memory.max': '300000000\n'}
    with self.assertRaisesRegex(
        OSError, r'memory is limited to 300 MB \(a control group\), and Ten'
    ):
      self._check(resource.RLIM_INFINITY, files, 300_000_000)
    with self.assertRaisesRegex(
        OSError, r'address space is limited to 2,400 MB \(ulimit -v\), and'
    ):
      self._check(24 * 10**8, {}, 24 * 10**8)


if __name__ == '__main__':
  absltest.main()
