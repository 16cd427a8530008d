"""Tests of the chunks that items refer to."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.replay import chunks
from rlds2reverb.replay import kept_chunks


class KeptChunksTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 3, 5)
  def test_random_items(self, chunk_length):
    rng = np.random.default_rng(chunk_length)
    kept = kept_chunks.KeptChunks(chunks.ColumnGroup((0,), chunk_length))
    place = {}  # the chunk and row of each frame
    end = 0
    needed = 0
    for _ in range(30):
      piece = int(rng.integers(0, 12))
      begins = np.arange(0, piece, chunk_length)
      keys = rng.integers(0, 2**63, len(begins)).astype(np.uint64)
      for row in range(piece):
        chunk, offset = divmod(row, chunk_length)
        place[end + row] = keys[chunk], offset
      kept.append(keys, end + begins, end + piece)
      end += piece
      self.assertEqual(
          kept.keys.tolist(),
          list(dict.fromkeys(place[frame][0] for frame in range(needed, end)))
          if needed < end
          else [],
      )
      if end - needed < 2:
        continue
      starts = rng.integers(needed, end, 7)
      ends = np.minimum(starts + rng.integers(1, 20, 7), end)
      first, count = kept.spans(starts, ends)
      for each in np.unique(count):
        chosen = np.flatnonzero(count == each)
        slices = kept.slices(first[chosen], each, starts[chosen], ends[chosen])
        for item, rows in zip(chosen, zip(*slices[1:])):
          found = [
              (kept.keys[chunk], row)
              for chunk, offset, length in zip(*rows)
              for row in range(offset, offset + length)
          ]
          self.assertEqual(
              found, [place[frame] for frame in range(starts[item], ends[item])]
          )
      needed = int(rng.integers(needed, end + 1))
      # The chunk that holds the frame stays whole.
      while 0 < needed < end and place[needed][1]:
        needed -= 1
      kept.forget(needed)


if __name__ == '__main__':
  absltest.main()
