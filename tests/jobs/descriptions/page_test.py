"""Tests of the page of a description, opened in Chromium."""

import json
import os
import re
import sys
import time
from typing import Any
import unittest
from unittest import mock

from absl.testing import absltest
import numpy as np

from rlds2reverb.jobs import describing
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.jobs.descriptions import views
from tests import golden
from tests.jobs import browser
from tests.jobs.descriptions import odd_data

_in_browser = unittest.skipUnless(
    browser.find_chromium(), 'Chromium is not installed.'
)
_HOSTILE = '</script><script>window.harm=1</script><img src=x onerror=harm=1>'
_TEXTS = 'Array.from(document.querySelectorAll({!r})).map(e => e.textContent)'
# The boxes of the labels of each axis.
_LABELS = (
    'Array.from(document.querySelectorAll(".role-axis-label")).map(axis =>'
    ' Array.from(axis.querySelectorAll("text")).filter(label =>'
    ' label.textContent && getComputedStyle(label).opacity > 0).map(label =>'
    ' {const box = label.getBoundingClientRect(); return [box.left, box.right,'
    ' box.top, box.bottom];}))'
)


def _describe(episodes, name, **kwargs):
  shown = []
  for index, episode in enumerate(episodes):
    length = golden.length_of(episode)
    image = np.zeros([length, 8, 8, 3], np.uint8)
    image[..., index % 3] = 250
    wave = np.sin(np.arange(length) + index)
    observation = {
        **episode['observation'],
        'image': image,
        # The third is of the scale of the second, but far from it.
        'scales': np.stack(
            [wave, 1000 * wave, 1e5 + 900 * wave, 900 * wave], 1
        ),
        'language_instruction': np.array([f'lift {index}'] * length, 'S'),
        _HOSTILE: np.zeros(length),
    }
    shown.append({**episode, 'observation': observation})
  return describing.describe(golden.stacked(shown), name=name, **kwargs)


class PageTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    try:
      views.import_libraries()
    except ModuleNotFoundError as e:
      raise unittest.SkipTest(str(e))
    cls.description = _describe(
        [*odd_data.EPISODES, *odd_data.clean(8)], f'<odd> & {_HOSTILE}'
    )
    cls.html = views.to_html(cls.description)

  def test_needs_nothing_else(self):
    elements = re.sub(r'<script>.*?</script>', '', self.html, flags=re.DOTALL)
    urls = re.findall(r'(?:src|href)="([^"]*)"', elements)
    self.assertNotEmpty(urls)
    for url in urls:
      self.assertRegex(url, r'^data:,$|^#\d+/\d+/\d+$')
    self.assertLess(len(self.html), 5 << 20)
    # The text of the data set ends no element, and begins none.
    self.assertNotIn('<odd>', self.html)
    self.assertNotIn(_HOSTILE, self.html)
    (plain,) = re.findall(
        r'<script type="application/json"[^>]*>(.*?)</script>', self.html
    )
    self.assertEqual(
        json.loads(plain), [json.loads(self.description.to_json(frames=True))]
    )

  def test_a_package_that_is_missing(self):
    with mock.patch.dict(sys.modules, {'vl_convert': None}):
      with self.assertRaisesRegex(
          ModuleNotFoundError,
          r'^A page of a description needs vl_convert, which is not installed.'
          r" Run `pip install '\.\[page\]'` in a clone of rlds2reverb\.$",
      ):
        views.to_html(self.description)

  def _open(self, opened, html):
    path = os.path.join(self.create_tempdir().full_path, 'page.html')
    with open(path, 'w', encoding='utf-8') as f:
      f.write(html)
    opened.open(path)
    self._opened = opened
    self._wait_for('document.querySelector("#curves svg") !== null')
    self.assertEqual(opened.requests(), [f'file://{path}'])

  def _wait_for(self, condition: str, value: Any = True) -> None:
    deadline = time.monotonic() + 30
    while (found := self._opened.run(condition)) != value:
      if time.monotonic() > deadline:
        self.fail(f'{condition} is {found}, and not {value}.')
      time.sleep(0.05)

  def _texts(self, selector):
    return self._opened.run(_TEXTS.format(selector))

  def _expect(self, episode, step):
    """Waits until an episode is shown at a step."""
    excerpt = self._excerpts[episode]
    self._wait_for('location.hash', f'#0/{episode}/{step}')
    self._wait_for(
        'document.getElementById("step-number").value',
        f'step {step}' if excerpt['num_steps'] else '',
    )
    reasons = ', '.join(excerpt['reasons'])
    start = (
        f'Episode {episode}{" (" * bool(reasons)}{reasons}'
        f'{")" * bool(reasons)}, lift {episode}: '
        f'{excerpt["num_transitions"]} transitions, '
    )
    self._wait_for(
        'document.getElementById("summary").textContent.startsWith('
        f'{json.dumps(start)})'
    )

  @_in_browser
  def test_in_a_browser(self):
    self._excerpts = {one['episode']: one for one in self.description.episodes}
    with browser.Browser(1280, 900) as opened:
      self._open(opened, self.html)
      with self.subTest('tables'):
        self._check_tables()
      with self.subTest('links'):
        self._check_links()
      with self.subTest('player'):
        self._check_player()
      with self.subTest('looks'):
        self._check_looks()
      self.assertIsNone(opened.run('window.harm || null'))
      self.assertEqual(opened.errors, [])

  def _check_tables(self):
    self.assertEqual(self._texts('h1'), [self.description.source])
    self.assertEqual(
        self._texts('.counts dd'),
        [views.number(one) for one in self.description.counts.values()],
    )
    rows = views.field_rows(self.description)[1:]
    for _, part in views.statistics_rows(self.description, 64):
      rows += part
    self.assertEqual(self._texts('td'), [cell for row in rows for cell in row])

  def _check_links(self):
    # From an oddity.
    (odd,) = [
        one for one in self.description.oddities if one['kind'] == 'not_finite'
    ]
    link = f'ul.odd a[href="#0/{odd["episode"]}/{odd["step"]}"]'
    self._opened.click(link)
    self._expect(odd['episode'], odd['step'])
    # From each bar of returns, which come after the lengths.
    histogram = self.description.histograms['returns']
    for bar, count in enumerate(histogram['counts']):
      if count:
        self._opened.click(
            '#distributions figure:nth-child(2) .mark-rect'
            f' path:nth-of-type({bar + 1})'
        )
        ends = histogram['edges'][bar : bar + 2]
        episode, *_ = [
            one['episode']
            for one in self.description.episodes
            if ends[0] - 1e-6 <= one['return'] <= ends[1] + 1e-6
        ]
        self._expect(episode, 0)
    # From the ends of the range of the action, whose greatest number is first.
    (field,) = [
        one for one in self.description.fields if one['path'] == 'steps/action'
    ]
    figure = self._texts('#distributions figcaption').index('action') + 1
    for mark, end in ((1, 'min_at'), (2, 'max_at')):
      self._opened.click(
          f'#distributions figure:nth-child({figure}) .mark-symbol'
          f' path:nth-of-type({mark})'
      )
      self._expect(*field['columns'][0][end])

  def _check_player(self):
    opened = self._opened
    excerpts = self.description.episodes
    options = self._texts('#episode option')
    self.assertLen(options, len(excerpts))
    self.assertIn('highest return', options[0])
    self.assertIn(f', lift {excerpts[0]["episode"]}, ', options[0])
    longest = [one for one in excerpts if 'longest' in one['reasons']]
    self.assertIn(
        f' ({longest[0]["num_transitions"]} transitions)',
        self._texts('.ends')[-1],
    )
    opened.run(f'location.hash = "#0/{excerpts[0]["episode"]}/0"')
    self._expect(excerpts[0]['episode'], 0)
    for after in 1, 2:  # The page shows one before the next click.
      opened.click('#next')
      self._expect(excerpts[after]['episode'], 0)
    opened.click('#previous')
    self._expect(excerpts[1]['episode'], 0)
    # Columns of one scale share an axis, and have a legend.
    self._wait_for(
        'Array.from(document.querySelectorAll("#curves figcaption")).map(e =>'
        ' e.textContent).sort().join()',
        'action,observation/position,observation/scales,'
        'observation/scales[0],observation/scales[2],reward',
    )
    legends = opened.run(
        'Array.from(document.querySelectorAll("#curves figure")).map(e =>'
        ' [e.querySelector("figcaption").textContent,'
        ' Array.from(e.querySelectorAll(".role-legend-label text")).map(t =>'
        ' t.textContent).join(" ")])'
    )
    self.assertEqual(dict(legends)['observation/scales'], '[1] [3]')
    of_scales = [name for name, _ in legends if 'scales' in name]
    self.assertEqual(of_scales[0], 'observation/scales')
    self.assertEqual(dict(legends)['observation/scales[0]'], '')
    self.assertIn('observation/fixed[1] is 1.5', self._texts('#unchanged')[0])
    # The slider chooses a step, and the numbers and the frames follow.
    opened.run(
        '(() => {const s = document.getElementById("step"); s.value = "3";'
        ' s.dispatchEvent(new Event("input"));})()'
    )
    self._wait_for('document.getElementById("step-number").value', 'step 3')
    one = excerpts[1]
    numbers = [column[3] for column in one['curves']['action']]
    (values,) = [
        found for found in self._texts('.values') if found.startswith('[0]')
    ][:1]
    for number, found in zip(numbers, re.findall(r'\] ([-\d.]+)', values)):
      self.assertAlmostEqual(number, float(found), places=3)
    (frame,) = self._texts('#frames .now')
    self.assertEqual(frame, 'step 0')
    opened.click('#frames [data-step]:nth-child(2)')
    self._wait_for(
        'document.getElementById("step-number").value',
        f'step {one["frame_steps"][1]}',
    )
    # An episode that the page does not have is not replaced by another one.
    number = opened.run('document.getElementById("summary").textContent')
    opened.run('location.hash = "#0/987/5"')
    self._wait_for(
        'document.getElementById("missing").textContent',
        'This page does not show episode 987. Choose one of those above.',
    )
    self.assertEqual(self._texts('#summary'), [number])
    # One episode has no steps at all.
    opened.run(f'location.hash = "#0/{odd_data.EMPTY}/0"')
    self._wait_for('document.querySelectorAll("#curves svg").length', 0)
    self.assertEqual(self._texts('#missing'), [''])

  def _check_looks(self):
    opened = self._opened
    opened.run('location.hash = "#0/0/0"')
    self._wait_for('document.querySelectorAll("#curves svg").length', 6)
    for dark, page_colour, text_colour in (
        (False, 'rgb(255, 255, 255)', 'rgb(28, 33, 40)'),
        (True, 'rgb(20, 23, 28)', 'rgb(228, 232, 238)'),
    ):
      opened.set_dark(dark)
      self.assertEqual(
          opened.run(
              '[getComputedStyle(document.body).backgroundColor,'
              ' getComputedStyle(document.querySelector("svg text")).fill]'
          ),
          [page_colour, text_colour],
      )
    for width in (390, 1280):
      opened.set_width(width)
      self._wait_for(
          'Array.from(document.querySelectorAll("svg")).every(e =>'
          ' e.getBoundingClientRect().right <= window.innerWidth)'
      )
      self.assertLessEqual(
          opened.run('document.documentElement.scrollWidth'), width
      )
      for boxes in opened.run(_LABELS):
        for left, right in zip(boxes, boxes[1:]):
          apart = (
              left[1] <= right[0] + 0.5
              or right[1] <= left[0] + 0.5
              or left[3] <= right[2] + 0.5
              or right[3] <= left[2] + 0.5
          )
          self.assertTrue(apart, (width, left, right))

  @_in_browser
  def test_two_side_by_side(self):
    bounds = metadata.Bounds(0, 1, 'me', ['left', 'right'])
    pair = []
    for name, lengths, rewards in (
        ('before', (8, 80), np.ones),
        ('after', (201, 201), lambda length: -np.arange(length) / 8),
    ):
      episodes = [
          odd_data.make(seed, length) for seed, length in enumerate(lengths)
      ]
      for episode, length in zip(episodes, lengths):
        episode['reward'] = rewards(length).astype(np.float32)
        episode['action'] = (episode['action'][:, 0] > 0).astype(np.int64)
        episode['observation']['wide'] = np.zeros([length, 70])
        episode['observation'].pop('fixed')
      pair.append(
          _describe(episodes, name, bounds={'action': bounds}, num_excerpts=4)
      )
    with browser.Browser(1280, 900) as opened:
      self._open(opened, views.to_html(*pair))
      self.assertEqual(self._texts('h1'), ['before', 'after'])
      captions = self._texts('#distributions figcaption')
      self.assertIn('observation/wide, the first 64 of 70 numbers', captions)
      left, right = opened.run(
          'Array.from(document.querySelectorAll("h1")).map(e =>'
          ' e.getBoundingClientRect().left)'
      )
      self.assertLess(left, right)
      for name, which in (('transitions', 1), ('reward', 0)):
        self._check_constant(self._figure(captions, name), pair[which].source)
      figure = self._figure(captions, 'action')
      self.assertEqual(
          self._texts(f'{figure} .role-axis-label text')[-2:], ['left', 'right']
      )
      # The bars of the second one lead to its episodes.
      opened.click(f'{figure} .mark-rect path:nth-of-type(3)')
      shown = pair[1].episodes[0]
      row = shown['curves']['action'][0].index(0)
      place = f'#1/{shown["episode"]}/{shown["steps"][row]}'
      self._wait_for('location.hash', place)
      self.assertEqual(opened.errors, [])

  def _figure(self, captions, name):
    (index,) = [
        index
        for index, caption in enumerate(captions, 1)
        if caption.startswith(f'{name}, ')
    ]
    return f'#distributions figure:nth-child({index})'

  def _check_constant(self, figure, source):
    """Checks that all of a source are in one bar, and all bars to be seen."""
    found = self._opened.run(
        f'Array.from(document.querySelectorAll("{figure} .mark-rect path"))'
        '.map(e => {const box = e.getBoundingClientRect(); return'
        ' [e.__data__.datum.source, box.width, box.height];})'
    )
    highest = max(height for _, _, height in found)
    widths = {one: width for one, width, height in found if height == highest}
    # It is as high as the axis, and as wide as the others.
    self.assertEqual(list(widths), [source])
    (other,) = {round(width) for one, width, _ in found if one not in widths}
    self.assertAlmostEqual(widths[source], other, delta=1)
    self.assertGreater(other, 2)
    for one, width, height in found:
      self.assertTrue(width > 0.5 or not height, (one, width))


if __name__ == '__main__':
  absltest.main()
