"""The pictures of a description: SVG drawn by matplotlib.

Each picture is a small one, so that a page can lay out as many beside each
other as fit. Its colours are those of the page: matplotlib draws in colours
that stand for CSS variables, which take their place in the text of the SVG. So
one picture fits light and dark pages.
"""

import io
import re
from typing import Any, Dict, List, Sequence

_TEXT, _MARK, _GRID, _STRONG = '#000001', '#000002', '#000003', '#000004'
_VARIABLES = {
    _TEXT: 'var(--text)',
    _MARK: 'var(--mark)',
    _GRID: 'var(--grid)',
    _STRONG: 'var(--strong)',
}
_STYLE = {
    'svg.fonttype': 'none',
    'svg.hashsalt': 'rlds2reverb',
    'font.family': 'sans-serif',
    'font.size': 9,
    'text.color': _TEXT,
    'axes.labelcolor': _TEXT,
    'axes.edgecolor': _GRID,
    'axes.grid': True,
    'axes.axisbelow': True,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.formatter.useoffset': False,
    'grid.color': _GRID,
    'grid.linewidth': 0.5,
    'xtick.color': _TEXT,
    'ytick.color': _TEXT,
}
_WIDTH, _HEIGHT = 3.6, 2.0  # inches
_ROW_HEIGHT = 0.17


def histogram(histogram: Dict[str, Any], name: str) -> str:
  """Draws one of `Description.histograms`; `name` tells pictures apart."""

  def draw(axes):
    edges, counts = histogram['edges'], histogram['counts']
    if counts:
      axes.stairs(counts, edges, fill=True, color=_MARK)
    axes.grid(axis='x', visible=False)

  return _picture(draw, name)


def order(bins: Sequence[Dict[str, Any]], name: str) -> str:
  """Draws `Description.order`: the mean of each bin, and its range."""

  def draw(axes):
    first = [one['first'] for one in bins]
    axes.vlines(
        first,
        [one['min'] for one in bins],
        [one['max'] for one in bins],
        color=_MARK,
        linewidth=1,
    )
    _dots(axes, first, [one['mean'] for one in bins])
    axes.set_xlabel('episode, in the order read')

  return _picture(draw, name)


def ranges(columns: List[Dict[str, Any]], name: str) -> str:
  """Draws the ranges of a field's numbers, a row each.

  A thin line goes from the minimum to the maximum, a thick one from the 5% to
  the 95% quantile, and a dot is at the median.
  """

  def draw(axes):
    for index, column in enumerate(columns):
      if column['min'] is None:
        continue
      quantiles = column['quantiles']
      axes.hlines(index, column['min'], column['max'], color=_MARK, linewidth=1)
      axes.hlines(
          index, quantiles['0.05'], quantiles['0.95'], color=_MARK, linewidth=5
      )
      _dots(axes, quantiles['0.5'], index)
    axes.set_ylim(len(columns) - 0.4, -0.6)
    axes.set_yticks(range(len(columns)))
    axes.grid(axis='y', visible=False)

  return _picture(draw, name, height=0.7 + _ROW_HEIGHT * len(columns))


def _dots(axes, x, y) -> None:
  axes.plot(x, y, 'o', color=_STRONG, markersize=3, markeredgewidth=0, zorder=3)


def _picture(draw, name, height=_HEIGHT) -> str:
  """Returns the SVG of a figure with one pair of axes."""
  # To import matplotlib takes a third of a second, which the processes of a job
  # would spend at their start, without drawing anything.
  # pylint: disable=g-import-not-at-top
  import matplotlib as mpl
  from matplotlib import figure

  with mpl.rc_context(_STYLE):
    drawn = figure.Figure(figsize=(_WIDTH, height), layout='constrained')
    axes = drawn.add_subplot()
    draw(axes)
    text = io.StringIO()
    drawn.savefig(text, format='svg', transparent=True, metadata={'Date': None})
  svg = text.getvalue()
  svg = svg[svg.index('<svg') :]
  for colour, variable in _VARIABLES.items():
    svg = svg.replace(colour, variable)
  svg = re.sub(r'<metadata>.*?</metadata>', '', svg, flags=re.DOTALL)
  # The size is that of the place in the page, and a page has ids only once.
  svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r'\1', svg, count=1)
  svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r'\1', svg, count=1)
  return re.sub(r'(\bid="|"#|url\(#)', rf'\g<1>{name}-', svg)
