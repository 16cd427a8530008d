"""Reads a data set once, for its description.

The pass computes `statistics`, a table with a row for each episode, and
excerpts: some steps of a few episodes, with their numbers and images.
"""

import base64
from collections.abc import Mapping
import dataclasses
import hashlib
import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import findings
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.trajectories import validation

NUM_BARS = 32  # Of histograms of returns and lengths.
NUM_EXTREMES = 3  # Of the best, the worst, and the longest episodes.
_MAX_COLUMNS = 64  # Shown numbers of a field.
_MAX_STEPS = 200  # Of an excerpt.
_MAX_FRAMES = 8
_MAX_IMAGES = 3  # Of a step.
_MAX_SIDE = 128  # Pixels.
_JPEG_QUALITY = 85
# Words in the names of fields with the task of an episode.
_INSTRUCTIONS = ('instruction', 'language', 'task')
_TOLERANCE = 1e-6  # How far rounding may move a number beyond its bounds.
_OUTCOMES = ('return', 'num_transitions', 'is_terminal')  # As in `NumberRows`.
# A row of `Reading.episodes`.
_EPISODE = np.dtype(
    [
        ('index', np.int64),
        ('num_steps', np.int64),
        ('return', np.float64),
        ('num_transitions', np.int64),
        ('is_terminal', bool),
        ('original', np.int64),
        ('odd', bool, len(findings.OF_EPISODES)),
    ]
)


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The bounds of a field.

  Attributes:
    low: the minimum, a number or an array of the field's shape.
    high: the maximum.
    source: the origin of the bounds, such as `the features of the data set`.
    names: the names of the integers from `low` to `high`, if they have names.
  """

  low: Any
  high: Any
  source: str
  names: tuple[str, ...] = ()


class Component(NamedTuple):
  """A component of a field: one of its numbers.

  Attributes:
    field: the path of the field in a step.
    number: its index in the flattened field.
    name: its name, such as `reward` or `action[2]`.
    offset: its index in the concatenated numbers of all fields.
  """

  field: str
  number: int
  name: str
  offset: int


class Reading:
  """The results of one pass over a data set.

  Attributes:
    spec: the spec of an episode, with the spec of a step as its steps, of the
      read fields.
    bounds: the bounds of fields, by name. Floats of an action without bounds
      are compared with -1 to 1, without an entry here.
    columns: the numbers to show, at most 64 of a field.
    limits: the minimum and maximum of each number, float64 `[2, D]`, with a
      tolerance for rounding.
    statistics: the statistics of all steps.
    samples: the sample of each number, for its quantiles.
    episodes: a structured array with a row for each episode: its `index` in the
      data set; `num_steps`, `num_transitions` and `return`; whether it
      `is_terminal`; the `original`, the first episode with the same content;
      and which of `findings.OF_EPISODES` apply to it, as `odd`. The indices are
      increasing.
    kinds: kinds of findings in steps, each with a field or None.
    shown: the number of episodes with each kind, and of steps or numbers, int64
      `[2, K]`.
    places: the first episode and step of the minimum of each column, of each
      maximum, and of each kind, int64 `[2 * C + K, 2]`; -1 for none.
    excerpts: candidates for excerpts, by the index of the episode.
  """

  def __init__(
      self,
      rlds_data: tf.data.Dataset,
      *,
      episode_index: str | None = None,
      bounds: Mapping[str, Bounds] | None = None,
      with_frames: bool = True,
      seed: int = 0,
  ):
    """Reads a data set once.

    Args:
      rlds_data: an RLDS data set, with nested or stacked steps. Fields of
        nested steps with a variable shape are skipped.
      episode_index: the episode field with the index in the data set, int64
        `[]`. By default the episodes are counted from 0.
      bounds: the bounds of fields, by their paths in a step.
      with_frames: whether excerpts have images.
      seed: the seed of the samples.

    Raises:
      ValueError: as `compute_statistics` does; or if a field of `bounds` does
        not exist or has another shape.
      InvalidArgumentError: if the data cannot be read.
    """
    self.spec = _make_spec(rlds_data.element_spec)
    self._index, steps = episode_index, self.spec[rlds.STEPS]
    if episode_index is not None:
      self.spec.pop(episode_index, None)
    self._excerpts = Excerpts(self.spec, with_frames)
    # Statistics of single pixels are of no use.
    leaves = [
        (keys, leaf)
        for keys, leaf in accumulation_lib.choose_leaves(steps, None)
        if keys not in self._excerpts.images
    ]
    self._accumulation = accumulation_lib.Accumulation(
        steps, [keys for keys, _ in leaves], seed=seed
    )
    self.bounds = {
        paths.name_of(paths.find(steps, path)): bound
        for path, bound in (bounds or {}).items()
    }
    self.limits = compute_limits(leaves, self.bounds)
    fields = [paths.name_of(keys) for keys, _ in leaves]
    sizes = [leaf.shape.num_elements() for _, leaf in leaves]
    self._starts = np.cumsum([0, *sizes])
    self.columns = [
        Component(field, i, f'{field}[{i}]' if size > 1 else field, start + i)
        for field, size, start in zip(fields, sizes, self._starts)
        for i in range(min(size, _MAX_COLUMNS))
    ]
    self.kinds: list[tuple[str, str | None]] = [
        *itertools.product(findings.OF_STEPS, [None]),
        *itertools.product(findings.OF_FIELDS, fields),
    ]
    self.shown = np.zeros([2, len(self.kinds)], np.int64)
    self.places = np.full([2 * len(self.columns) + len(self.kinds), 2], -1)
    self._greatest = np.full(len(self.places), -np.inf)
    self.excerpts: dict[int, dict[str, Any]] = {}
    self._originals: dict[bytes, int] = {}
    self._cameras = {
        keys: findings.CameraCheck(paths.name_of(keys))
        for keys, leaf in tree.flatten_with_path(steps)
        if keys in self._excerpts.images or leaf.dtype == tf.string
    }
    # Episodes that represent all returns, lengths and findings.
    self._representatives = dict.fromkeys(
        ('return', 'num_transitions', 'odd'), np.zeros(0, _EPISODE)
    )
    self._is_last_dropped = episode_dataset.is_last_transition_dropped(
        rlds_data
    )
    self._read(rlds_data)

  @property
  def cameras(self) -> list[findings.CameraCheck]:
    """The results for fields with images, decoded or encoded."""
    return list(self._cameras.values())

  def columns_of(self, field: str) -> list[tuple[int, Component]]:
    """Returns the columns of a field with their indices in `columns`."""
    return [
        (index, column)
        for index, column in enumerate(self.columns)
        if column.field == field
    ]

  def find_extremes(self, index: int) -> list[list[int]]:
    """Returns the places of the minimum and maximum of a column."""
    return self.places[[index, len(self.columns) + index]].tolist()

  def _read(self, rlds_data: tf.data.Dataset) -> None:
    used: set[Any] = {self._index}
    if self._excerpts.instruction:
      used.add(self._excerpts.instruction[0])
    used -= {None, rlds.STEPS}
    batches = episode_dataset.batches_of(
        rlds_data,
        fields=self.spec[rlds.STEPS],
        episode_fields=used,
        with_faults=True,
    )
    accumulation, records = self._accumulation, [np.zeros(0, _EPISODE)]
    state, add = accumulation.empty(), accumulation.adder()
    pending: list[accumulation_lib.NumberRows] = []
    # One at a time: the images of a long episode may take much memory.
    for values in (
        episode_dataset.number_episodes(batches)
        .map(self._compute_rows)
        .prefetch(1)
    ):
      batch, rows, are_valid = tf.nest.map_structure(np.asarray, values)
      records.append(self._add(batch, rows, are_valid))
      pending.append(rows)
      num_rows = sum(len(block.numbers) for block in pending)
      if num_rows >= accumulation.block_length:
        state, pending = add(state, _concatenate(pending)), []
    if pending:
      state = add(state, _concatenate(pending))
    self.episodes = np.concatenate(records)
    self.statistics = accumulation.statistics(state)
    self.samples = state.steps.get_columns()

  def _compute_rows(self, batch: Any) -> Any:
    """Returns a batch, its rows, and which episodes are valid, in a graph."""
    steps = {name: batch.steps[name] for name in self.spec[rlds.STEPS]}
    batch = batch._replace(
        steps=steps_lib.check_equal_lengths(steps),
        episode=batch.fields.get(self._index, batch.episode),
    )
    rows = self._accumulation.rows(batch)
    return batch, rows, validation.validate(batch).is_valid

  def _add(self, batch, rows, are_valid) -> np.ndarray:
    """Adds the episodes of a batch; returns their records."""
    splits = batch.row_splits
    numbers, outcomes = np.split(
        rows.numbers, [-accumulation_lib.NUM_OUTCOMES], 1
    )
    records = np.zeros(len(batch.episode), _EPISODE)
    records['index'], records['num_steps'] = batch.episode, np.diff(splits)
    has_steps = records['num_steps'] > 0
    for name, column in zip(_OUTCOMES, outcomes[splits[1:][has_steps] - 1].T):
      records[name][has_steps] = column
    records['original'] = self._find_originals(batch)
    are_new = records['original'] == batch.episode
    is_fault = batch.fault != () and bool(batch.fault.rule)
    for keys, camera in self._cameras.items():
      frames = paths.get(batch.steps, keys)
      for index, begin, end in zip(batch.episode.tolist(), splits, splits[1:]):
        camera.add(index, frames[begin:end])
    records['odd'], odd_steps = findings.check_episodes(
        batch.steps,
        splits,
        are_valid,
        are_new,
        self._is_last_dropped,
        is_fault,
    )
    are_finite = np.isfinite(numbers) | ~rows.mask[:, : numbers.shape[1]]
    are_outside = (numbers < self.limits[0]) | (numbers > self.limits[1])
    odd_steps = np.concatenate(
        [
            odd_steps,
            findings.sums(~are_finite, self._starts, 1),
            findings.sums(are_outside, self._starts, 1),
        ],
        axis=1,
    )
    counts = findings.sums(odd_steps, splits)
    self.shown += [(counts > 0).sum(0), counts.sum(0)]
    numbers = numbers[:, [column.offset for column in self.columns]]
    is_odd = np.where(odd_steps > 0, 1, -np.inf)
    self._update_places([-numbers, numbers, is_odd], batch)
    self._update_excerpts(batch, records, numbers, odd_steps)
    return records

  def _find_originals(self, batch) -> list[int]:
    """Returns the first episodes with the same content, by its hash."""
    fields = (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD)
    leaves = tree.flatten([batch.steps[name] for name in fields])
    originals, splits = [], batch.row_splits
    for index, begin, end in zip(batch.episode.tolist(), splits, splits[1:]):
      content = hashlib.blake2b(digest_size=8)
      for leaf in leaves:
        part, is_text = leaf[begin:end], leaf.dtype == object
        content.update(
            str(part.tolist()).encode() if is_text else part.tobytes()
        )
      originals.append(self._originals.setdefault(content.digest(), index))
    return originals

  def _update_places(self, values, batch) -> None:
    """Updates the places of the maxima of values with a batch."""
    # Adds a row, as the batch may be empty.
    values = np.pad(np.concatenate(values, 1), [(0, 1), (0, 0)])
    values[~np.isfinite(values)] = values[-1] = -np.inf
    row, greatest = values.argmax(0), values.max(0)
    better = greatest > self._greatest
    self._greatest[better] = greatest[better]
    index = np.searchsorted(batch.row_splits, row[better], 'right') - 1
    steps = row[better] - batch.row_splits[index]
    self.places[better] = np.stack([batch.episode[index], steps], 1)

  def _update_excerpts(self, batch, records, numbers, odd_steps) -> None:
    """Updates the candidates for excerpts with the episodes of a batch."""
    wanted = set(self.places[:, 0].tolist())
    for name, earlier in self._representatives.items():
      candidates = np.append(earlier, records)
      chosen = candidates[_choose_representatives(candidates, name)]
      self._representatives[name] = chosen
      wanted.update(chosen['index'].tolist())
    self.excerpts = {
        index: excerpt
        for index, excerpt in self.excerpts.items()
        if index in wanted
    }
    for i, index in enumerate(records['index'].tolist()):
      if index in wanted:
        span = slice(*batch.row_splits[i : i + 2])
        odd = [(kind > 0).argmax() for kind in odd_steps[span].T if kind.any()]
        extremes = self.places[: 2 * len(self.columns)]
        self.excerpts[index] = self._excerpts.make(
            records[i],
            tf.nest.map_structure(lambda leaf: leaf[i], batch.fields),
            tree.map_structure(lambda leaf: leaf[span], batch.steps),
            numbers[span],
            [*extremes[extremes[:, 0] == index, 1], *odd],
        )


def _choose_representatives(records: np.ndarray, name: str) -> list[int]:
  """Returns the indices of records that represent a column of all records."""
  if name == 'odd':  # The first episode of each kind.
    return [odd.argmax() for odd in records['odd'].T if odd.any()]
  nonempty = np.flatnonzero(records['num_steps'])
  return nonempty[spread(records[name][nonempty])].tolist()


def _concatenate(
    blocks: list[accumulation_lib.NumberRows],
) -> accumulation_lib.NumberRows:
  return accumulation_lib.NumberRows(*map(np.concatenate, zip(*blocks)))


def _make_spec(episode_spec: Any) -> dict[str, Any]:
  """Returns the spec of an episode, with the read fields of a step as steps."""
  steps = steps_lib.get_steps_spec(episode_spec)

  def is_read(field, leaf):
    return isinstance(leaf, tf.TensorSpec) and (
        steps.stacked
        or field in steps_lib.get_rlds_step_features()
        or steps_lib.has_static_shape(leaf)
    )

  step = {
      field: part
      for field, part in steps.step.items()
      if all(is_read(field, leaf) for leaf in tf.nest.flatten(part))
  }
  return {**episode_spec, rlds.STEPS: step}


def compute_limits(leaves: Any, bounds: Mapping[str, Bounds]) -> np.ndarray:
  """Returns the minimum and maximum of each number, float64 `[2, D]`.

  They include a tolerance for rounding.

  Args:
    leaves: the keys and the specs of fields with columns.
    bounds: the bounds of fields, by name. By default floats of an action are
      bounded by -1 and 1.

  Raises:
    ValueError: if a field does not exist or has another shape.
  """
  fields = {paths.name_of(keys): (keys, spec) for keys, spec in leaves}
  for name in bounds.keys() - fields:
    raise ValueError(
        f'{name} cannot have bounds. The fields that can are {list(fields)}.'
    )
  ends = [np.zeros([2, 0])]
  for name, (keys, spec) in fields.items():
    is_unit = keys[0] == rlds.ACTION and spec.dtype.is_floating
    end = 1.0 if is_unit else np.inf
    bound = bounds.get(name, Bounds(-end, end, ''))
    try:
      pair = [np.broadcast_to(n, spec.shape) for n in (bound.low, bound.high)]
    except ValueError as e:
      raise ValueError(
          f'The bounds of {name} must have its shape {spec.shape}, but they are'
          f' {bound.low} and {bound.high}.'
      ) from e
    ends.append(np.reshape(pair, [2, spec.shape.num_elements()]))
  low, high = np.concatenate(ends, 1, dtype=np.float64)
  low -= _TOLERANCE * np.maximum(np.abs(low), 1)
  return np.stack([low, high + _TOLERANCE * np.maximum(np.abs(high), 1)])


class Excerpts:
  """Makes excerpts of episodes with a given spec.

  Attributes:
    images: the keys, in a step, of all images.
    instruction: the keys, in an episode, of a text with its task, or empty.
  """

  def __init__(self, spec: dict[str, Any], with_frames: bool = True):
    """Takes the spec of an episode, with the spec of a step as its steps."""
    self.images = [
        keys
        for keys, leaf in tree.flatten_with_path(spec[rlds.STEPS])
        if is_image(leaf)
    ]
    self._shown = self.images[:_MAX_IMAGES] if with_frames else []
    texts = [
        keys
        for keys, leaf in tree.flatten_with_path(spec)
        if any(word in str(keys[-1]) for word in _INSTRUCTIONS)
        and leaf == tf.TensorSpec([], tf.string)
    ]
    # Prefers fields of steps.
    is_of_episode = lambda keys: keys[0] != rlds.STEPS
    self.instruction: paths.KeyPath = min(texts, key=is_of_episode, default=())

  def make(
      self,
      record: np.void,
      fields: dict[str, Any],
      steps: dict[str, Any],
      numbers: np.ndarray,
      shown: list[int],
  ) -> dict[str, Any]:
    """Makes the excerpt of an episode.

    Args:
      record: its row in `Reading.episodes`.
      fields: its fields except for `steps`.
      steps: its steps, `[T, ...]`.
      numbers: its numbers, float64 `[T, D]`.
      shown: steps to include.

    Returns:
      An entry of `Description.episodes`, whose `curves` are the numbers of its
      steps, float64 `[S, D]`.
    """
    frames = _spread_steps(len(numbers), _MAX_FRAMES)
    curve = _spread_steps(len(numbers), _MAX_STEPS)
    rows = np.unique([*curve, *frames, *shown]).astype(np.int64)
    texts = np.array([b''])
    if self.instruction:
      texts = paths.get({**fields, rlds.STEPS: steps}, self.instruction)
    return {
        'episode': int(record['index']),
        'num_steps': len(numbers),
        'num_transitions': int(record['num_transitions']),
        'instruction': b''.join(np.ravel(texts)[:1]).decode(errors='replace'),
        'return': float(record['return']),
        'is_terminal': bool(record['is_terminal']),
        'reasons': [],
        'steps': rows,
        'curves': numbers[rows],
        'frame_steps': frames.tolist() if self._shown else [],
        'frames': {
            paths.name_of(keys): [*map(to_jpeg, paths.get(steps, keys)[frames])]
            for keys in self._shown
        },
    }


def is_image(spec: Any) -> bool:
  """Returns whether a leaf of a step with this spec is a decoded image."""
  return (
      spec.dtype in (tf.uint8, tf.uint16)
      and spec.shape.rank == 3
      and spec.shape[-1] in (1, 3, 4)
  )


def _spread_steps(length: int, count: int) -> np.ndarray:
  """Returns at most `count` steps of `length`, including the last one."""
  count = min(length, count)
  return np.arange(count) * (length - 1) // max(count - 1, 1)


def spread(numbers: np.ndarray) -> np.ndarray:
  """Returns the indices of numbers that represent all `numbers` `[N]`.

  They include the three smallest and the three largest finite numbers, and a
  number of each nonempty interval that is as wide as the range divided by
  `NUM_BARS`. This remains true if numbers are added to the chosen ones, and
  these are chosen from again.
  """
  order = np.argsort(numbers, kind='stable')
  order = order[np.isfinite(numbers[order])]
  if not order.size:
    return order
  ranked = numbers[order]
  width = (ranked[-1] - ranked[0]) / NUM_BARS or 1.0
  cells = np.floor((ranked - ranked[0]) / width)
  # An interval contains the first or the last number of a cell.
  chosen = np.diff(cells, prepend=-1) != 0
  chosen |= np.diff(cells, append=-1) != 0
  chosen[:NUM_EXTREMES] = chosen[-NUM_EXTREMES:] = True
  return order[chosen]


def to_jpeg(image: np.ndarray) -> str:
  """Downscales an image `[H, W, C]`, and encodes it as JPEG in base64."""
  is_deep = image.dtype == np.uint16
  image = image.astype(np.float32)
  if is_deep:
    image = image / max(image.max(), 1) * 255
  height, width, channels = image.shape
  scale = _MAX_SIDE / max(height, width)
  if scale < 1:
    small = [max(int(side * scale), 1) for side in (height, width)]
    image = tf.image.resize(image, small, 'area').numpy()
  image = np.clip(np.round(image), 0, 255).astype(np.uint8)
  # JPEG has no alpha channel.
  image = np.repeat(image, 3, 2) if channels == 1 else image[..., :3]
  jpeg = tf.io.encode_jpeg(image, quality=_JPEG_QUALITY).numpy()
  return base64.b64encode(jpeg).decode()
