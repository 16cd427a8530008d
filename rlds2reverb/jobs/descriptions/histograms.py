"""Histograms of a data set, and episodes that illustrate them."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import findings as findings_lib

_MAX_INTEGERS = 60  # that have a bar each
# About the number of bytes of a description's excerpts in a page. A page of two
# descriptions then has less than 5 MB.
_MAX_BYTES = 1_900_000
_BYTES_OF_NUMBER = 11
LENGTHS = 'lengths'
RETURNS = 'returns'

Histograms = Dict[str, Dict[str, Any]]


def make_histograms(findings: findings_lib.Findings) -> Histograms:
  """Returns the histograms of lengths, returns, rewards and actions.

  Those of lengths and returns are of all episodes, the others of a sample of
  the steps. See `Description.histograms`.
  """
  episodes = findings.episodes
  returns = episodes['undiscounted_return']
  returns = returns[np.isfinite(returns)]
  found = {
      LENGTHS: _histogram(
          episodes['num_transitions'], episodes.size, excerpts_lib.NUM_BARS
      ),
      RETURNS: _histogram(returns, returns.size, excerpts_lib.NUM_BARS),
  }
  for column in _columns(findings):
    field = findings.statistics.fields[column.field]
    histogram = _histogram(
        findings.samples[column.field][column.number],
        int(field.count.ravel()[column.number]),
        _MAX_INTEGERS,
    )
    names = getattr(findings.bounds.get(column.field), 'names', ())
    if histogram['values'] and names:
      histogram['labels'] = [
          names[int(value)] if value in range(len(names)) else f'{value:g}'
          for value in histogram['values']
      ]
    found[column.name] = histogram
  return found


def choose_excerpts(
    findings: findings_lib.Findings,
    histograms: Histograms,
    odd_episodes: Sequence[Tuple[int, str]],
    count: int,
) -> List[Tuple[excerpts_lib.Excerpt, List[str]]]:
  """Chooses the episodes that are shown.

  They are the best, the worst and the longest ones; those of the oddities; and
  then those that show most of what no other one shows: the bars of histograms,
  and the least and the greatest number of each column.

  Args:
    findings: what was found.
    histograms: its histograms.
    odd_episodes: for each oddity, an episode that shows it, and its name.
    count: how many to choose at most.

  Returns:
    Each with the reasons for showing it, the most important ones first.
  """
  reasons: Dict[int, List[str]] = {}
  candidates = [findings.excerpts[one] for one in sorted(findings.excerpts)]
  for reason, sign, name in (
      ('highest return', -1, 'undiscounted_return'),
      ('lowest return', 1, 'undiscounted_return'),
      ('longest', -1, 'num_transitions'),
  ):
    ranked = sorted(
        (sign * getattr(one, name), one.episode)
        for one in candidates
        if np.isfinite(getattr(one, name)) and one.num_steps
    )
    if ranked and ranked[0][0] < ranked[-1][0]:
      # Where there are few episodes, the best are not shown again as the worst.
      count_each = min(excerpts_lib.NUM_EXTREMES, -(-len(ranked) // 4))
      for _, episode in ranked[:count_each]:
        reasons.setdefault(episode, []).append(reason)
  for episode, what in odd_episodes:
    reasons.setdefault(episode, []).append(what)
  chosen = list(reasons)[:count]
  shows = _what_each_shows(findings, histograms, candidates)
  is_shown = np.zeros(shows.shape[1], bool)
  room = _MAX_BYTES
  index = {one.episode: at for at, one in enumerate(candidates)}
  for episode in chosen:
    is_shown |= shows[index[episode]]
    room -= _size_of(candidates[index[episode]])
  while len(chosen) < min(count, len(candidates)):
    gains = (shows & ~is_shown).sum(1)
    gains[[index[episode] for episode in chosen]] = -1
    best = int(np.argmax(gains))
    room -= _size_of(candidates[best])
    if room < 0:
      break
    is_shown |= shows[best]
    chosen.append(candidates[best].episode)
  return [
      (findings.excerpts[episode], reasons.get(episode, []))
      for episode in chosen
  ]


def add_places(
    findings: findings_lib.Findings,
    histograms: Histograms,
    shown: List[excerpts_lib.Excerpt],
) -> None:
  """Says for each bar where it is shown, as `at`: `[episode, step]`, or None.

  Of returns and lengths the step is 0.
  """
  for name, histogram in histograms.items():
    places: List[Optional[List[int]]] = [None] * len(histogram['counts'])
    for one in reversed(shown):
      bars = _bars(findings, name, histogram, one)
      for bar, row in zip(*np.unique(bars, return_index=True)):
        if bar >= 0:
          step = 0 if name in (LENGTHS, RETURNS) else int(one.steps[row])
          places[bar] = [one.episode, step]
    histogram['at'] = places


def _columns(findings) -> List[findings_lib.FieldColumn]:
  return [
      column
      for column in findings.columns
      if column.field.split('/')[0] in (rlds.REWARD, rlds.ACTION)
  ]


def _histogram(sample, count, max_integers) -> Dict[str, Any]:
  """Returns the histogram of a sample of `count` numbers."""
  edges, values = np.array([]), None
  counts = np.array([], np.int64)
  if sample.size:
    low, high = sample.min(), sample.max()
    if low == high:
      edges, values = np.array([low, high]), [float(low)]
    elif np.all(sample == np.round(sample)):
      # All bars are equally wide: each stands for as many integers.
      width = np.ceil((high - low + 1) / max_integers)
      num_bars = np.ceil((high - low + 1) / width)
      edges = low - 0.5 + width * np.arange(num_bars + 1)
      if width == 1:
        values = list(range(int(low), int(high) + 1))
    else:
      edges = np.linspace(low, high, excerpts_lib.NUM_BARS + 1)
    counts, _ = np.histogram(sample, edges)
  return {
      'edges': edges.tolist(),
      'counts': counts.tolist(),
      'values': values,
      'labels': None,
      'of': int(counts.sum()),
      'is_whole': sample.size == count,
  }


def _bars(findings, name, histogram, excerpt) -> np.ndarray:
  """Returns the bar of each number of an excerpt; -1 for none."""
  if name == LENGTHS:
    numbers = np.array([excerpt.num_transitions], np.float64)
  elif name == RETURNS:
    numbers = np.array([excerpt.undiscounted_return])
  else:
    names = [column.name for column in findings.columns]
    numbers = excerpt.rows[:, names.index(name)]
  edges = np.array(histogram['edges'])
  if not edges.size or not excerpt.num_steps:
    return np.full(numbers.size, -1)
  bars = np.searchsorted(edges, numbers, 'right') - 1
  bars = np.where(numbers == edges[-1], bars - 1, bars)
  return np.where(bars < len(edges) - 1, bars, -1)


def _what_each_shows(findings, histograms, candidates) -> np.ndarray:
  """Returns which bar and which extreme each one shows, `[candidates, ...]`."""
  parts = [
      findings.extremes[..., 0].ravel()
      == np.array([one.episode for one in candidates], np.int64)[:, None]
  ]
  for name, histogram in histograms.items():
    shows = np.zeros([len(candidates), len(histogram['counts']) + 1], bool)
    for row, one in zip(shows, candidates):
      row[_bars(findings, name, histogram, one)] = True
    parts.append(shows[:, :-1])  # The last one stands for no bar.
  return np.concatenate(parts, 1)


def _size_of(excerpt: excerpts_lib.Excerpt) -> int:
  """Returns about how many bytes of a page an excerpt takes."""
  images = sum(map(len, excerpt.images)) * 4 // 3
  return excerpt.rows.size * _BYTES_OF_NUMBER + images
