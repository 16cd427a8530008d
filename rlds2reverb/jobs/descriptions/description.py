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
from rlds2reverb.jobs.descriptions import findings as findings_lib
from rlds2reverb.jobs.descriptions import histograms as histograms_lib
from rlds2reverb.jobs.descriptions import oddities as oddities_lib
from rlds2reverb.statistics import results

_MAX_BINS = 256  # of the returns along the data set
MAX_RUNS = 16  # of consecutive episodes, in a sample


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
    oddities: an `oddities.Oddity` each.
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
    findings: findings_lib.Findings,
    source: str,
    num_excerpts: int,
    **known: Any,
) -> Description:
  """Makes a description from the findings of one pass.

  Args:
    findings: what was found.
    source: what was read.
    num_excerpts: how many episodes are shown at most.
    **known: other attributes of the description.
  """
  statistics = findings.statistics
  oddities = oddities_lib.find_oddities(findings)
  histograms = histograms_lib.make_histograms(findings)
  shown = histograms_lib.choose_excerpts(
      findings,
      histograms,
      [
          (one.episode, one.kind.replace('_', ' '))
          for one in oddities
          if one.episode is not None
      ],
      num_excerpts,
  )
  histograms_lib.add_places(findings, histograms, [one for one, _ in shown])
  return Description(
      source=source,
      counts={
          'episodes': findings.num_read,
          'empty': findings.num_read - statistics.num_episodes,
          'steps': statistics.num_steps,
          'transitions': statistics.num_transitions,
          'terminal': statistics.num_terminal,
          'truncated': statistics.num_truncated,
      },
      returns=_column(statistics.returns, ()),
      lengths=_column(statistics.lengths, ()),
      fields=_fields(findings),
      histograms=histograms,
      order=_order(findings.episodes, known.get('is_sample', False)),
      oddities=list(map(dataclasses.asdict, oddities)),
      episodes=[_episode(findings, *one) for one in shown],
      **known,
  )


def _plain(number: Any) -> Optional[float]:
  number = float(number)
  return number if math.isfinite(number) else None


def _column(found: results.FieldStatistics, index) -> Dict[str, Any]:
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


def _fields(findings) -> List[Dict[str, Any]]:
  places: Dict[str, list] = {field: [] for field in findings.fields}
  for column, (lowest, highest) in zip(
      findings.columns, findings.extremes.swapaxes(0, 1).tolist()
  ):
    places[column.field].append((lowest, highest))
  fields = []
  for keys, spec in tree.flatten_with_path(findings.spec):
    if not isinstance(spec, tf.TensorSpec):
      continue
    in_steps = keys[0] == rlds.STEPS
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    if in_steps and shape is not None:
      shape = shape[1:]
    name = paths.name_of(keys[1:] if in_steps else keys)
    found = findings.statistics.fields.get(name) if in_steps else None
    columns, low, high = [], None, None
    if found is not None:
      columns = [_column(found, index) for index in np.ndindex(found.min.shape)]
      for column, (lowest, highest) in zip(columns, places[name]):
        column.update(min_at=lowest, max_at=highest)
      known = [one for one in columns if one['count']]
      low = min((one['min'] for one in known), default=None)
      high = max((one['max'] for one in known), default=None)
      lasts = findings.episodes['last_reward']
      lasts = lasts[np.isfinite(lasts) & (lasts != 0)].tolist()
      if name == rlds.REWARD and lasts:
        # Last rewards belong to no transition, but they are in the data.
        low = min(lasts if low is None else [low, *lasts])
        high = max(lasts if high is None else [high, *lasts])
    fields.append(
        {
            'path': paths.name_of(keys),
            'dtype': spec.dtype.name,
            'shape': shape,
            'kind': _kind(spec, shape),
            'min': low,
            'max': high,
            'columns': columns,
        }
    )
  return fields


def _kind(spec, shape) -> str:
  if excerpts.is_image(tf.TensorSpec(shape, spec.dtype)):
    return 'image'
  if spec.dtype == tf.string:
    return 'text'
  return 'flag' if spec.dtype == tf.bool else 'number'


def _order(episodes: np.ndarray, is_sample: bool) -> List[Dict[str, Any]]:
  """Returns the mean and the range of the returns along the data set."""
  episodes = episodes[np.isfinite(episodes['undiscounted_return'])]
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
          'mean': float(part['undiscounted_return'].mean()),
          'min': float(part['undiscounted_return'].min()),
          'max': float(part['undiscounted_return'].max()),
      }
      for begin, part in zip([0, *borders], np.split(episodes, borders))
      if part.size
  ]


def _episode(
    findings: findings_lib.Findings,
    excerpt: excerpts.Excerpt,
    reasons: List[str],
) -> Dict[str, Any]:
  curves: Dict[str, list] = {field: [] for field in findings.fields}
  for column, numbers in zip(findings.columns, excerpt.rows.T):
    curves[column.field].append([_short(number) for number in numbers])
  return {
      'episode': excerpt.episode,
      'num_steps': excerpt.num_steps,
      'num_transitions': excerpt.num_transitions,
      'instruction': excerpt.instruction,
      'return': _plain(excerpt.undiscounted_return),
      'is_terminal': excerpt.is_terminal,
      'reasons': reasons,
      'steps': excerpt.steps.tolist(),
      'curves': curves,
      'frame_steps': excerpts.spread_steps(
          excerpt.num_steps, excerpts.MAX_FRAMES if excerpt.images.size else 0
      ).tolist(),
      'frames': dict(
          zip(map(paths.name_of, findings.images), excerpt.frames())
      ),
  }


def _short(number: float) -> Optional[float]:
  """Returns a number with as many digits as a float32 has."""
  return float(f'{number:.7g}') if math.isfinite(number) else None
