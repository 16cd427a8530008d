"""Tests of where the episodes of a block lie, and the items that end in it."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import items
from rlds2reverb.replay import pieces

_DROP = items.TableItems('drop', windows_lib.Windows(2))
_TILE = items.TableItems('tile', windows_lib.Windows(3, 2, 'tile'))
_PAD = items.TableItems('pad', windows_lib.Windows(5, end='pad'))
_CROSS = items.TableItems('cross', windows_lib.Windows(3, 2, 'cross'))
_WHOLE = items.TableItems(
    'whole', None, max_sequence_length=4, bypass_longer_episodes=True
)


def _find(step_types, splits, tables, step=0, position=0, length=0):
  return pieces.find_pieces(
      np.array(splits),
      step,
      np.array(step_types) == 2,
      tables,
      position,
      length,
  )


def _items(table, found):
  placed = pieces.find_items(table, found)
  return [
      (start, end, start - origin, piece)
      for piece, origin, start, end in zip(
          *(column.tolist() for column in placed)
      )
  ]


class PiecesTest(parameterized.TestCase):

  def test_several_episodes_with_padding(self):
    # The second episode has no steps.
    found = _find([0, 1, 2, 2, 0, 2], [0, 3, 3, 4, 6], [_TILE, _PAD], 0, 100)
    self.assertEqual(found.index.tolist(), [0, 2, 3])
    self.assertEqual(found.begin.tolist(), [0, 3, 4])
    self.assertEqual(found.end.tolist(), [3, 4, 6])
    self.assertEqual(found.step.tolist(), [0, 0, 0])
    self.assertEqual(found.length.tolist(), [3, 1, 2])
    self.assertEqual(found.is_end.tolist(), [True] * 3)
    self.assertEqual(found.is_whole.tolist(), [True] * 3)
    # What the table asks for that asks for the most.
    self.assertEqual(found.padding.tolist(), [2, 4, 3])
    self.assertEqual(found.position.tolist(), [100, 105, 110])
    self.assertEqual(found.origin.tolist(), [100, 105, 110])
    self.assertEqual((found.first_position, found.end_position), (100, 115))
    self.assertEqual(
        found.positions_of_rows().tolist(), [100, 101, 102, 105, 110, 111]
    )
    # Start, end, frame of the episode, piece.
    self.assertEqual(
        _items(_TILE, found),
        [
            (100, 103, 0, 0),
            (102, 105, 2, 0),
            (105, 108, 0, 1),
            (110, 113, 0, 2),
        ],
    )
    self.assertEqual(
        _items(_PAD, found),
        [(100, 105, 0, 0), (105, 110, 0, 1), (110, 115, 0, 2)],
    )
    self.assertEqual(
        _items(_WHOLE, found),
        [(100, 103, 0, 0), (105, 106, 0, 1), (110, 112, 0, 2)],
    )

  def test_an_episode_in_several_blocks(self):
    first = _find([0, 1, 1], [0, 3], [_DROP], 0, 50)
    self.assertEqual(first.is_end.tolist(), [False])
    self.assertEqual(first.is_whole.tolist(), [False])
    self.assertEqual(_items(_DROP, first), [(50, 52, 0, 0), (51, 53, 1, 0)])
    self.assertEmpty(_items(_WHOLE, first))
    last = _find([1, 2], [0, 2], [_DROP], 3, 53, 3)
    self.assertEqual(last.step.tolist(), [3])
    self.assertEqual(last.length.tolist(), [5])
    self.assertEqual(last.origin.tolist(), [50])
    self.assertEqual(last.is_end.tolist(), [True])
    self.assertEqual(last.is_whole.tolist(), [False])
    self.assertEqual(_items(_DROP, last), [(52, 54, 2, 0), (53, 55, 3, 0)])
    # Five frames are more than the four that it takes.
    self.assertEmpty(_items(_WHOLE, last))

  def test_an_episode_that_ends_several_times(self):
    # And begins before the block, and goes on after it.
    found = _find([1, 2, 2, 0, 1], [0, 5], [_DROP, _WHOLE], 10, 30, 2)
    self.assertEqual(found.index.tolist(), [0, 0, 0])
    self.assertEqual(found.step.tolist(), [10, 12, 13])
    self.assertEqual(found.length.tolist(), [4, 1, 2])
    self.assertEqual(found.origin.tolist(), [28, 32, 33])
    self.assertEqual(found.is_end.tolist(), [True, True, False])
    self.assertEqual(found.is_whole.tolist(), [False] * 3)
    self.assertEqual(
        _items(_DROP, found),
        [(29, 31, 1, 0), (30, 32, 2, 0), (33, 35, 0, 2)],
    )
    self.assertEqual(_items(_WHOLE, found), [(28, 32, 0, 0), (32, 33, 0, 1)])

  def test_items_that_cross_episodes(self):
    found = _find([2, 0, 2, 0], [0, 1, 3, 4], [_CROSS], 0, 9)
    # Of the items 8-10, 10-12 and 12-14 the last one ends later.
    self.assertEqual(_items(_CROSS, found), [(8, 11, 8, 0), (10, 13, 10, 0)])


if __name__ == '__main__':
  absltest.main()
