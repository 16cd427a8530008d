"""A description as one HTML page that needs nothing else.

Every number on the page has the path of its value in the JSON that the page
holds, as the attribute `data-path`.
"""

import html
import json
import os
from typing import Any, Iterator, List, Sequence

from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import pictures
from rlds2reverb.jobs.descriptions import text

_MAX_HISTOGRAMS = 64
_MAX_ROWS = 64  # of a field, in a table or a picture
_MAX_STRIPS = 4
_MAX_ACTION = 8  # numbers of an action under an image
_COLUMNS = ('mean', 'std', 'min', '0.05', '0.5', '0.95', 'max', 'not_finite')
_HEADS = ('mean', 'std', 'min', '5%', 'median', '95%', 'max', 'NaN, inf')


def to_html(description: description_lib.Description) -> str:
  """Returns the page of a description."""
  page = _Page(description)
  parts = [
      '<!DOCTYPE html>',
      '<html lang="en">',
      '<head>',
      '<meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width, initial-scale=1">',
      '<link rel="icon" href="data:,">',
      f'<title>{html.escape(description.source)}</title>',
      f'<style>\n{_read("page.css")}</style>',
      '</head>',
      '<body>',
      f'<h1>{html.escape(description.source)}</h1>',
      *page.tables(),
      *page.counts(),
      *page.oddities(),
      *page.fields(),
      *page.statistics(),
      *page.histograms(),
      *page.ranges(),
      *page.strips(),
      *page.browser(),
      # Nothing in the JSON may end the element.
      '<script type="application/json" id="description">'
      + description.to_json(frames=True).replace('<', '\\u003c')
      + '</script>',
      f'<script>\n{_read("page.js")}</script>',
      '</body>',
      '</html>',
  ]
  return '\n'.join(parts) + '\n'


def _read(name: str) -> str:
  with open(
      os.path.join(os.path.dirname(__file__), name), encoding='utf-8'
  ) as f:
    return f.read()


class _Page:
  """Makes the parts of the page."""

  def __init__(self, description: description_lib.Description):
    self._description = description
    self._plain = json.loads(description.to_json(frames=True))

  def _value(self, *path: Any) -> str:
    """Returns the number or the text at a path of the JSON, as an element."""
    value = self._plain
    for key in path:
      value = value[key]
    shown = value if isinstance(value, str) else text.number(value)
    return (
        f"<span data-path='{html.escape(json.dumps(path))}'>"
        f'{html.escape(shown)}</span>'
    )

  def tables(self) -> Iterator[str]:
    """Makes the tables of a checkpoint."""
    for index, table in enumerate(self._plain['tables']):
      yield f'<h2>Table {html.escape(table["name"])}</h2>'
      yield (
          f'<p>{self._value("tables", index, "num_items")} items of at most'
          f' {self._value("tables", index, "max_size")}</p>'
      )
      rows = [
          (html.escape(key), self._value('tables', index, key))
          for key in ('sampler', 'remover', 'rate_limiter', 'max_times_sampled')
      ]
      rows += [
          (html.escape(path), self._value('tables', index, 'signature', path))
          for path in table['signature']
      ]
      yield _table(('', ''), rows)

  def counts(self) -> Iterator[str]:
    if self._description.is_sample:
      total = ''
      if self._description.num_available is not None:
        total = f' of {self._value("num_available")}'
      yield (
          '<p class="sample">This is about a sample of'
          f' {self._value("counts", "episodes")}{total} episodes.</p>'
      )
    if not self._plain['counts']:
      return
    yield '<dl class="counts">'
    for key in self._plain['counts']:
      yield f'<div><dt>{key}</dt><dd>{self._value("counts", key)}</dd></div>'
    yield '</dl>'

  def oddities(self) -> Iterator[str]:
    if not self._plain['counts']:
      return
    yield '<h2>What is odd</h2>'
    found = self._plain['oddities']
    if not found:
      yield '<p>Nothing was found.</p>'
      return
    yield '<ul class="odd">'
    for index in range(len(found)):
      yield f'<li>{self._value("oddities", index, "message")}</li>'
    yield '</ul>'

  def fields(self) -> Iterator[str]:
    if not self._plain['fields']:
      return
    yield '<h2>Fields</h2>'
    rows = []
    for index, field in enumerate(self._plain['fields']):
      dtype = field['dtype'] + ' image' * (field['kind'] == 'image')
      rows.append(
          (
              html.escape(field['path']),
              html.escape(dtype),
              html.escape(text.shape(field['shape'])),
              self._value('fields', index, 'min'),
              self._value('fields', index, 'max'),
          )
      )
    yield _table(('field', 'dtype', 'shape', 'min', 'max'), rows)

  def statistics(self) -> Iterator[str]:
    if not self._plain['counts']:
      return
    yield '<h2>Statistics</h2>'
    yield _table(
        ('', *_HEADS),
        [
            ('returns', *self._numbers('returns')),
            ('lengths', *self._numbers('lengths')),
        ],
    )
    for index, field in enumerate(self._plain['fields']):
      if field['columns']:
        summary = html.escape(field['path'])
        if len(field['columns']) > _MAX_ROWS:
          summary += (
              f', the first {_MAX_ROWS} of {len(field["columns"])} numbers'
          )
        yield f'<details><summary>{summary}</summary>'
        yield _table(
            ('', *_HEADS),
            [
                (
                    f'[{column}]',
                    *self._numbers('fields', index, 'columns', column),
                )
                for column in range(min(len(field['columns']), _MAX_ROWS))
            ],
        )
        yield '</details>'

  def _numbers(self, *path: Any) -> List[str]:
    column = self._plain
    for key in path:
      column = column[key]
    return [
        self._value(*path, name)
        if name in column
        else self._value(*path, 'quantiles', name)
        for name in _COLUMNS
    ]

  def histograms(self) -> Iterator[str]:
    found = self._plain['histograms']
    if not found:
      return
    yield '<h2>Distributions</h2>'
    shown = list(found)[:_MAX_HISTOGRAMS]
    if len(shown) < len(found):
      yield (
          f'<p class="quiet">The first {len(shown)} of {len(found)}; all are in'
          ' the JSON.</p>'
      )
    yield '<div class="pictures">'
    for index, name in enumerate(shown):
      of = self._value('histograms', name, 'of')
      kind = 'all' if found[name]['is_whole'] else 'a sample of'
      yield _figure(
          f'{html.escape(name)}, {kind} {of}',
          pictures.histogram(found[name], f'histogram{index}'),
      )
    yield _figure(
        'returns along the data set: mean and range',
        pictures.order(self._plain['order'], 'order'),
    )
    yield '</div>'

  def ranges(self) -> Iterator[str]:
    found = [
        (index, field)
        for index, field in enumerate(self._plain['fields'])
        if field['columns']
        and field['path'].split('/')[1:2] in ([rlds.ACTION], [rlds.OBSERVATION])
    ]
    if not found:
      return
    yield '<h2>Ranges of actions and observations</h2>'
    yield (
        '<p class="quiet">From the minimum to the maximum; thick from 5% to'
        ' 95%; a dot at the median.</p>'
    )
    yield '<div class="pictures">'
    for index, field in found:
      caption = html.escape(field['path'].partition('/')[2])
      if len(field['columns']) > _MAX_ROWS:
        caption += f', the first {_MAX_ROWS} of {len(field["columns"])} numbers'
      yield _figure(
          caption,
          pictures.ranges(field['columns'][:_MAX_ROWS], f'range{index}'),
      )
    yield '</div>'

  def strips(self) -> Iterator[str]:
    """Makes strips of images of some episodes."""
    with_frames = [
        index
        for index, episode in enumerate(self._plain['episodes'])
        if any(episode['frames'].values())
    ]
    if not with_frames:
      return
    yield '<h2>Images</h2>'
    for index in with_frames[:_MAX_STRIPS]:
      episode = self._plain['episodes'][index]
      for field, images in episode['frames'].items():
        yield (
            f'<h3>Episode {self._value("episodes", index, "episode")},'
            f' {html.escape(field)}</h3>'
        )
        yield '<div class="strip">'
        for number, image in enumerate(images):
          yield _figure(
              self._caption(index, episode, number),
              f'<img src="data:image/jpeg;base64,{image}" alt="">',
          )
        yield '</div>'

  def _caption(self, index, episode, number) -> str:
    """Returns the step, the action and the reward of a frame."""
    row = episode['steps'].index(episode['frame_steps'][number])
    parts = [f'step {self._value("episodes", index, "frame_steps", number)}']
    for name in (rlds.ACTION, rlds.REWARD):
      values = [
          self._value('episodes', index, 'curves', field, column, row)
          for field, columns in episode['curves'].items()
          if field.split('/')[0] == name
          for column in range(len(columns))
      ]
      more = ' …' if len(values) > _MAX_ACTION else ''
      parts.append(f'{name} {" ".join(values[:_MAX_ACTION])}{more}')
    return '<br>'.join(parts)

  def browser(self) -> Iterator[str]:
    """Makes the frame of the episode browser, which page.js fills."""
    episodes = self._plain['episodes']
    if not episodes:
      return
    yield '<h2>Episodes</h2>'
    yield (
        f'<p class="quiet">{len(episodes)} episodes, drawn at random; of a long'
        ' one, some of its steps.</p>'
    )
    yield '<div class="controls">'
    yield '<button id="previous" type="button">Previous</button>'
    yield '<select id="episode" aria-label="episode">'
    for index, episode in enumerate(episodes):
      yield (
          f'<option value="{index}">Episode {episode["episode"]}, return'
          f' {text.number(episode["return"])}</option>'
      )
    yield '</select>'
    yield '<button id="next" type="button">Next</button>'
    yield '</div>'
    yield '<p id="episode-summary"></p>'
    yield '<div class="controls">'
    yield '<input id="step" type="range" min="0" value="0" aria-label="step">'
    yield '<span id="step-number"></span>'
    yield '</div>'
    yield '<div id="frames" class="frames"></div>'
    yield '<div id="curves" class="pictures"></div>'
    yield ('<noscript><p>The episode browser needs JavaScript.</p></noscript>')


def _figure(caption: str, content: str) -> str:
  return f'<figure><figcaption>{caption}</figcaption>{content}</figure>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a table of cells that are HTML already."""

  def row(cells, tag):
    joined = ''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)
    return f'<tr>{joined}</tr>'

  return '\n'.join(
      [
          '<div class="wide"><table>',
          row(heads, 'th'),
          *(row(cells, 'td') for cells in rows),
          '</table></div>',
      ]
  )
