"""Tests of the page of a description, opened in Chromium."""

import json
import re
import sys
import unittest
from unittest import mock

from absl.testing import absltest
import numpy as np
import pytest

from rlds2reverb.jobs import describing
from rlds2reverb.jobs.descriptions import reading
from rlds2reverb.jobs.descriptions import views
from tests import golden
from tests.jobs.descriptions import browser
from tests.jobs.descriptions import odd_data

_in_browser = unittest.skipUnless(
    browser.find_chromium(), 'Chromium is not installed.'
)
_HOSTILE = '</script><script>window.harm=1</script><img src=x onerror=harm=1>'
# How wide the page is, and where the rightmost plot ends.
_LOOKS = """{
  colours: [getComputedStyle(document.body).backgroundColor,
            getComputedStyle(all('svg text')[0]).fill],
  right: Math.max(...all('svg').map(one => one.getBoundingClientRect().right)),
  width: document.documentElement.scrollWidth,
}"""
# Performs a list of actions, and records the page after each action.
_DO = """
  const states = [];
  for (const [kind, at] of %s) {
    if (kind === 'click') click(at);
    if (kind === 'go') location.hash = at;
    if (kind === 'slide') {
      all('#step')[0].value = at;
      all('#step')[0].dispatchEvent(new Event('input'));
    }
    await wait();
    states.push({
      place: location.hash, step: all('#step-number')[0].value,
      summary: texts('#summary')[0], missing: texts('#missing')[0],
      unchanged: texts('#unchanged')[0], values: texts('.values'),
      now: texts('#frames .now'),
      curves: all('#curves figure').map(one => [
        ...texts('figcaption', one),
        texts('.role-legend-label text', one).join(' ')]),
    });
  }
  return {
    states, heads: texts('h1'), counts: texts('.counts dd'),
    cells: texts('td'), options: texts('#episode option'), ends: texts('.ends'),
    harm: window.harm || null, looks: %s,
  };
"""
# The plots of two: their bars, and the labels of their axes.
_TWO = """
  const size = one => one.getBoundingClientRect();
  const figures = all('#distributions figure');
  const found = {
    heads: texts('h1'), lefts: all('h1').map(one => size(one).left),
    figures: figures.map(one => [
      ...texts('figcaption', one),
      all('.mark-rect path', one).map(bar => [
        bar.__data__.datum.source, size(bar).width, size(bar).height]),
      texts('.role-axis-label text', one),
    ]),
  };
  figures.find(one => one.textContent.startsWith('action, ')).id = 'action';
  click('#action .mark-rect path:nth-of-type(3)');
  await wait();
  return {...found, place: location.hash};
"""


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
      views.import_page_libraries()
    except ModuleNotFoundError as e:
      raise unittest.SkipTest(str(e)) from e
    cls.description = _describe(
        [*odd_data.EPISODES, *odd_data.clean(8)], f'<odd> & {_HOSTILE}'
    )
    cls.html = views.to_html(cls.description)

  def test_page_is_self_contained(self):
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

  @_in_browser
  @pytest.mark.long
  def test_in_a_browser(self):
    excerpts = self.description.episodes
    by_number = {excerpt['episode']: excerpt for excerpt in excerpts}
    first, second, third, *_ = (excerpt['episode'] for excerpt in excerpts)
    frame_step = excerpts[1]['frame_steps'][1]
    # An action, and the episode and the step that the page shows after it.
    actions = [
        *self._links(),
        ('go', f'#0/{first}/0', first, 0),
        ('click', '#next', second, 0),
        ('click', '#next', third, 0),
        ('click', '#previous', second, 0),
        ('slide', '3', second, 3),
        ('click', '#frames [data-step]:nth-child(2)', second, frame_step),
        ('go', '#0/987/5', second, frame_step),
        ('go', f'#0/{odd_data.EMPTY}/0', odd_data.EMPTY, 0),
    ]
    actual = browser.run(self.html, _DO % (json.dumps(actions), _LOOKS))
    for (kind, at, episode, step), state in zip(actions, actual['states']):
      with self.subTest(f'{kind} {at}'):
        excerpt = by_number[episode]
        has_steps = excerpt['num_steps'] > 0
        reasons = ', '.join(excerpt['reasons'])
        words = f', lift {episode}' if has_steps else ''
        self.assertStartsWith(
            state['summary'],
            f'Episode {episode}{f" ({reasons})" if reasons else ""}{words}: '
            f'{excerpt["num_transitions"]} transitions, ',
        )
        self.assertEqual(state['step'], f'step {step}' if has_steps else '')
        if kind == 'click' and 'data-step' not in at:
          self.assertEqual(state['place'], f'#0/{episode}/{step}')
    with self.subTest('tables'):
      self._check_tables(actual)
    with self.subTest('player'):
      self._check_player(actual, actual['states'])
    self.assertIsNone(actual['harm'])
    with self.subTest('looks'):
      self._check_looks(actual['looks'], 1280, 'rgb(255, 255, 255)')
      narrow = browser.run(self.html, f'return {_LOOKS};', 500, is_dark=True)
      self._check_looks(narrow, 500, 'rgb(20, 23, 28)')

  def _links(self):
    """Returns what may be clicked on, as in `actions`."""
    (odd,) = [
        oddity
        for oddity in self.description.oddities
        if oddity['kind'] == 'not_finite'
    ]
    link = f'ul.odd a[href="#0/{odd["episode"]}/{odd["step"]}"]'
    actions = [('click', link, odd['episode'], odd['step'])]
    # Each bar of returns, which come after the lengths.
    histogram = self.description.histograms['returns']
    for bar, count in enumerate(histogram['counts']):
      if count:
        low, high = histogram['edges'][bar : bar + 2]
        episode, *_ = [
            episode['episode']
            for episode in self.description.episodes
            if low - 1e-6 <= episode['return'] <= high + 1e-6
        ]
        figure = '#distributions figure:nth-child(2) .mark-rect'
        path = f'{figure} path:nth-of-type({bar + 1})'
        actions.append(('click', path, episode, 0))
    # The ends of the range of the action, whose greatest number is first.
    (field,) = [
        field
        for field in self.description.fields
        if field['path'] == 'steps/action'
    ]
    paths = [
        field['path']
        for field in self.description.fields
        if len(field['columns']) > 1
    ]
    figure = len(self.description.histograms) + 2 + paths.index('steps/action')
    for mark, end in ((1, 'min_at'), (2, 'max_at')):
      marks = f'#distributions figure:nth-child({figure}) .mark-symbol'
      path = f'{marks} path:nth-of-type({mark})'
      actions.append(('click', path, *field['columns'][0][end]))
    return actions

  def _check_tables(self, actual):
    self.assertEqual(actual['heads'], [self.description.source])
    self.assertEqual(
        actual['counts'],
        [views.number(one) for one in self.description.counts.values()],
    )
    rows = views.field_rows(self.description)[1:]
    for _, part in views.statistics_rows(self.description, 64):
      rows += part
    self.assertEqual(actual['cells'], [cell for row in rows for cell in row])

  def _check_player(self, actual, states):
    excerpts = self.description.episodes
    self.assertLen(actual['options'], len(excerpts))
    self.assertIn('highest return', actual['options'][0])
    self.assertIn(f', lift {excerpts[0]["episode"]}, ', actual['options'][0])
    longest = [
        excerpt for excerpt in excerpts if 'longest' in excerpt['reasons']
    ]
    self.assertIn(
        f' ({longest[0]["num_transitions"]} transitions)', actual['ends'][-1]
    )
    before, slid, _, missing, empty = states[-5:]
    # Columns of one scale share an axis, and have a legend.
    self.assertEqual(
        dict(before['curves']),
        {
            'action': '[0] [1]',
            'observation/position': '[0] [1] [2]',
            'observation/scales': '[1] [3]',
            'observation/scales[0]': '',
            'observation/scales[2]': '',
            'reward': '',
        },
    )
    self.assertIn('observation/fixed[1] is 1.5', before['unchanged'])
    # The numbers and the frames follow the step.
    numbers = [column[3] for column in excerpts[1]['curves']['action']]
    values, *_ = [one for one in slid['values'] if one.startswith('[0]')]
    shown = [float(one) for one in re.findall(r'\] ([-\d.]+)', values)]
    np.testing.assert_allclose(shown, numbers, atol=1e-3)
    self.assertEqual(slid['now'], ['step 0'])
    # An episode that the page does not have is not replaced by another one.
    self.assertEqual(
        missing['missing'],
        'This page does not show episode 987. Choose one of those above.',
    )
    # One episode has no steps at all.
    self.assertEqual((empty['missing'], empty['curves']), ('', []))

  def _check_looks(self, looks, width, page_colour):
    is_dark = page_colour != 'rgb(255, 255, 255)'
    text = 'rgb(228, 232, 238)' if is_dark else 'rgb(28, 33, 40)'
    self.assertEqual(looks['colours'], [page_colour, text])
    self.assertLessEqual(max(looks['right'], looks['width']), width)

  @pytest.mark.long
  @_in_browser
  def test_two_descriptions_side_by_side(self):
    bounds = reading.Bounds(0, 1, 'me', ['left', 'right'])
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
    actual = browser.run(views.to_html(*pair), _TWO)
    self.assertEqual(actual['heads'], ['before', 'after'])
    self.assertLess(*actual['lefts'])
    captions = [caption for caption, *_ in actual['figures']]
    self.assertIn('observation/wide, the first 64 of 70 numbers', captions)
    figures = {
        caption.partition(',')[0]: rest for caption, *rest in actual['figures']
    }
    for name, which in (('transitions', 1), ('reward', 0)):
      self._check_constant(figures[name][0], pair[which].source)
    self.assertEqual(figures['action'][1][-2:], ['left', 'right'])
    # The bars of the second one lead to its episodes.
    shown = pair[1].episodes[0]
    row = shown['curves']['action'][0].index(0)
    place = f'#1/{shown["episode"]}/{shown["steps"][row]}'
    self.assertEqual(actual['place'], place)

  def _check_constant(self, bars, source):
    """Checks that all of a source are in one bar, and all bars to be seen."""
    highest = max(height for _, _, height in bars)
    widths = {one: width for one, width, height in bars if height == highest}
    # It is as high as the axis, and as wide as the others.
    self.assertEqual(list(widths), [source])
    (other,) = {round(width) for one, width, _ in bars if one not in widths}
    self.assertAlmostEqual(widths[source], other, delta=1)
    self.assertGreater(other, 2)
    for one, width, height in bars:
      self.assertTrue(width > 0.5 or not height, (one, width))


if __name__ == '__main__':
  absltest.main()
