"""`Description`: the description of a data set, in plain values."""

import dataclasses
import json
import math
from typing import Any, Dict, List, Optional

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import excerpts
from rlds2reverb.jobs.descriptions import findings
from rlds2reverb.jobs.descriptions import reading as reading_lib
from rlds2reverb.statistics import results

_MAX_BINS = 256  # of the returns along the data set
MAX_RUNS = 16  # of consecutive episodes, in a sample
_MAX_INTEGERS = 60  # that have a bar each


def _dict():
  return dataclasses.field(default_factory=dict)


def _list():
  return dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Description:
  """The description of a data set.

  All values are plain: strings, numbers, None, and lists and dicts of them. A
  number that does not exist, such as the mean of nothing, is None.

  Attributes:
    source: what was read.
    about: what the data set says of itself, as far as it is known: its `name`,
      `version`, `description`, `citation`, `homepage`, `folder` and `format`;
      its `splits`, with the number of `episodes`, of `files` and of `bytes` on
      disk; the `class_names` of labels and `notes` on features, by path.
    num_available: the number of episodes that there are, if it is known.
    is_sample: whether only some of them were read.
    counts: the numbers of `episodes` (with and without steps), `empty` ones,
      `steps`, `transitions`, `terminal` and `truncated` episodes.
    returns: the `mean`, `std`, `min`, `max` and `quantiles` of the returns.
    lengths: the same of the numbers of transitions.
    fields: a dict for each leaf of an episode: its `path`, `dtype`, `shape`
      (None for an open dimension) and `kind` (number, flag, image or text); its
      `min` and `max`, where they are known; and in `columns` the statistics of
      each of its numbers, where it has any, with `min_at` and `max_at`, the
      episode and the step of these, for the first 64.
    histograms: by name (`lengths`, `returns`, `reward` and, for every number of
      the action, `action[0]` or the like): the `edges` of the bars, the
      `counts`, and the number `of` them all; the `values` of bars that stand
      for one integer each, and the `labels` of these, if they have names.
      `is_whole` says whether these are all numbers, and not a sample, and `at`
      an episode and a step with such a number, if one is in `episodes`.
    order: the returns along the data set: the index of the `first` episode of
      each bin, the `mean`, `min` and `max` of the bin, and of which `run` of
      consecutive episodes it is, if a sample was drawn in several.
    oddities: the fields of a `findings.Finding` each.
    episodes: a dict for each excerpt: the `episode`, its `num_steps`,
      `num_transitions` and `return`, whether it `is_terminal`, and the
      `instruction` that a field gives, or ''; the `reasons` for showing it,
      besides bars of histograms; its `steps`, and its `curves` by field, each a
      list of columns; the `frame_steps`, and the `frames` by field.
    tables: of a Reverb checkpoint, a dict for each table; otherwise empty.
  """

  source: str
  about: Dict[str, Any] = _dict()
  num_available: Optional[int] = None
  is_sample: bool = False
  counts: Dict[str, int] = _dict()
  returns: Dict[str, Any] = _dict()
  lengths: Dict[str, Any] = _dict()
  fields: List[Dict[str, Any]] = _list()
  histograms: Dict[str, Dict[str, Any]] = _dict()
  order: List[Dict[str, Any]] = _list()
  oddities: List[Dict[str, Any]] = _list()
  episodes: List[Dict[str, Any]] = _list()
  tables: List[Dict[str, Any]] = _list()

  def to_json(self, *, frames: bool = False) -> str:
    """Returns the description as JSON text.

    Args:
      frames: whether the images of the episodes are in it.
    """
    plain = dataclasses.asdict(self)
    if not frames:
      for episode in plain['episodes']:
        del episode['frames']
    return json.dumps(plain, allow_nan=False)


def make_description(
    reading: reading_lib.Reading, source: str, num_excerpts: int, **known: Any
) -> Description:
  """Makes a description from what one pass has found.

  Args:
    reading: what was found.
    source: what was read.
    num_excerpts: how many episodes are shown at most.
    **known: other attributes of the description.
  """
  statistics = reading.statistics
  odd = findings.find(reading)
  histograms = _histograms(reading)
  shown = excerpts.choose(reading, histograms, odd, num_excerpts)
  return Description(
      source=source,
      counts={
          'episodes': len(reading.episodes),
          'empty': len(reading.episodes) - statistics.num_episodes,
          'steps': statistics.num_steps,
          'transitions': statistics.num_transitions,
          'terminal': statistics.num_terminal,
          'truncated': statistics.num_truncated,
      },
      returns=_column(statistics.returns, ()),
      lengths=_column(statistics.lengths, ()),
      fields=_fields(reading),
      histograms=histograms,
      order=_order(reading.episodes, known.get('is_sample', False)),
      oddities=[one._asdict() for one in odd],
      episodes=[_episode(reading, *one) for one in shown],
      **known,
  )


def _plain(number: Any) -> Optional[float]:
  number = float(number)
  return number if math.isfinite(number) else None


def _column(found: results.FieldStatistics, index) -> Dict[str, Any]:
  """Returns the statistics of one number of a field."""
  return {
      **{
          name: _plain(getattr(found, name)[index])
          for name in ('mean', 'std', 'min', 'max')
      },
      'quantiles': {
          f'{level:g}': _plain(numbers[index])
          for level, numbers in sorted(found.quantiles.items())
      },
      'count': int(found.count[index]),
      'not_finite': int(found.not_finite[index]),
  }


def _fields(reading) -> List[Dict[str, Any]]:
  places: Dict[str, list] = {field: [] for field in reading.fields}
  for column, ends in zip(reading.columns, reading.places.swapaxes(0, 1)):
    places[column.field].append(dict(zip(('min_at', 'max_at'), ends.tolist())))
  lasts = reading.episodes['last_reward']
  lasts = lasts[np.isfinite(lasts) & (lasts != 0)].tolist()
  fields = []
  for keys, spec in tree.flatten_with_path(reading.spec):
    if not isinstance(spec, tf.TensorSpec):
      continue
    in_steps = keys[0] == rlds.STEPS
    shape = None if spec.shape.rank is None else spec.shape.as_list()[in_steps:]
    name = paths.name_of(keys[1:]) if in_steps else ''
    found = reading.statistics.fields.get(name)
    columns, ends = [], []
    if found is not None:
      columns = [_column(found, index) for index in np.ndindex(found.min.shape)]
      ends = [
          one[end] for one in columns for end in ('min', 'max') if one['count']
      ]
      for column, place in zip(columns, places[name]):
        column.update(place)
      if name == rlds.REWARD:
        # Last rewards belong to no transition, but they are in the data.
        ends += lasts
    kind = 'flag' if spec.dtype == tf.bool else 'number'
    if excerpts.is_image(tf.TensorSpec(shape, spec.dtype)):
      kind = 'image'
    elif spec.dtype == tf.string:
      kind = 'text'
    fields.append(
        {
            'path': paths.name_of(keys),
            'dtype': spec.dtype.name,
            'shape': shape,
            'kind': kind,
            'min': min(ends, default=None),
            'max': max(ends, default=None),
            'columns': columns,
        }
    )
  return fields


def _order(episodes: np.ndarray, is_sample: bool) -> List[Dict[str, Any]]:
  """Returns the mean and the range of the returns along the data set."""
  returns = episodes['undiscounted_return']
  episodes = episodes[np.isfinite(returns) & (episodes['num_steps'] > 0)]
  borders = np.arange(1, _MAX_BINS) * episodes.size // _MAX_BINS
  gaps = np.zeros(0, np.int64)
  if is_sample:
    steps = np.diff(episodes['index'])
    # A filter makes gaps, too, but smaller ones.
    gaps = 1 + np.argsort(-steps, kind='stable')[: MAX_RUNS - 1]
    gaps = gaps[steps[gaps - 1] > 1]
  borders = np.union1d(borders, gaps)
  return [
      {
          'run': int(np.sum(gaps <= begin)),
          'first': int(part['index'][0]),
          **{
              name: float(getattr(part['undiscounted_return'], name)())
              for name in ('mean', 'min', 'max')
          },
      }
      for begin, part in zip([0, *borders], np.split(episodes, borders))
      if part.size
  ]


def _histograms(reading) -> Dict[str, Dict[str, Any]]:
  """Returns the histograms of lengths, returns, rewards and actions.

  Those of lengths and returns are of all episodes, the others of a sample of
  the steps. See `Description.histograms`.
  """
  episodes = reading.episodes[reading.episodes['num_steps'] > 0]
  returns = episodes['undiscounted_return']
  returns = returns[np.isfinite(returns)]
  lengths = episodes['num_transitions'].astype(np.float64)
  found = {
      reading_lib.LENGTHS: _histogram(lengths, lengths.size, excerpts.NUM_BARS),
      reading_lib.RETURNS: _histogram(returns, returns.size, excerpts.NUM_BARS),
  }
  for column in reading.columns:
    if column.field.split('/')[0] not in (rlds.REWARD, rlds.ACTION):
      continue
    count = reading.statistics.fields[column.field].count
    histogram = _histogram(
        reading.samples[column.field][column.number],
        int(count.ravel()[column.number]),
        _MAX_INTEGERS,
    )
    names = getattr(reading.bounds.get(column.field), 'names', ())
    if histogram['values'] and names:
      histogram['labels'] = [
          names[int(value)] if value in range(len(names)) else f'{value:g}'
          for value in histogram['values']
      ]
    found[column.name] = histogram
  return found


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
      edges = np.linspace(low, high, excerpts.NUM_BARS + 1)
    counts, _ = np.histogram(sample, edges)
  return {
      'edges': edges.tolist(),
      'counts': counts.tolist(),
      'values': values,
      'labels': None,
      'of': int(counts.sum()),
      'is_whole': sample.size == count,
  }


def _episode(reading, excerpt, reasons) -> Dict[str, Any]:
  curves: Dict[str, list] = {field: [] for field in reading.fields}
  for column in reading.columns:
    # A float32 has as many digits.
    curves[column.field].append(
        [
            _plain(f'{number:.7g}')
            for number in excerpt.numbers[column.name].tolist()
        ]
    )
  num_steps = int(excerpt.record['num_steps'])
  num_frames = excerpts.MAX_FRAMES if excerpt.frames else 0
  return {
      'episode': int(excerpt.record['index']),
      'num_steps': num_steps,
      'num_transitions': int(excerpt.record['num_transitions']),
      'instruction': excerpt.instruction,
      'return': _plain(excerpt.record['undiscounted_return']),
      'is_terminal': bool(excerpt.record['is_terminal']),
      'reasons': reasons,
      'steps': excerpt.steps.tolist(),
      'curves': curves,
      'frame_steps': excerpts.spread_steps(num_steps, num_frames).tolist(),
      'frames': excerpt.frames,
  }
