"""Reads a data set once, for its description.

Beside the numbers of `statistics`, a table has a row for each episode, of 8
bytes a field and 100 more, and some steps of a few are kept.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import batching
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import bounds as bounds_lib
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import facts as facts_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import rows as rows_lib

LENGTHS = 'lengths'
RETURNS = 'returns'
# What may be shown besides `facts.CHECKS`.
NOT_FINITE = 'not_finite'
OUTSIDE = 'outside'
DUPLICATES = 'duplicates'

_MAX_COLUMNS = 64  # of a field, that are shown
_MAX_STEPS = 200  # of an episode, that are shown
_TOLERANCE = 1e-6  # How far rounding may take a number beyond its bounds.
_MAX_BATCHED = 32  # Episodes that are looked at together if steps are small.
_MAX_BATCHED_BYTES = 1024


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
    spec: the spec of an episode with stacked steps.
    bounds: the bounds of fields, by name. Floats of an action that nothing
      bounds are compared with -1 to 1, without an entry here.
    fields: the names of the fields that have statistics.
    columns: the numbers that are shown, 64 of a field at most.
    limits: the least and greatest value of each number, float64 `[2, D]`.
    episode_fields: the names of the fields, besides steps, that are used.
    conditions: what an episode may show, each with the field that shows it, or
      None: `facts.CHECKS`, `NOT_FINITE`, `OUTSIDE` and `DUPLICATES`.
    statistics: the statistics of all steps.
    samples: the numbers that the quantiles are taken from, by field and column.
    episodes: a structured array with a row for each episode: its `index` in the
      data set; `num_steps`, `num_transitions` and `undiscounted_return`;
      whether it `is_terminal`; the `last_reward`, which is of no transition, or
      NaN; the `original` that has the same observations, actions and rewards;
      and the step that `shows` each of the conditions, or `facts.WHOLE` or
      `NO`. The indices are in increasing order.
    outside: how many numbers of each field are outside the bounds.
    places: where the least and the greatest number of each column are, int64
      `[2, D, 2]`: the episode and the step; -1 if there is none.
    excerpts: the excerpts of episodes that may be shown, by their indices.
  """

  def __init__(self, accumulation, spec, bounds, index=None, with_frames=True):
    self.spec, self.bounds, self._index = spec, bounds, index
    leaves = accumulation.leaves
    self.limits = bounds_lib.limits(leaves, bounds)
    margin = _TOLERANCE * np.maximum(np.abs(self.limits), 1)
    self._outer = self.limits + [[-1], [1]] * margin
    self.fields = [paths.name_of(keys) for keys, _ in leaves]
    sizes = [leaf.shape.num_elements() for _, leaf in leaves]
    self._starts = np.cumsum([0, *sizes])
    self.columns = [
        Column(
            field,
            number,
            f'{field}[{number}]' * (size > 1) or field,
            start + number,
        )
        for field, size, start in zip(self.fields, sizes, self._starts)
        for number in range(min(size, _MAX_COLUMNS))
    ]
    self._shown = [column.offset for column in self.columns]
    self._images = excerpts_lib.image_leaves(spec) if with_frames else []
    self._instruction = excerpts_lib.find_instruction(spec)
    used = {index, *(self._instruction or ())[:1]}
    self.episode_fields = used - {None, rlds.STEPS}
    self.conditions = [
        *((kind, None) for kind in facts_lib.CHECKS),
        *((NOT_FINITE, field) for field in self.fields),
        *((OUTSIDE, field) for field in self.fields),
        (DUPLICATES, None),
    ]
    self._dtype = np.dtype(
        [
            ('index', np.int64),
            ('num_steps', np.int64),
            ('num_transitions', np.int64),
            ('undiscounted_return', np.float64),
            ('is_terminal', bool),
            ('last_reward', np.float64),
            ('original', np.int64),
            ('shows', np.int32, [len(self.conditions)]),
        ]
    )
    self.outside = np.zeros(len(sizes), np.int64)
    self.places = np.full([2, len(self.columns), 2], -1, np.int64)
    self.excerpts: Dict[int, excerpts_lib.Excerpt] = {}
    self._blocks = [np.zeros(0, self._dtype)]
    self._originals: Dict[bytes, int] = {}
    self._greatest = np.full([2, len(self.columns)], -np.inf)  # of -x and x
    # The first episode that shows each condition, and those that stand for all
    # returns and for all lengths.
    self._firsts: Dict[int, int] = {}
    self._spread = {
        name: (np.zeros(0, np.int64), np.zeros(0))
        for name in ('undiscounted_return', 'num_transitions')
    }

  def add(self, facts: facts_lib.Facts) -> None:
    """Adds the episodes of a batch."""
    block = self._to_block(facts)
    self._blocks.append(block)
    rows = facts.rows[:, self._shown]
    for greatest, places, sign in zip(self._greatest, self.places, (-1, 1)):
      if not rows.size:
        break
      signed = np.where(np.isfinite(rows), sign * rows, -np.inf)
      row = signed.argmax(0)
      numbers = signed[row, np.arange(row.size)]
      better = numbers > greatest
      greatest[better] = numbers[better]
      of = np.searchsorted(facts.batch.row_splits, row[better], 'right') - 1
      step = row[better] - facts.batch.row_splits[of]
      places[better] = np.stack([block['index'][of], step], 1)
    wanted = self._choose(block)
    self.excerpts = {
        episode: excerpt
        for episode, excerpt in self.excerpts.items()
        if episode in wanted
    }
    for at, record in enumerate(block):
      if record['index'] in wanted:
        begin, end = facts.batch.row_splits[at : at + 2]
        self.excerpts[int(record['index'])] = self._excerpt(
            record, facts, at, rows[begin:end]
        )

  def _to_block(self, facts) -> np.ndarray:
    """Returns the rows of `episodes` that a batch has."""
    steps, splits = facts.batch.steps, facts.batch.row_splits
    rows = facts.rows[:, : self._starts[-1]]
    is_outside = (rows < self._outer[0]) | (rows > self._outer[1])
    outside, not_finite = (
        np.diff(np.cumsum(np.pad(found, [(0, 0), (1, 0)]), 1)[:, self._starts])
        for found in (is_outside, facts.not_finite)
    )
    self.outside += outside.sum(0)
    block = np.zeros(len(splits) - 1, self._dtype)
    block['index'] = (
        np.arange(len(block)) + sum(map(len, self._blocks))
        if self._index is None
        else facts.batch.fields[self._index]
    )
    block['num_steps'] = np.diff(splits)
    has_steps = block['num_steps'] > 0
    # The last rows have the outcomes, and one more stands for episodes of none.
    last = np.where(has_steps, splits[1:], 0) - 1
    outcomes = np.pad(facts.rows[:, -rows_lib.NUM_OUTCOMES :], [(0, 1), (0, 0)])
    (
        block['undiscounted_return'],
        block['num_transitions'],
        _,
        block['is_terminal'],
    ) = outcomes[last].T
    block['last_reward'] = np.append(facts_lib.rewards_of(steps), np.nan)[last]
    for record, begin, end in zip(block, splits, splits[1:]):
      content = facts_lib.content_of(steps, begin, end) if end > begin else b''
      record['original'] = self._originals.setdefault(content, record['index'])
    is_repeated = has_steps & (block['original'] != block['index'])
    block['shows'] = np.concatenate(
        [
            facts_lib.check(facts),
            facts_lib.first_steps(not_finite > 0, splits),
            facts_lib.first_steps(outside > 0, splits),
            np.where(is_repeated, facts_lib.WHOLE, facts_lib.NO)[:, np.newaxis],
        ],
        axis=1,
    )
    return block

  def _choose(self, block) -> set:
    """Returns the episodes that may be shown, of these and of earlier ones."""
    rows, shown = np.nonzero(block['shows'] > facts_lib.NO)
    for condition, row in zip(shown.tolist(), rows):
      self._firsts.setdefault(condition, int(block['index'][row]))
    wanted = {*self.places[..., 0].flat, *self._firsts.values()}
    whole = block[block['num_steps'] > 0]
    for name, (episodes, numbers) in self._spread.items():
      episodes = np.append(episodes, whole['index'])
      numbers = np.append(numbers, whole[name])
      chosen = excerpts_lib.spread(numbers)
      self._spread[name] = episodes[chosen], numbers[chosen]
      wanted.update(episodes[chosen])
    return wanted

  def _excerpt(self, record, facts, at, rows) -> excerpts_lib.Excerpt:
    """Returns the excerpt of an episode, with the steps that show something."""
    extreme = self.places[self.places[..., 0] == record['index']][:, 1]
    more = np.array([*record['shows'], *extreme], np.int64)
    frames = excerpts_lib.spread_steps(len(rows), excerpts_lib.MAX_FRAMES)
    steps = excerpts_lib.spread_steps(len(rows), _MAX_STEPS)
    steps = np.unique(np.concatenate([steps, frames, more[more >= 0]]))
    names = [column.name for column in self.columns]
    numbers = dict(zip(names, rows[steps].T))
    for name, key in (
        (LENGTHS, 'num_transitions'),
        (RETURNS, 'undiscounted_return'),
    ):
      numbers[name] = np.where(steps == 0, record[key], np.nan)
    images, instruction = excerpts_lib.take(
        facts.batch, at, self._images, self._instruction
    )
    return excerpts_lib.Excerpt(record, steps, numbers, images, instruction)

  def finish(self, accumulation, state) -> 'Reading':
    """Adds what is known after the last batch."""
    self.episodes = np.concatenate(self._blocks)
    self.statistics = accumulation.statistics(state)
    self.samples = accumulation.samples(state)
    return self


def read_once(
    rlds_data: tf.data.Dataset,
    *,
    episode_index: Optional[str] = None,
    bounds: Optional[Mapping[str, bounds_lib.Bounds]] = None,
    with_frames: bool = True,
    seed: int = 0,
) -> Reading:
  """Reads a data set once.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps. Fields of nested
      steps whose shape may differ from step to step are left out.
    episode_index: the name of the field of an episode that holds its index in
      the data set, int64 `[]`. By default the episodes are counted from 0.
    bounds: the bounds of fields, by their paths in a step.
    with_frames: whether excerpts have images.
    seed: the seed of the samples that quantiles and histograms are taken from.

  Returns:
    What was found.

  Raises:
    ValueError: as `compute_statistics` does; or if there is no field that
      `bounds` name, or they do not fit its shape.
    InvalidArgumentError: if the data cannot be read.
  """
  spec = steps_lib.steps_spec(rlds_data.element_spec)
  step_spec = {
      field: part
      for field, part in spec.step.items()
      if all(
          isinstance(leaf, tf.TensorSpec)
          and (
              spec.stacked
              or field in steps_lib.get_rlds_step_features()
              or steps_lib.has_one_shape(leaf)
          )
          for leaf in tf.nest.flatten(part)
      )
  }
  # Statistics of single pixels are of no use.
  accumulation = accumulation_lib.Accumulation(
      step_spec,
      [
          keys
          for keys, leaf in rows_lib.choose_leaves(step_spec, None)
          if not excerpts_lib.is_image(leaf)
      ],
      seed=seed,
  )
  bounds = {
      paths.name_of(paths.find(step_spec, path)): bound
      for path, bound in (bounds or {}).items()
  }
  reading = Reading(
      accumulation,
      _stacked_spec(rlds_data.element_spec, step_spec, episode_index),
      bounds,
      episode_index,
      with_frames,
  )

  @graphs.no_autograph
  def select(episode):
    steps = stacked_steps.stacked_fields(episode[rlds.STEPS], step_spec)
    fields = {name: episode[name] for name in reading.episode_fields}
    return {**fields, rlds.STEPS: steps}

  @graphs.no_autograph
  def to_facts(batch):
    facts = facts_lib.facts_of(batch, accumulation)
    return facts, accumulation.part(facts.rows)

  # The batches of `Episodes` leave out those whose fields differ in length.
  episodes = tf.data.Dataset.map(
      rlds_data, select, num_parallel_calls=tf.data.AUTOTUNE
  )
  is_small = blocks.step_bytes(step_spec) <= _MAX_BATCHED_BYTES
  batches = batching.batch_together(episodes, _MAX_BATCHED if is_small else 1)
  state = accumulation.empty()
  add = tf.function(accumulation.add, autograph=False, reduce_retracing=True)
  # One at a time: the images of a long episode may take much memory.
  for facts, part in batches.map(to_facts).prefetch(1):
    state = add(state, part)
    reading.add(tf.nest.map_structure(lambda leaf: leaf.numpy(), facts))
  return reading.finish(accumulation, state)


def _stacked_spec(episode_spec, step_spec, episode_index) -> Dict[str, Any]:
  """Returns the spec of an episode whose steps have the fields `step_spec`."""
  time = tf.TensorShape([None])
  return {
      **{name: s for name, s in episode_spec.items() if name != episode_index},
      rlds.STEPS: tf.nest.map_structure(
          lambda leaf: tf.TensorSpec(time.concatenate(leaf.shape), leaf.dtype),
          step_spec,
      ),
  }
