"""Tests of limits of memory."""

import resource
from unittest import mock

from absl.testing import absltest

from rlds2reverb.jobs import memory

_NONE = resource.RLIM_INFINITY


class MemoryTest(absltest.TestCase):

  def test_the_least_limit_counts(self):
    for addresses, container, limit, message in (
        (_NONE, 'max', 0, ''),
        (3 * 10**9, 'max', 3 * 10**9, ''),
        (_NONE, '700000000\n', 700_000_000, ''),
        (4 * 10**9, '700000000\n', 700_000_000, ''),
        (
            _NONE,
            '300000000\n',
            300_000_000,
            r'memory is limited to 300 MB \(a control group\), and TensorFlow',
        ),
        (
            24 * 10**8,
            'max',
            24 * 10**8,
            r'address space is limited to 2,400 MB \(ulimit -v\), and',
        ),
    ):
      path = self.create_tempfile(content=container).full_path
      with mock.patch.object(memory, '_CONTAINER', path), mock.patch.object(
          resource, 'getrlimit', lambda _, found=addresses: (found, -1)
      ):
        self.assertEqual(
            min((n for n, _ in memory.limits().values()), default=0), limit
        )
        if not message:
          memory.check()
          continue
        with self.assertRaisesRegex(OSError, message):
          memory.check()


if __name__ == '__main__':
  absltest.main()
