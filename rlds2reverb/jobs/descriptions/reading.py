"""Reads a data set once, for its description.

The numbers are those of `statistics`. Beside them, a table has a row for each
episode, and some steps of a few episodes are kept as excerpts.
"""

import hashlib
import itertools
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import findings
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import leaves as leaves_lib
from rlds2reverb.trajectories import validation

_MAX_COLUMNS = 64  # of a field, that are shown
_OUTCOMES = ('return', 'num_transitions', 'is_terminal')  # as in `Rows`
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


class Column(NamedTuple):
  """One number of a field.

  Attributes:
    field: the path of the field in a step.
    number: which of its numbers it is.
    name: its name, such as `reward` or `action[2]`.
    offset: which of the numbers of all fields it is.
  """

  field: str
  number: int
  name: str
  offset: int


class Reading:
  """What was found in one pass over a data set.

  Attributes:
    spec: the spec of an episode, and as its steps that of a step, of the fields
      that are read.
    bounds: the bounds of fields, by name. Floats of an action that nothing
      bounds are compared with -1 to 1, without an entry here.
    columns: the numbers that are shown, 64 of a field at most.
    limits: the least and greatest value of each number, float64 `[2, D]`,
      widened a little, as numbers may have been rounded.
    statistics: the statistics of all steps.
    samples: of each number, those that its quantiles are taken from.
    episodes: a structured array with a row for each episode: its `index` in the
      data set; `num_steps`, `num_transitions` and `return`; whether it
      `is_terminal`; the `original`, the first episode of the same content; and
      which of `findings.OF_EPISODES` are true of it, as `odd`. The indices are
      in increasing order.
    kinds: what some steps may show: a kind and a field, or None.
    shown: how many episodes show each of these, and how many steps or numbers,
      int64 `[2, K]`.
    places: the first place of the least number of each column, those of the
      greatest, and those of each kind, int64 `[2 * C + K, 2]`: the episode and
      the step; -1 if there is none.
    excerpts: the episodes that may be shown, by their indices.
  """

  def __init__(
      self,
      rlds_data: tf.data.Dataset,
      *,
      episode_index: Optional[str] = None,
      bounds: Optional[Mapping[str, metadata.Bounds]] = None,
      with_frames: bool = True,
      seed: int = 0,
  ):
    """Reads a data set once.

    Args:
      rlds_data: an RLDS data set, with nested or stacked steps. Fields of
        nested steps whose shape may differ from step to step are left out.
      episode_index: the name of the field of an episode that holds its index in
        the data set, int64 `[]`. By default the episodes are counted from 0.
      bounds: the bounds of fields, by their paths in a step.
      with_frames: whether excerpts have images.
      seed: the seed of the samples.

    Raises:
      ValueError: as `compute_statistics` does; or if there is no field that
        `bounds` name, or they do not fit its shape.
      InvalidArgumentError: if the data cannot be read.
    """
    self.spec = _spec_of(rlds_data.element_spec)
    self._index, steps = episode_index, self.spec[rlds.STEPS]
    self.spec.pop(episode_index, None)
    self._excerpts = excerpts_lib.Excerpts(self.spec, with_frames)
    # Statistics of single pixels are of no use.
    leaves = [
        (keys, leaf)
        for keys, leaf in leaves_lib.choose_leaves(steps, None)
        if keys not in self._excerpts.images
    ]
    self._accumulation = accumulation_lib.Accumulation(
        steps, [keys for keys, _ in leaves], seed=seed
    )
    self.bounds = {
        paths.name_of(paths.find(steps, path)): bound
        for path, bound in (bounds or {}).items()
    }
    self.limits = metadata.limits(leaves, self.bounds)
    fields = [paths.name_of(keys) for keys, _ in leaves]
    sizes = [leaf.shape.num_elements() for _, leaf in leaves]
    self._starts = np.cumsum([0, *sizes])
    self.columns = [
        Column(field, i, f'{field}[{i}]' if size > 1 else field, start + i)
        for field, size, start in zip(fields, sizes, self._starts)
        for i in range(min(size, _MAX_COLUMNS))
    ]
    self.kinds: List[Tuple[str, Optional[str]]] = [
        *itertools.product(findings.OF_STEPS, [None]),
        *itertools.product(findings.OF_FIELDS, fields),
    ]
    self.shown = np.zeros([2, len(self.kinds)], np.int64)
    self.places = np.full([2 * len(self.columns) + len(self.kinds), 2], -1)
    self._greatest = np.full(len(self.places), -np.inf)
    self.excerpts: Dict[int, Dict[str, Any]] = {}
    self._originals: Dict[bytes, int] = {}
    # The episodes that stand for all returns, for all lengths, and for what is
    # odd.
    nothing = np.zeros(0, _EPISODE)
    self._kept = dict.fromkeys(('return', 'num_transitions', 'odd'), nothing)
    self._read(rlds_data)

  def columns_of(self, field: str) -> List[Tuple[int, Column]]:
    """Returns the columns of a field, and where they are in `columns`."""
    return [
        (at, column)
        for at, column in enumerate(self.columns)
        if column.field == field
    ]

  def ends_at(self, at: int) -> List[List[int]]:
    """Returns where the least and the greatest number of a column are."""
    return self.places[[at, len(self.columns) + at]].tolist()

  def _read(self, rlds_data: tf.data.Dataset) -> None:
    used = {self._index, *self._excerpts.instruction[:1]} - {None, rlds.STEPS}
    batches = data_sets.batches_of(
        rlds_data, fields=self.spec[rlds.STEPS], episode_fields=used
    )
    one, records = self._accumulation, [np.zeros(0, _EPISODE)]
    state, add, held = one.empty(), one.adder(), []
    # One at a time: the images of a long episode may take much memory.
    for facts in batching.numbered(batches).map(self._facts_of).prefetch(1):
      batch, rows, are_valid = tf.nest.map_structure(np.asarray, facts)
      records.append(self._add(batch, rows, are_valid))
      held.append(rows)
      if sum(len(block.numbers) for block in held) >= one.block_length:
        state, held = add(state, _joined(held)), []
    if held:
      state = add(state, _joined(held))
    self.episodes = np.concatenate(records)
    self.statistics = one.statistics(state)
    self.samples = state.steps.columns()

  def _facts_of(self, batch: Any) -> Any:
    """Returns what is added of a batch of episodes, in graph mode."""
    steps = {name: batch.steps[name] for name in self.spec[rlds.STEPS]}
    batch = batch._replace(
        steps=stacked_steps.with_equal_lengths(steps),
        episode=batch.fields.get(self._index, batch.episode),
    )
    rows = self._accumulation.rows(batch)
    return batch, rows, validation.judge(batch).is_valid

  def _add(self, batch, rows, are_valid) -> np.ndarray:
    """Adds the episodes of a batch; returns their records."""
    splits = batch.row_splits
    numbers, outcomes = np.split(
        rows.numbers, [-accumulation_lib.NUM_OUTCOMES], 1
    )
    records = np.zeros(len(batch.episode), _EPISODE)
    records['index'], records['num_steps'] = batch.episode, np.diff(splits)
    some = records['num_steps'] > 0
    for name, column in zip(_OUTCOMES, outcomes[splits[1:][some] - 1].T):
      records[name][some] = column
    records['original'] = self._originals_of(batch)
    are_new = records['original'] == batch.episode
    records['odd'], of_steps = findings.look_at(
        batch.steps, splits, are_valid, are_new
    )
    are_finite = np.isfinite(numbers) | ~rows.are_meant[:, : numbers.shape[1]]
    are_outside = (numbers < self.limits[0]) | (numbers > self.limits[1])
    of_steps = np.concatenate(
        [
            of_steps,
            findings.sums(~are_finite, self._starts, 1),
            findings.sums(are_outside, self._starts, 1),
        ],
        axis=1,
    )
    counts = findings.sums(of_steps, splits)
    self.shown += [(counts > 0).sum(0), counts.sum(0)]
    numbers = numbers[:, [column.offset for column in self.columns]]
    are_shown = np.where(of_steps > 0, 1, -np.inf)
    self._find_places([-numbers, numbers, are_shown], batch)
    self._keep_excerpts(batch, records, numbers, of_steps)
    return records

  def _originals_of(self, batch) -> List[int]:
    """Returns the first episodes of the same content, by a hash of it."""
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

  def _find_places(self, values, batch) -> None:
    """Looks for the first of the greatest values in those of a batch."""
    # One more row, as there may be none.
    values = np.pad(np.concatenate(values, 1), [(0, 1), (0, 0)])
    values[~np.isfinite(values)] = values[-1] = -np.inf
    row, greatest = values.argmax(0), values.max(0)
    better = greatest > self._greatest
    self._greatest[better] = greatest[better]
    of = np.searchsorted(batch.row_splits, row[better], 'right') - 1
    steps = row[better] - batch.row_splits[of]
    self.places[better] = np.stack([batch.episode[of], steps], 1)

  def _keep_excerpts(self, batch, records, numbers, of_steps) -> None:
    """Keeps the episodes that may be shown, of a batch and of earlier ones."""
    wanted = set(self.places[:, 0].tolist())
    for name, kept in self._kept.items():
      kept = np.append(kept, records)
      self._kept[name] = kept = kept[_chosen(kept, name)]
      wanted.update(kept['index'].tolist())
    self.excerpts = {
        index: one for index, one in self.excerpts.items() if index in wanted
    }
    for at, index in enumerate(records['index'].tolist()):
      if index in wanted:
        span = slice(*batch.row_splits[at : at + 2])
        odd = [(of > 0).argmax() for of in of_steps[span].T if of.any()]
        ends = self.places[: 2 * len(self.columns)]
        self.excerpts[index] = self._excerpts.make(
            records[at],
            tf.nest.map_structure(lambda leaf: leaf[at], batch.fields),
            tree.map_structure(lambda leaf: leaf[span], batch.steps),
            numbers[span],
            [*ends[ends[:, 0] == index, 1], *odd],
        )


def _chosen(records: np.ndarray, name: str) -> List[int]:
  """Returns which records stand for a column of all of them."""
  if name == 'odd':  # the first episode that shows each
    return [odd.argmax() for odd in records['odd'].T if odd.any()]
  some = np.flatnonzero(records['num_steps'])
  return some[excerpts_lib.spread(records[name][some])].tolist()


def _joined(blocks: List[accumulation_lib.Rows]) -> accumulation_lib.Rows:
  return accumulation_lib.Rows(*map(np.concatenate, zip(*blocks)))


def _spec_of(episode_spec: Any) -> Dict[str, Any]:
  """Returns the spec of an episode, whose steps are a step's fields to read."""
  steps = steps_lib.steps_spec(episode_spec)

  def is_read(field, leaf):
    return isinstance(leaf, tf.TensorSpec) and (
        steps.stacked
        or field in steps_lib.get_rlds_step_features()
        or steps_lib.has_one_shape(leaf)
    )

  step = {
      field: part
      for field, part in steps.step.items()
      if all(is_read(field, leaf) for leaf in tf.nest.flatten(part))
  }
  return {**episode_spec, rlds.STEPS: step}
