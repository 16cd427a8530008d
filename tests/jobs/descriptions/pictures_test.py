"""Tests of the pictures of a description."""

import re
import xml.etree.ElementTree

from absl.testing import absltest

from rlds2reverb.jobs.descriptions import pictures

_HISTOGRAM = {'edges': [0.0, 1.0, 2.0, 3.0], 'counts': [4, 0, 7]}
_BINS = [
    {'first': 0, 'count': 2, 'mean': 1.5, 'min': 1.0, 'max': 2.0},
    {'first': 2, 'count': 1, 'mean': 9.0, 'min': 9.0, 'max': 9.0},
]
_COLUMN = {
    'min': -1.0,
    'max': 2.0,
    'quantiles': {'0.05': 0.0, '0.5': 0.5, '0.95': 1.0},
}
# A column without any finite number.
_NOTHING = {
    'min': None,
    'max': None,
    'quantiles': {'0.05': None, '0.5': None, '0.95': None},
}


class PicturesTest(absltest.TestCase):

  def test_every_picture(self):
    drawn = {
        'histogram': pictures.histogram(_HISTOGRAM, 'one'),
        'no numbers': pictures.histogram({'edges': [], 'counts': []}, 'two'),
        'order': pictures.order(_BINS, 'three'),
        'no episodes': pictures.order([], 'four'),
        'ranges': pictures.ranges([_COLUMN, _NOTHING, _COLUMN], 'five'),
    }
    ids = []
    for name, svg in drawn.items():
      with self.subTest(name):
        root = xml.etree.ElementTree.fromstring(svg)
        # The page says how large it is, and in which colours.
        self.assertIn('viewBox', root.attrib)
        self.assertNotIn('width', root.attrib)
        self.assertIn('var(--text)', svg)
        self.assertNotRegex(svg, '#[0-9a-f]{6}')
        ids += re.findall(r'\bid="([^"]*)"', svg)
        for used in re.findall(r'(?:href="#|url\(#)([^")]*)', svg):
          self.assertIn(f'id="{used}"', svg)
    self.assertLen(set(ids), len(ids))
    self.assertIn('var(--mark)', drawn['histogram'])
    self.assertNotIn('var(--mark)', drawn['no numbers'])
    self.assertIn('var(--strong)', drawn['order'])

  def test_the_same_numbers_make_the_same_picture(self):
    self.assertEqual(
        pictures.ranges([_COLUMN], 'a'), pictures.ranges([_COLUMN], 'a')
    )


if __name__ == '__main__':
  absltest.main()
