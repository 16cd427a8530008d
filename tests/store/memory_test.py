"""Memory in large pages."""

import mmap

from absl.testing import absltest
import numpy as np

from rlds2reverb.store import memory


class MemoryTest(absltest.TestCase):

  def test_arrays(self):
    for shape, dtype in (
        ([2**20, 2], np.float64),
        ([3, 0, 2], np.int64),
        ([7], np.uint8),
        ([], np.int32),
    ):
      array = memory.zeros(shape, dtype)
      self.assertEqual((array.shape, array.dtype), (tuple(shape), dtype))
      self.assertFalse(array.any())
      array += 1
      self.assertTrue((array == 1).all())
      if array.size:
        self.assertEqual(array.ctypes.data % mmap.PAGESIZE, 0)

  def test_memory_that_grows_keeps_its_content(self):
    grown = memory.allocate(1000)
    for size in 1000, 2**22, 2**23 + 5:
      begin = len(grown) if len(grown) > 1000 else 0
      grown.resize(size)
      grown[begin:] = bytes(range(256)) * ((size - begin) // 256) + bytes(
          (size - begin) % 256
      )
      memory.collapse(grown)
    first = np.frombuffer(grown, np.uint8, 2**22)
    np.testing.assert_array_equal(first, np.arange(2**22) % 256)


if __name__ == '__main__':
  absltest.main()
