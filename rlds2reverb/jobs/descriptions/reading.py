"""Reads a data set once, for its description.

The numbers are those of `statistics`. Beside them, a table has a row for each
episode, and some steps of a few episodes are kept as excerpts.
"""

import hashlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import findings
from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import rows as rows_lib
from rlds2reverb.trajectories import validation

_MAX_COLUMNS = 64  # of a field, that are shown
# A row of `Reading.episodes`. From `return` on, they are those of `rows`.
_EPISODE = np.dtype(
    [
        ('index', np.int64),
        ('num_steps', np.int64),
        ('return', np.float64),
        ('num_transitions', np.int64),
        ('is_terminal', bool),
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
    fields: the names of the fields that have statistics.
    columns: the numbers that are shown, 64 of a field at most.
    limits: the least and greatest value of each number, float64 `[2, D]`,
      widened a little, as numbers may have been rounded.
    statistics: the statistics of all steps.
    samples: the numbers that the quantiles are taken from, by field and column.
    episodes: a structured array with a row for each episode: its `index` in the
      data set; `num_steps`, `num_transitions` and `return`; and whether it
      `is_terminal`. The indices are in increasing order.
    shown: what episodes show, a list of `findings.Shown`.
    places: where the least numbers of all columns are, and the greatest, int64
      `[2, D, 2]`: the episode and the step; -1 if there is none.
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
        for keys, leaf in rows_lib.choose_leaves(steps, None)
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
    self.fields = [paths.name_of(keys) for keys, _ in leaves]
    sizes = [leaf.shape.num_elements() for _, leaf in leaves]
    self._starts = np.cumsum([0, *sizes])
    self.columns = [
        Column(field, i, f'{field}[{i}]' if size > 1 else field, start + i)
        for field, size, start in zip(self.fields, sizes, self._starts)
        for i in range(min(size, _MAX_COLUMNS))
    ]
    self.shown = [
        findings.Shown(kind, None)
        for kind in (*findings.OF_EPISODES, *findings.OF_STEPS)
    ] + [
        findings.Shown(kind, field)
        for kind in ('not_finite', 'outside')
        for field in self.fields
    ]
    self.places = np.full([2, len(self.columns), 2], -1)
    self.excerpts: Dict[int, Dict[str, Any]] = {}
    self._greatest = np.full([2, len(self.columns)], -np.inf)  # of -x and x
    self._originals: Dict[bytes, int] = {}
    # The episodes that stand for all returns and for all lengths.
    nothing = np.zeros(0, _EPISODE)
    self._spread = {name: nothing for name in ('return', 'num_transitions')}
    self._read(rlds_data)

  def _read(self, rlds_data: tf.data.Dataset) -> None:
    used = {self._index, *self._excerpts.instruction[:1]} - {None, rlds.STEPS}
    batches = data_sets.batches_of(
        rlds_data, fields=self.spec[rlds.STEPS], episode_fields=used
    )
    one, records = self._accumulation, [np.zeros(0, _EPISODE)]
    state, add, held = one.empty(), one.adder(), []
    # One at a time: the images of a long episode may take much memory.
    facts_of = graphs.no_autograph(self._facts_of)
    for facts in batching.numbered(batches).map(facts_of).prefetch(1):
      batch, rows, are_valid = tf.nest.map_structure(np.asarray, facts)
      records.append(self._add(batch, rows, are_valid))
      held.append(rows)
      if sum(len(block.numbers) for block in held) >= one.block_length:
        state, held = add(state, _joined(held)), []
    if held:
      state = add(state, _joined(held))
    self.episodes = np.concatenate(records)
    self.statistics, self.samples = one.statistics(state), one.samples(state)

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
    steps, splits, index = batch.steps, batch.row_splits, batch.episode
    numbers = rows.numbers[:, : -rows_lib.NUM_OUTCOMES]
    records = np.zeros(len(index), _EPISODE)
    records['index'], records['num_steps'] = index, np.diff(splits)
    some = records['num_steps'] > 0
    ends = rows.numbers[splits[1:][some] - 1, -rows_lib.NUM_OUTCOMES :]
    for name, column in zip(_EPISODE.names[2:], ends.T):
      records[name][some] = column
    originals = self._originals_of(steps, splits, index)
    of_episodes, of_steps = findings.look_at(
        steps, splits, are_valid, originals == index
    )
    are_odd = (
        (rows.are_meant & ~np.isfinite(rows.numbers))[:, : numbers.shape[1]],
        (numbers < self.limits[0]) | (numbers > self.limits[1]),
    )
    counts = [findings.sums(odd, self._starts, 1) for odd in are_odd]
    of_steps = np.concatenate([of_steps, *counts], 1)
    self._note(of_episodes, of_steps, index, splits, originals)
    numbers = numbers[:, [column.offset for column in self.columns]]
    self._find_places(numbers, index, splits)
    self._keep_excerpts(batch, records, numbers, of_steps)
    return records

  def _originals_of(self, steps, splits, index) -> np.ndarray:
    """Returns the first episodes of the same content, by a hash of it."""
    fields = (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD)
    leaves = tree.flatten([steps[name] for name in fields])
    originals = []
    for at, (begin, end) in enumerate(zip(splits, splits[1:])):
      content = hashlib.blake2b(digest_size=8)
      for leaf in leaves:
        part, is_text = leaf[begin:end], leaf.dtype == object
        content.update(
            str(part.tolist()).encode() if is_text else part.tobytes()
        )
      originals.append(self._originals.setdefault(content.digest(), index[at]))
    return np.array(originals, np.int64)

  def _note(self, of_episodes, of_steps, index, splits, originals) -> None:
    """Notes what episodes show: bool `[E, ...]`, and counts `[N, ...]`."""
    counts = np.concatenate([of_episodes, findings.sums(of_steps, splits)], 1)
    for at in np.flatnonzero(counts.any(0)):
      found = np.flatnonzero(counts[:, at])
      first, one = found[0], self.shown[at]
      if not one.num_episodes:
        one = one._replace(
            episode=int(index[first]), original=int(originals[first])
        )
        if at >= len(findings.OF_EPISODES):
          rows = of_steps[splits[first] :, at - len(findings.OF_EPISODES)]
          one = one._replace(step=int((rows > 0).argmax()))
      self.shown[at] = one._replace(
          num_episodes=one.num_episodes + found.size,
          total=one.total + int(counts[:, at].sum()),
      )

  def _find_places(self, numbers, index, splits) -> None:
    """Looks for the least and the greatest numbers in those of a batch."""
    # One more row, as there may be none.
    both = np.pad(np.stack([-numbers, numbers]), [(0, 0), (0, 1), (0, 0)])
    both[~np.isfinite(both)] = both[:, -1] = -np.inf
    row, greatest = both.argmax(1), both.max(1)
    better = greatest > self._greatest
    self._greatest[better] = greatest[better]
    of = np.searchsorted(splits, row[better], 'right') - 1
    self.places[better] = np.stack([index[of], row[better] - splits[of]], 1)

  def _keep_excerpts(self, batch, records, numbers, of_steps) -> None:
    """Keeps the episodes that may be shown, of a batch and of earlier ones."""
    wanted = {*self.places[..., 0].ravel().tolist()}
    wanted.update(one.episode for one in self.shown)
    for name, kept in self._spread.items():
      kept = np.append(kept, records[records['num_steps'] > 0])
      self._spread[name] = kept[excerpts_lib.spread(kept[name])]
      wanted.update(self._spread[name]['index'].tolist())
    self.excerpts = {
        index: one for index, one in self.excerpts.items() if index in wanted
    }
    for at, index in enumerate(records['index'].tolist()):
      if index in wanted:
        span = slice(*batch.row_splits[at : at + 2])
        odd = [(of > 0).argmax() for of in of_steps[span].T if of.any()]
        self.excerpts[index] = self._excerpts.make(
            records[at],
            tf.nest.map_structure(lambda leaf: leaf[at], batch.fields),
            tree.map_structure(lambda leaf: leaf[span], batch.steps),
            numbers[span],
            [*self.places[self.places[..., 0] == index, 1], *odd],
        )


def _joined(blocks: List[rows_lib.Rows]) -> rows_lib.Rows:
  return rows_lib.Rows(*map(np.concatenate, zip(*blocks)))


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
