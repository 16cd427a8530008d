"""`Description`: the description of a data set, in plain values."""

import collections
from collections.abc import Sequence
import dataclasses
import json
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import findings
from rlds2reverb.jobs.descriptions import reading as reading_lib
from rlds2reverb.statistics import results

_MAX_BINS = 256  # Of returns along the data set.
_MAX_INTEGERS = 60  # With a separate bar each.
# Approximate bytes of a description's excerpts in a page. A page of two
# descriptions then has less than 5 MB.
_MAX_BYTES = 1_900_000
_BYTES_PER_NUMBER = 11
_KINDS = {tf.bool: 'flag', tf.string: 'text'}


def _new(kind: Any) -> Any:
  return dataclasses.field(default_factory=kind)


@dataclasses.dataclass(frozen=True)
class Description:
  """The description of a data set.

  All values are strings, numbers, None, or lists and dicts of these. A number
  that does not exist, such as the mean of no values, is None.

  Attributes:
    source: the name of the data set.
    about: its available metadata: its `name`, `version`, `description`,
      `citation`, `homepage`, `folder` and `format`; its `splits`, with the
      numbers of `episodes`, `files` and `bytes` on disk; the `class_names` of
      labels and `notes` on features, by path.
    num_available: the number of episodes of the data set, if available.
    is_sample: whether only some episodes were read.
    counts: the numbers of `episodes` (with and without steps), `empty` ones,
      `steps`, `transitions`, `terminal` and `truncated` episodes.
    removed_steps: the number of steps that each transform or filter removed, by
      its class; `counts` excludes them.
    returns: the `mean`, `std`, `min`, `max` and `quantiles` of the returns.
    lengths: the same of the numbers of transitions.
    fields: a dict for each leaf of an episode: its `path`, `dtype`, `shape`
      (None for an open dimension) and `kind` (number, flag, image or text); its
      `min` and `max`, or None; and in `columns` the statistics of each of its
      numbers, with `min_at` and `max_at`, the episode and the step of these,
      for the first 64.
    histograms: by name (`lengths`, `returns`, `reward` and, for every number of
      the action, `action[0]`): the `edges` of the bars, the `counts`, and their
      sum `of`; the `values` of bars of one integer each, and the `labels` of
      these, if they have names. `is_whole` is whether the counts are of all
      numbers, and not of a sample.
    order: the returns along the data set: the index of the `first` episode of
      each bin, and the `mean`, `min` and `max` of the bin.
    oddities: the fields of each `findings.Finding`.
    episodes: a dict for each excerpt: the `episode`, its `num_steps`,
      `num_transitions` and `return`, whether it `is_terminal`, and the
      `instruction`, or ''; the `reasons` for showing it, except for bars of
      histograms; its `steps`, and its `curves` by field, each a list of
      columns; the `frame_steps`, and the `frames` by field.
    tables: a dict for each table of a Reverb checkpoint; otherwise empty.
  """

  source: str
  about: dict[str, Any] = _new(dict)
  num_available: int | None = None
  is_sample: bool = False
  counts: dict[str, int] = _new(dict)
  removed_steps: dict[str, int] = _new(dict)
  returns: dict[str, Any] = _new(dict)
  lengths: dict[str, Any] = _new(dict)
  fields: list[dict[str, Any]] = _new(list)
  histograms: dict[str, dict[str, Any]] = _new(dict)
  order: list[dict[str, Any]] = _new(list)
  oddities: list[dict[str, Any]] = _new(list)
  episodes: list[dict[str, Any]] = _new(list)
  tables: list[dict[str, Any]] = _new(list)

  def to_json(self, *, frames: bool = False) -> str:
    """Returns the description as JSON text.

    Args:
      frames: whether to include the images of the episodes.
    """
    plain = dataclasses.asdict(self)
    if not frames:
      for episode in plain['episodes']:
        del episode['frames']
    return json.dumps(plain, allow_nan=False)


def make_description(
    reading: reading_lib.Reading, num_excerpts: int, **attributes: Any
) -> Description:
  """Makes a description from the results of one pass.

  Args:
    reading: the results.
    num_excerpts: the maximum number of episodes to show.
    **attributes: other attributes, such as the source.
  """
  statistics = reading.statistics
  odd = findings.find(reading)
  histograms = _make_histograms(reading)
  counts = {'episodes': len(reading.episodes)}
  kinds = list(findings.OF_EPISODES)
  unreadable = reading.episodes['odd'][:, kinds.index('unreadable')].sum()
  num_read = len(reading.episodes) - int(unreadable)
  if unreadable:
    counts['unreadable'] = int(unreadable)
  counts['empty'] = num_read - statistics.num_episodes
  for name in ('steps', 'transitions', 'terminal', 'truncated'):
    counts[name] = getattr(statistics, f'num_{name}')
  return Description(
      counts=counts,
      returns=_describe_column(statistics.returns, ()),
      lengths=_describe_column(statistics.lengths, ()),
      fields=[
          _describe_field(reading, keys, spec)
          for keys, spec in tree.flatten_with_path(reading.spec)
          if isinstance(spec, tf.TensorSpec)
      ],
      histograms=histograms,
      order=_summarize_order(reading.episodes),
      oddities=[finding._asdict() for finding in odd],
      episodes=[
          _describe_excerpt(reading, excerpt)
          for excerpt in _choose_excerpts(
              reading, histograms, odd, num_excerpts
          )
      ],
      **attributes,
  )


def _to_json(number: Any) -> float | None:
  """Returns a finite number, or None."""
  number = float(number)
  return number if math.isfinite(number) else None


def _describe_column(
    statistics: results.FieldStatistics, index
) -> dict[str, Any]:
  """Returns the statistics of one number of a field."""
  names = ('mean', 'std', 'min', 'max')
  return {
      **{name: _to_json(getattr(statistics, name)[index]) for name in names},
      'quantiles': {
          f'{level:g}': _to_json(values[index])
          for level, values in sorted(statistics.quantiles.items())
      },
      'count': int(statistics.count[index]),
      'not_finite': int(statistics.not_finite[index]),
  }


def _describe_field(reading, keys, spec) -> dict[str, Any]:
  """Returns the description of a leaf of an episode."""
  name = paths.name_of(keys[1:]) if keys[0] == rlds.STEPS else None
  statistics, columns = reading.statistics.fields.get(name), []
  if statistics is not None:
    columns = [
        _describe_column(statistics, index)
        for index in np.ndindex(statistics.min.shape)
    ]
    for column, (index, _) in zip(columns, reading.columns_of(name)):
      column['min_at'], column['max_at'] = reading.find_extremes(index)
  ends = [c[end] for c in columns for end in ('min', 'max') if c['count']]
  is_image = reading_lib.is_image(spec)
  return {
      'path': paths.name_of(keys),
      'dtype': spec.dtype.name,
      'shape': None if spec.shape.rank is None else spec.shape.as_list(),
      'kind': 'image' if is_image else _KINDS.get(spec.dtype, 'number'),
      'min': min(ends, default=None),
      'max': max(ends, default=None),
      'columns': columns,
  }


def _describe_excerpt(reading, excerpt) -> dict[str, Any]:
  """Returns an excerpt as JSON values."""
  curves: dict[str, list[Any]] = {f: [] for f in reading.statistics.fields}
  for column, numbers in zip(reading.columns, excerpt['curves'].T):
    # A float32 has 7 digits.
    curve = [_to_json(f'{number:.7g}') for number in numbers.tolist()]
    curves[column.field].append(curve)
  return {
      **excerpt,
      'return': _to_json(excerpt['return']),
      'steps': excerpt['steps'].tolist(),
      'curves': curves,
  }


def _summarize_order(episodes: np.ndarray) -> list[dict[str, Any]]:
  """Returns the mean and the range of the returns along the data set."""
  is_shown = np.isfinite(episodes['return']) & (episodes['num_steps'] > 0)
  return [
      {
          'first': int(part['index'][0]),
          'mean': float(part['return'].mean()),
          'min': float(part['return'].min()),
          'max': float(part['return'].max()),
      }
      for part in np.array_split(episodes[is_shown], _MAX_BINS)
      if part.size
  ]


def _make_histograms(reading) -> dict[str, dict[str, Any]]:
  """Returns the histograms of lengths, returns, rewards and actions.

  Lengths and returns are of all episodes, the others of a sample of the steps.
  See `Description.histograms`.
  """
  episodes = reading.episodes[reading.episodes['num_steps'] > 0]
  histograms = {}
  for name, key in ('lengths', 'num_transitions'), ('returns', 'return'):
    numbers = episodes[key][np.isfinite(episodes[key])].astype(np.float64)
    histograms[name] = _make_histogram(
        numbers, numbers.size, reading_lib.NUM_BARS
    )
  for field, number, name, offset in reading.columns:
    if field.split('/')[0] in (rlds.REWARD, rlds.ACTION):
      labels = getattr(reading.bounds.get(field), 'names', ())
      count = int(reading.statistics.fields[field].count.ravel()[number])
      sample = reading.samples[offset]
      histograms[name] = _make_histogram(sample, count, _MAX_INTEGERS, labels)
  return histograms


def _make_histogram(sample, count, max_integers, names=()) -> dict[str, Any]:
  """Returns the histogram of a sample of `count` numbers."""
  edges, values, labels = np.zeros(0), None, None
  low, high = (sample.min(), sample.max()) if sample.size else (0, 0)
  if low < high and np.any(sample != np.round(sample)):
    edges = np.linspace(low, high, reading_lib.NUM_BARS + 1)
  elif low < high:
    # All bars have the same number of integers.
    width = np.ceil((high - low + 1) / max_integers)
    num_bars = np.ceil((high - low + 1) / width)
    edges = low - 0.5 + width * np.arange(num_bars + 1)
    values = list(range(int(low), int(high) + 1)) if width == 1 else None
  elif sample.size:
    edges, values = np.array([low, high]), [float(low)]
  if values and names:
    labels = [
        names[int(value)] if value in range(len(names)) else f'{value:g}'
        for value in values
    ]
  counts = np.histogram(sample, edges)[0] if sample.size else np.zeros(0, int)
  return {
      'edges': edges.tolist(),
      'counts': counts.tolist(),
      'values': values,
      'labels': labels,
      'of': int(counts.sum()),
      'is_whole': sample.size == count,
  }


def _choose_excerpts(
    reading: Any,
    histograms: dict[str, dict[str, Any]],
    odd: Sequence[Any],
    count: int,
) -> list[dict[str, Any]]:
  """Chooses the episodes to show, at most `count`.

  They are the best, the worst and the longest ones; the ones of findings; and
  then the ones that show most bars of histograms, and minima and maxima of
  columns, that the others do not show.

  Args:
    reading: the `Reading`.
    histograms: its histograms.
    odd: its findings.
    count: the maximum number of excerpts.

  Returns:
    The excerpts, with the reasons for showing them, the most important first.
  """
  excerpts = dict(sorted(reading.excerpts.items()))
  reasons = _find_reasons(excerpts, odd)
  shows = {
      episode: _list_bars(reading, histograms, excerpt)
      for episode, excerpt in excerpts.items()
  }
  chosen: list[int] = []
  shown: set[tuple[str, int]] = set()
  room = _MAX_BYTES
  while len(chosen) < min(count, len(excerpts)):
    if len(chosen) < len(reasons):
      best = list(reasons)[len(chosen)]
    else:
      best = max(
          (episode for episode in excerpts if episode not in chosen),
          key=lambda episode: len(shows[episode] - shown),
      )
    frames = sum(map(len, tree.flatten(excerpts[best]['frames'])))
    room -= excerpts[best]['curves'].size * _BYTES_PER_NUMBER + frames
    if room < 0 and best not in reasons:
      break
    chosen.append(best)
    shown |= shows[best]
  return [{**excerpts[i], 'reasons': reasons[i]} for i in chosen]


def _find_reasons(excerpts, odd) -> dict[int, list[str]]:
  """Returns the episodes that are always shown, with the reasons."""
  reasons: dict[int, list[str]] = collections.defaultdict(list)
  for reason, sign, name in (
      ('highest return', -1, 'return'),
      ('lowest return', 1, 'return'),
      ('longest', -1, 'num_transitions'),
  ):
    ranked = sorted(
        (sign * excerpt[name], episode)
        for episode, excerpt in excerpts.items()
        if excerpt['num_steps'] and np.isfinite(excerpt[name])
    )
    if ranked and ranked[0][0] < ranked[-1][0]:
      # The best of few episodes are not shown again as the worst.
      for _, episode in ranked[
          : min(reading_lib.NUM_EXTREMES, -(-len(ranked) // 4))
      ]:
        reasons[episode].append(reason)
  for finding in odd:
    if finding.episode is not None:
      reasons[finding.episode].append(finding.kind.replace('_', ' '))
  return reasons


def _list_bars(reading, histograms, excerpt) -> set[tuple[str, int]]:
  """Returns the bars of histograms and extremes of columns of an excerpt."""
  columns = {
      'lengths': [excerpt['num_transitions']],
      'returns': [excerpt['return']],
      **dict(zip((c.name for c in reading.columns), excerpt['curves'].T)),
  }
  ends = reading.places[: 2 * len(reading.columns), 0]
  extremes = np.flatnonzero(ends == excerpt['episode'])
  return {('', end) for end in extremes.tolist()}.union(
      (name, bar)
      for name, histogram in histograms.items()
      for bar in np.digitize(columns[name], histogram['edges'][:-1]).tolist()
  )
