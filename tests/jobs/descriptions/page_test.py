"""Tests of the page of a description, opened in Chromium."""

import json
import os
import re
import unittest

from absl.testing import absltest
import numpy as np

from rlds2reverb.jobs import describe
from rlds2reverb.jobs.descriptions import page
from rlds2reverb.jobs.descriptions import text
from tests import golden
from tests.jobs import browser
from tests.jobs.descriptions import odd_data

# What the page shows, and where its JSON is said to have it.
_SHOWN = (
    'Array.from(document.querySelectorAll("[data-path]"))'
    '.map(one => [JSON.parse(one.dataset.path), one.textContent])'
)


def _make_description():
  episodes = []
  for index, episode in enumerate([*odd_data.EPISODES, *odd_data.clean(8)]):
    image = np.zeros([golden.length_of(episode), 8, 8, 3], np.uint8)
    image[..., index % 3] = 250
    observation = {**episode['observation'], 'image': image}
    episodes.append({**episode, 'observation': observation})
  return describe.describe_episodes(
      golden.stacked(episodes), name='<odd> & "quoted"', num_excerpts=30
  )


def _look_up(value, path):
  for key in path:
    value = value[key]
  return value


class PageTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.description = _make_description()
    cls.html = page.to_html(cls.description)
    cls.plain = json.loads(cls.description.to_json())

  def test_needs_nothing_else(self):
    urls = re.findall(r'(?:src|href)="([^"#]*)"', self.html)
    self.assertNotEmpty(urls)
    for url in urls:
      self.assertStartsWith(url, 'data:')
    self.assertNotRegex(self.html, r'@import|url\((?!#)')
    self.assertNotIn('<odd>', self.html)
    ids = re.findall(r'\bid="([^"]*)"', self.html)
    self.assertLen(set(ids), len(ids))

  @unittest.skipUnless(browser.find_chromium(), 'Chromium is not installed.')
  def test_in_a_browser(self):
    path = os.path.join(self.create_tempdir().full_path, 'page.html')
    with open(path, 'w', encoding='utf-8') as f:
      f.write(self.html)
    with browser.Browser() as opened:
      opened.open(path)
      self.assertEqual(opened.requests(), [f'file://{path}'])
      self._check_numbers(opened)
      self._check_browsing(opened)
      self._check_looks(opened)
      self.assertEqual(opened.errors, [])

  def _check_numbers(self, opened):
    """Checks that every number is the one that the JSON has at its path."""
    shown = opened.run(_SHOWN)
    self.assertGreater(len(shown), 200)
    for path, found in shown:
      value = _look_up(self.plain, path)
      self.assertEqual(
          found, value if isinstance(value, str) else text.number(value), path
      )
    # Cells of tables have no other numbers than these, and shapes and indices.
    others = opened.run(
        'Array.from(document.querySelectorAll("td, dd")).filter(one =>'
        ' !one.querySelector("[data-path]")).map(one => one.textContent)'
    )
    for cell in others:
      self.assertNotRegex(
          re.sub(r'\[\d+\]|\([\d, ]*\)|[a-z]+\d+', '', cell), r'\d'
      )
    # The data of the browser is the JSON, and the frames.
    embedded = json.loads(
        opened.run('document.getElementById("description").textContent')
    )
    for episode in embedded['episodes']:
      del episode['frames']
    self.assertEqual(embedded, self.plain)

  def _check_browsing(self, opened):
    episodes = self.plain['episodes']
    options = opened.run(
        'Array.from(document.querySelectorAll("#episode option"))'
        '.map(one => one.textContent)'
    )
    self.assertEqual(
        options,
        [
            f'Episode {one["episode"]}, return {text.number(one["return"])}'
            for one in episodes
        ],
    )

    def summary():
      return opened.run(
          'document.getElementById("episode-summary").textContent'
      )

    def expected(index):
      episode = episodes[index]
      end = 'terminal' if episode['is_terminal'] else 'truncated'
      return (
          f'Episode {episode["episode"]}: {episode["num_steps"]} steps, return'
          f' {text.number(episode["return"])}, {end}'
      )

    self.assertEqual(summary(), expected(0))
    opened.click('#next')
    opened.click('#next')
    self.assertEqual(summary(), expected(2))
    opened.click('#previous')
    self.assertEqual(summary(), expected(1))
    # Every episode has its curves, and its frame; one has no steps at all.
    for index, episode in enumerate(episodes):
      opened.run(
          f'(() => {{const s = document.getElementById("episode"); s.value ='
          f' "{index}"; s.dispatchEvent(new Event("change"));}})()'
      )
      self.assertEqual(summary(), expected(index))
      drawn = opened.run(
          'Array.from(document.querySelectorAll("#curves figure"))'
          '.map(one => [one.querySelector("figcaption").textContent,'
          ' one.querySelectorAll("polyline").length])'
      )
      expected_curves = {}
      for field, columns in episode['curves'].items():
        values = [v for column in columns for v in column if v is not None]
        if values:
          low, high = text.number(min(values)), text.number(max(values))
          expected_curves[f'{field}: {low} to {high}'] = len(columns)
      self.assertEqual(dict(drawn), expected_curves)
      frames = opened.run('document.querySelectorAll("#frames img").length')
      self.assertEqual(frames, min(episode['num_steps'], 1))
      widths = opened.run(
          'Array.from(document.querySelectorAll("#frames img"))'
          '.map(one => one.src.length)'
      )
      self.assertEqual([width > 100 for width in widths], [True] * frames)
    # The slider chooses a step.
    opened.run(
        '(() => {const e = document.getElementById("episode"); e.value = "0";'
        ' e.dispatchEvent(new Event("change")); const s ='
        ' document.getElementById("step"); s.value = "3"; s.dispatchEvent(new'
        ' Event("input"));})()'
    )
    self.assertEqual(
        opened.run('document.getElementById("step-number").textContent'),
        'step 3',
    )
    shown = opened.run(_SHOWN)
    self.assertIn(
        ['episodes', 0, 'curves', 'action', 1, 3], [path for path, _ in shown]
    )
    for path, found in shown:
      value = _look_up(self.plain, path)
      if not isinstance(value, str):
        self.assertEqual(found, text.number(value), path)

  def _check_looks(self, opened):
    def colours():
      return opened.run(
          '[getComputedStyle(document.body).backgroundColor,'
          ' getComputedStyle(document.body).color,'
          ' getComputedStyle(document.querySelector("figure svg text")).fill]'
      )

    opened.set_dark(False)
    self.assertEqual(
        colours(), ['rgb(255, 255, 255)', 'rgb(28, 33, 40)', 'rgb(28, 33, 40)']
    )
    opened.set_dark(True)
    self.assertEqual(
        colours(),
        ['rgb(20, 23, 28)', 'rgb(228, 232, 238)', 'rgb(228, 232, 238)'],
    )
    for width in (390, 1000):
      opened.set_width(width)
      # Nothing makes the page wider than the screen.
      self.assertLessEqual(
          opened.run('document.documentElement.scrollWidth'), width
      )


if __name__ == '__main__':
  absltest.main()
