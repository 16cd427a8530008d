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
_MAX_INTEGERS = 60  # that have a bar each
_KINDS = {tf.bool: 'flag', tf.string: 'text'}


def _new(kind: Any) -> Any:
  return dataclasses.field(default_factory=kind)


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
      `is_whole` says whether these are all numbers, and not a sample.
    order: the returns along the data set: the index of the `first` episode of
      each bin, and the `mean`, `min` and `max` of the bin.
    oddities: the fields of a `findings.Finding` each.
    episodes: a dict for each excerpt: the `episode`, its `num_steps`,
      `num_transitions` and `return`, whether it `is_terminal`, and the
      `instruction` that a field gives, or ''; the `reasons` for showing it,
      besides bars of histograms; its `steps`, and its `curves` by field, each a
      list of columns; the `frame_steps`, and the `frames` by field.
    tables: of a Reverb checkpoint, a dict for each table; otherwise empty.
  """

  source: str
  about: Dict[str, Any] = _new(dict)
  num_available: Optional[int] = None
  is_sample: bool = False
  counts: Dict[str, int] = _new(dict)
  returns: Dict[str, Any] = _new(dict)
  lengths: Dict[str, Any] = _new(dict)
  fields: List[Dict[str, Any]] = _new(list)
  histograms: Dict[str, Dict[str, Any]] = _new(dict)
  order: List[Dict[str, Any]] = _new(list)
  oddities: List[Dict[str, Any]] = _new(list)
  episodes: List[Dict[str, Any]] = _new(list)
  tables: List[Dict[str, Any]] = _new(list)

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
    reading: reading_lib.Reading, num_excerpts: int, **known: Any
) -> Description:
  """Makes a description from what one pass has found.

  Args:
    reading: what was found.
    num_excerpts: how many episodes are shown at most.
    **known: the other attributes, such as the source.
  """
  statistics = reading.statistics
  odd = findings.find(reading)
  histograms = _histograms(reading)
  counts = {'episodes': len(reading.episodes)}
  counts['empty'] = len(reading.episodes) - statistics.num_episodes
  for name in ('steps', 'transitions', 'terminal', 'truncated'):
    counts[name] = getattr(statistics, f'num_{name}')
  return Description(
      counts=counts,
      returns=_column(statistics.returns, ()),
      lengths=_column(statistics.lengths, ()),
      fields=[
          _field(reading, keys, spec)
          for keys, spec in tree.flatten_with_path(reading.spec)
          if isinstance(spec, tf.TensorSpec)
      ],
      histograms=histograms,
      order=_order(reading.episodes),
      oddities=[one._asdict() for one in odd],
      episodes=[
          _excerpt(reading, one)
          for one in excerpts.choose(reading, histograms, odd, num_excerpts)
      ],
      **known,
  )


def _plain(number: Any) -> Optional[float]:
  number = float(number)
  return number if math.isfinite(number) else None


def _column(found: results.FieldStatistics, index) -> Dict[str, Any]:
  """Returns the statistics of one number of a field."""
  names = ('mean', 'std', 'min', 'max')
  levels = sorted(found.quantiles.items())
  return {
      **{name: _plain(getattr(found, name)[index]) for name in names},
      'quantiles': {f'{level:g}': _plain(one[index]) for level, one in levels},
      'count': int(found.count[index]),
      'not_finite': int(found.not_finite[index]),
  }


def _field(reading, keys, spec) -> Dict[str, Any]:
  """Returns the description of a leaf of an episode."""
  name = paths.name_of(keys[1:]) if keys[0] == rlds.STEPS else None
  found, columns = reading.statistics.fields.get(name), []
  if found is not None:
    columns = [_column(found, index) for index in np.ndindex(found.min.shape)]
    for one, (at, _) in zip(columns, reading.columns_of(name)):
      one['min_at'], one['max_at'] = reading.ends_at(at)
  ends = [one[end] for one in columns for end in ('min', 'max') if one['count']]
  is_image = excerpts.is_image(spec)
  return {
      'path': paths.name_of(keys),
      'dtype': spec.dtype.name,
      'shape': None if spec.shape.rank is None else spec.shape.as_list(),
      'kind': 'image' if is_image else _KINDS.get(spec.dtype, 'number'),
      'min': min(ends, default=None),
      'max': max(ends, default=None),
      'columns': columns,
  }


def _excerpt(reading, excerpt) -> Dict[str, Any]:
  """Returns an excerpt in plain values."""
  curves: Dict[str, List[Any]] = {one: [] for one in reading.statistics.fields}
  for column, numbers in zip(reading.columns, excerpt['curves'].T):
    # A float32 has 7 digits.
    curve = [_plain(f'{number:.7g}') for number in numbers.tolist()]
    curves[column.field].append(curve)
  return {
      **excerpt,
      'return': _plain(excerpt['return']),
      'steps': excerpt['steps'].tolist(),
      'curves': curves,
  }


def _order(episodes: np.ndarray) -> List[Dict[str, Any]]:
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


def _histograms(reading) -> Dict[str, Dict[str, Any]]:
  """Returns the histograms of lengths, returns, rewards and actions.

  Those of lengths and returns are of all episodes, the others of a sample of
  the steps. See `Description.histograms`.
  """
  episodes = reading.episodes[reading.episodes['num_steps'] > 0]
  found = {}
  for name, key in ('lengths', 'num_transitions'), ('returns', 'return'):
    numbers = episodes[key][np.isfinite(episodes[key])].astype(np.float64)
    found[name] = _histogram(numbers, numbers.size, excerpts.NUM_BARS)
  for field, number, name, offset in reading.columns:
    if field.split('/')[0] in (rlds.REWARD, rlds.ACTION):
      labels = getattr(reading.bounds.get(field), 'names', ())
      count = int(reading.statistics.fields[field].count.ravel()[number])
      sample = reading.samples[offset]
      found[name] = _histogram(sample, count, _MAX_INTEGERS, labels)
  return found


def _histogram(sample, count, max_integers, names=()) -> Dict[str, Any]:
  """Returns the histogram of a sample of `count` numbers."""
  edges, values, labels = np.zeros(0), None, None
  low, high = (sample.min(), sample.max()) if sample.size else (0, 0)
  if low < high and np.any(sample != np.round(sample)):
    edges = np.linspace(low, high, excerpts.NUM_BARS + 1)
  elif low < high:
    # All bars are equally wide: each stands for as many integers.
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
