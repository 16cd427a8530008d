"""`Description`: what is said of a data set, in plain values."""

import dataclasses
import json
import math
from typing import Any, Dict, List, Optional

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import oddities
from rlds2reverb.jobs.descriptions import one_pass
from rlds2reverb.statistics import compute

_NUM_BINS = 40
_MAX_INTEGER_BINS = 60
_MAX_CURVES = 64  # of an excerpt's field


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
    num_available: the number of episodes that there are, if it is known.
    is_sample: whether only some of them were read.
    counts: the numbers of `episodes` (with and without steps), `empty` ones,
      `steps`, `transitions`, `terminal` and `truncated` episodes.
    returns: the `mean`, `std`, `min`, `max` and `quantiles` of the returns.
    lengths: those of the numbers of transitions.
    fields: a dict for each leaf of an episode: its `path`, `dtype`, `shape`
      (None for an open dimension) and `kind` (number, flag, image or text); its
      `min` and `max`, where they are known; and in `columns` the statistics of
      each of its numbers, where it has any.
    histograms: by name (`lengths`, `returns`, `reward` and, for every number of
      the action, `action[0]` or the like): the `edges` of the bins, the
      `counts`, and of how many numbers `of` they are. `is_whole` says whether
      these are all, and not a sample.
    order: the returns along the data set; see `tallies.OrderedNumbers.bins`.
    oddities: an `oddities.Oddity` each.
    episodes: a dict for each excerpt: the `episode`, its `steps`, and its
      `curves` by field, each a list of columns; the `frame_steps`, and the
      `frames` by field.
    tables: of a Reverb checkpoint, a dict for each table; otherwise empty.
  """

  source: str
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
    collected: one_pass.Collected,
    source: str,
    *,
    num_available: Optional[int] = None,
    is_sample: bool = False,
    tables: Optional[List[Dict[str, Any]]] = None,
) -> Description:
  """Makes a description of what one pass has found.

  Args:
    collected: what was found.
    source: what was read.
    num_available: the number of episodes that there are, if it is known.
    is_sample: whether only some of them were read.
    tables: the tables of a checkpoint.
  """
  statistics = collected.statistics
  return Description(
      source=source,
      num_available=num_available,
      is_sample=is_sample,
      counts={
          'episodes': collected.num_read,
          'empty': collected.num_read - statistics.num_episodes,
          'steps': statistics.num_steps,
          'transitions': statistics.num_transitions,
          'terminal': statistics.num_terminal,
          'truncated': statistics.num_truncated,
      },
      returns=_column(statistics.returns, ()),
      lengths=_column(statistics.lengths, ()),
      fields=_fields(collected),
      histograms=_histograms(collected),
      order=collected.order,
      oddities=[
          dataclasses.asdict(oddity)
          for oddity in oddities.find_oddities(collected)
      ],
      episodes=[_episode(collected, one) for one in collected.excerpts],
      tables=tables or [],
  )


def _plain(number: Any) -> Optional[float]:
  number = float(number)
  return number if math.isfinite(number) else None


def _column(found: compute.FieldStatistics, index) -> Dict[str, Any]:
  """Returns the statistics of one number of a field."""
  return {
      'mean': _plain(found.mean[index]),
      'std': _plain(found.std[index]),
      'min': _plain(found.min[index]),
      'max': _plain(found.max[index]),
      'quantiles': {
          f'{level:g}': _plain(numbers[index])
          for level, numbers in sorted(found.quantiles.items())
      },
      'count': int(found.count[index]),
      'not_finite': int(found.not_finite[index]),
  }


def _fields(collected) -> List[Dict[str, Any]]:
  encoded = [(rlds.STEPS, *keys) for keys in collected.encoded_images]
  fields = []
  for keys, spec in tree.flatten_with_path(collected.spec):
    if not isinstance(spec, tf.TensorSpec):
      continue
    in_steps = keys[0] == rlds.STEPS
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    if in_steps and shape is not None:
      shape = shape[1:]
    name = paths.name_of(keys[1:] if in_steps else keys)
    found = collected.statistics.fields.get(name) if in_steps else None
    low, high = collected.ranges.get(keys, (None, None))
    columns = []
    if found is not None:
      columns = [_column(found, index) for index in np.ndindex(found.min.shape)]
      known = [one for one in columns if one['count']]
      low = min((one['min'] for one in known), default=None)
      high = max((one['max'] for one in known), default=None)
      if name == rlds.REWARD and collected.last_rewards[0]:
        # No transition has them, but they are in the data.
        _, *lasts = collected.last_rewards
        low, high = (
            bound(x for x in (known_bound, last) if x is not None)
            for bound, known_bound, last in zip((min, max), (low, high), lasts)
        )
    fields.append(
        {
            'path': paths.name_of(keys),
            'dtype': spec.dtype.name,
            'shape': shape,
            'kind': _kind(keys, spec, shape, encoded),
            'min': low,
            'max': high,
            'columns': columns,
        }
    )
  return fields


def _kind(keys, spec, shape, encoded) -> str:
  if keys in encoded or (
      shape is not None
      and excerpts_lib.is_image(tf.TensorSpec(shape, spec.dtype))
  ):
    return 'image'
  if spec.dtype == tf.string:
    return 'text'
  return 'flag' if spec.dtype == tf.bool else 'number'


def _histograms(collected) -> Dict[str, Dict[str, Any]]:
  statistics, samples = collected.statistics, collected.samples
  wanted = {
      'lengths': (samples[compute.LENGTHS][0], statistics.lengths.count),
      'returns': (samples[compute.RETURNS][0], statistics.returns.count),
  }
  for field in collected.fields:
    if field.split('/')[0] not in (rlds.REWARD, rlds.ACTION):
      continue
    counts = statistics.fields[field].count.ravel()
    for index, (sample, count) in enumerate(zip(samples[field], counts)):
      name = field if len(counts) == 1 else f'{field}[{index}]'
      wanted[name] = (sample, count)
  return {
      name: _histogram(sample, int(count))
      for name, (sample, count) in wanted.items()
  }


def _histogram(sample: np.ndarray, count: int) -> Dict[str, Any]:
  """Returns the histogram of a sample of `count` numbers."""
  edges = np.array([])
  counts = np.array([], np.int64)
  if sample.size:
    low, high = sample.min(), sample.max()
    if high - low < _MAX_INTEGER_BINS and np.all(sample == np.round(sample)):
      edges = np.arange(low, high + 2) - 0.5  # one bin for each integer
    else:
      edges = np.linspace(low, high, _NUM_BINS + 1)
    counts, _ = np.histogram(sample, edges)
  return {
      'edges': edges.tolist(),
      'counts': counts.tolist(),
      'of': int(counts.sum()),
      'is_whole': sample.size == count,
  }


def _episode(collected, excerpt: excerpts_lib.Excerpt) -> Dict[str, Any]:
  curves = {}
  start = 0
  for field in collected.fields:
    size = collected.statistics.fields[field].min.size
    shown = excerpt.rows[:, start : start + min(size, _MAX_CURVES)]
    curves[field] = [list(map(_plain, column)) for column in shown.T]
    start += size
  return {
      'episode': excerpt.episode,
      'num_steps': int(excerpt.num_steps),
      'return': _plain(excerpt.undiscounted_return),
      'is_terminal': bool(excerpt.is_terminal),
      'steps': excerpt.steps.tolist(),
      'curves': curves,
      'frame_steps': excerpt.frame_steps.tolist(),
      'frames': excerpt.frames,
  }
