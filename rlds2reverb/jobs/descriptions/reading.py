"""Reads a data set once, for its description.

The numbers are those of `statistics`. Beside them, a table has a row for each
episode, and some steps of a few episodes are kept as excerpts.
"""

import hashlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import last_steps
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
        ('last_reward', np.float64),
        ('return', np.float64),
        ('num_transitions', np.int64),
        ('num_actions', np.int64),
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
      data set; `num_steps`, `num_transitions` and `return`; whether it
      `is_terminal`; and the `last_reward`, which is of no transition, or NaN.
      The indices are in increasing order.
    shown: what episodes show: `(kind, None)` of `findings.CHECKS` or
      `duplicates`; `(kind, field)` of `not_finite` or `outside`. Of each there
      is how many episodes show it, the first of them, its first step that does
      (None if no single one does), the number of all steps or numbers that do,
      and the episode that has the content of the first one.
    places: where the least numbers of all columns are, and then the greatest,
      int64 `[2 D, 2]`: the episode and the step; -1 if there is none.
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
    starts = np.cumsum([0, *sizes])
    self._columns_of = dict(zip(self.fields, map(slice, starts, starts[1:])))
    self.columns = [
        Column(field, i, f'{field}[{i}]' if size > 1 else field, start + i)
        for field, size, start in zip(self.fields, sizes, starts)
        for i in range(min(size, _MAX_COLUMNS))
    ]
    self.shown: Dict[Tuple[str, Optional[str]], List[Any]] = {}
    self.places = np.full([2 * len(self.columns), 2], -1)
    self.excerpts: Dict[int, Dict[str, Any]] = {}
    self.episodes = np.zeros(0, _EPISODE)
    self._greatest = np.full(len(self.places), -np.inf)  # of -x and x
    self._originals: Dict[bytes, int] = {}
    # The episodes that stand for all returns and for all lengths.
    self._spread = {
        name: self.episodes for name in ('return', 'num_transitions')
    }
    self._read(rlds_data)

  def _read(self, rlds_data: tf.data.Dataset) -> None:
    used = {*self._excerpts.instruction[:1]} - {rlds.STEPS}
    batches = data_sets.batches_of(
        rlds_data,
        fields=self.spec[rlds.STEPS],
        episode_fields=used | ({self._index} - {None}),
    )
    batches = batching.numbered(batches)
    one, records = self._accumulation, [self.episodes]
    state = one.empty()
    # One at a time: the images of a long episode may take much memory.
    batches = batches.map(graphs.no_autograph(self._facts_of)).prefetch(1)
    add = one.adder(batches.element_spec[0])
    for part, *facts in batches:
      state = add(state, part)
      facts = tf.nest.map_structure(lambda leaf: leaf.numpy(), facts)
      records.append(self._add(*facts))
    self.episodes = np.concatenate(records)
    self.statistics, self.samples = one.statistics(state), one.samples(state)

  def _facts_of(self, batch: Any) -> Any:
    """Returns what is added of a batch of episodes, in graph mode."""
    batch = batch._replace(
        steps={name: batch.steps[name] for name in self.spec[rlds.STEPS]},
        episode=batch.fields.get(self._index, batch.episode),
    )
    lengths, is_cut = stacked_steps.lengths_of(batch.steps), tf.constant(False)
    if lengths is not None:
      is_cut = ~stacked_steps.are_equal(lengths)
      shortest = tf.reduce_min(lengths.rows)
      batch = batch._replace(
          steps=tf.cond(
              is_cut,
              lambda: stacked_steps.own_rows(batch.steps, 0, shortest),
              lambda: tf.nest.map_structure(tf.identity, batch.steps),
          ),
          row_splits=tf.minimum(batch.row_splits, tf.cast(shortest, tf.int64)),
      )
    one, steps, splits = self._accumulation, batch.steps, batch.row_splits
    outline = validation.with_end(validation.outline_of(steps))
    is_valid = validation.are_valid(outline, splits, 'strict')
    is_last = last_steps.are_last(splits)
    are_meant = rows_lib.are_meant(steps, is_last, one.leaves)
    rows = one.rows(batch)
    return one.part(rows), batch, rows, are_meant, is_valid, is_cut

  def _add(self, batch, rows, are_meant, is_valid, is_cut) -> np.ndarray:
    """Adds the episodes of a batch; returns their records."""
    numbers, outcomes = np.split(rows, [-rows_lib.NUM_OUTCOMES], 1)
    are_odd = {
        'not_finite': are_meant & ~np.isfinite(numbers),
        'outside': (numbers < self.limits[0]) | (numbers > self.limits[1]),
    }
    records = np.zeros(len(is_valid), _EPISODE)
    records['index'], records['last_reward'] = batch.episode, np.nan
    spans = [*map(slice, batch.row_splits, batch.row_splits[1:])]
    shows, steps = [], []
    for at, span in enumerate(spans):
      steps.append(tree.map_structure(lambda leaf: leaf[span], batch.steps))
      one = findings.Episode(steps[at], bool(is_cut), bool(is_valid[at]))
      index = int(records['index'][at])
      if one.length:
        records[at] = index, one.length, one.reward[-1], *outcomes[span][-1]
      found: Dict[Any, Any] = {
          (kind, None): look(one) for kind, (look, _) in findings.CHECKS.items()
      }
      for kind, odd in are_odd.items():
        if odd[span].any():
          found.update(
              ((kind, field), odd[span, columns].sum(1))
              for field, columns in self._columns_of.items()
          )
      original = self._originals.setdefault(_content(steps[at]), index)
      found['duplicates', None] = one.length and original != index
      shows.append(self._note(found, index, original))
    numbers = numbers[:, [column.offset for column in self.columns]]
    self._find_places(numbers, records['index'], batch.row_splits)
    wanted = self._wanted(records[records['num_steps'] > 0])
    self.excerpts = {
        index: one for index, one in self.excerpts.items() if index in wanted
    }
    for at, index in enumerate(records['index'].tolist()):
      if index in wanted:
        extreme = self.places[self.places[:, 0] == index, 1]
        self.excerpts[index] = self._excerpts.make(
            records[at],
            tf.nest.map_structure(lambda leaf: leaf[at], batch.fields),
            steps[at],
            numbers[spans[at]],
            [*extreme, *shows[at]],
        )
    return records

  def _note(self, found, index, original) -> List[int]:
    """Notes what an episode shows; returns the steps that show it."""
    steps = []
    for condition, where in found.items():
      is_whole = not isinstance(where, np.ndarray)
      if where if is_whole else where.any():
        step = None if is_whole else int(np.argmax(where > 0))
        shown = self.shown.setdefault(condition, [0, index, step, 0, original])
        shown[0] += 1
        shown[3] += int(np.sum(where))
        steps += [] if step is None else [step]
    return steps

  def _find_places(self, numbers, index, splits) -> None:
    """Looks for the least and the greatest numbers in those of a batch."""
    both = np.concatenate([-numbers, numbers], 1)
    both[~np.isfinite(both)] = -np.inf
    # One more row, as there may be none.
    both = np.pad(both, [(0, 1), (0, 0)], constant_values=-np.inf)
    row, greatest = both.argmax(0), both.max(0)
    better = greatest > self._greatest
    self._greatest[better] = greatest[better]
    of = np.searchsorted(splits, row[better], 'right') - 1
    self.places[better] = np.stack([index[of], row[better] - splits[of]], 1)

  def _wanted(self, records) -> set:
    """Returns the episodes that may be shown, of these and of earlier ones."""
    wanted = {*self.places[:, 0], *(shown[1] for shown in self.shown.values())}
    for name, kept in self._spread.items():
      kept = np.append(kept, records)
      self._spread[name] = kept[excerpts_lib.spread(kept[name])]
      wanted.update(self._spread[name]['index'])
    return wanted


def _content(steps: Dict[str, Any]) -> bytes:
  """Returns a hash of the observations, actions and rewards of an episode."""
  content = hashlib.blake2b(digest_size=8)
  for name in (rlds.OBSERVATION, rlds.ACTION, rlds.REWARD):
    for leaf in tree.flatten(steps[name]):
      is_text = leaf.dtype == object
      content.update(str(leaf.tolist()).encode() if is_text else leaf.tobytes())
  return content.digest()


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
