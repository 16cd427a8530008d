"""Reads a data set once, and collects what a description is made of.

The facts of each episode are made in graph mode, of several episodes in
parallel. Blocks of episodes are then added up. The memory that this takes does
not grow with the data, apart from 16 bytes for each episode: its index, and the
hash by which an episode that comes twice is found.
"""

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import facts as facts_lib
from rlds2reverb.jobs.descriptions import tallies
from rlds2reverb.statistics import compute
from rlds2reverb.statistics import moments as moments_lib
from rlds2reverb.statistics import rows as rows_lib

# AutoGraph would take a second to find that nothing here needs it.
_no_autograph = tf.autograph.experimental.do_not_convert

_MAX_EPISODES_PER_BLOCK = 256
_UNIT = (-1.0, 1.0)
# What a number may exceed its bounds by, for rounding.
_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The bounds of a field.

  Attributes:
    low: the least value, one number or an array of the field's shape.
    high: the greatest value.
    source: what says so, such as `the features of the data set`.
  """

  low: Any
  high: Any
  source: str


@dataclasses.dataclass(frozen=True)
class Duplicates:
  """Episodes that have the same content as an earlier one.

  Attributes:
    count: how many there are.
    first: the index of one of them; -1 if there is none.
    of: the index of the episode that it repeats.
  """

  count: int
  first: int = -1
  of: int = -1


@dataclasses.dataclass(frozen=True)
class Collected:
  """The result of one pass over a data set.

  Attributes:
    spec: the spec of an episode with stacked steps.
    num_read: the number of episodes, those without steps included.
    statistics: the statistics of the data set.
    samples: the samples of `Accumulation.samples`.
    fields: the names of the fields that have statistics, in the order of the
      columns of an excerpt's rows.
    ranges: the least and the greatest number of each leaf without statistics,
      by its keys in an episode.
    order: the returns along the order of the episodes.
    checks: of `facts.CHECKS`.
    not_finite: of `fields`: which hold NaN or infinities.
    outside: of `fields`: which have values outside their bounds.
    outside_values: how many values of each of `fields` are outside.
    bounds: the bounds of fields, by name. Floats of an action that nothing
      bounds are held against -1 to 1, without an entry here.
    duplicates: what is there twice.
    last_rewards: of the rewards of last steps that are finite and not 0: their
      sum, the least and the greatest; 0 and infinities if there are none.
    excerpts: in the order of the data set.
    encoded_images: the keys, in a step, of leaves that hold encoded images.
  """

  spec: Dict[str, Any]
  num_read: int
  statistics: compute.Statistics
  samples: Dict[str, List[np.ndarray]]
  fields: List[str]
  ranges: Dict[paths.Keys, Tuple[float, float]]
  order: List[Dict[str, Any]]
  checks: tallies.Tally
  not_finite: tallies.Tally
  outside: tallies.Tally
  outside_values: np.ndarray
  bounds: Mapping[str, Bounds]
  duplicates: Duplicates
  last_rewards: Tuple[float, float, float]
  excerpts: List[excerpts_lib.Excerpt]
  encoded_images: Sequence[paths.Keys]


def read_once(
    rlds_data: tf.data.Dataset,
    *,
    episode_index: Optional[str] = None,
    bounds: Optional[Mapping[str, Bounds]] = None,
    encoded_images: Sequence[paths.Path] = (),
    num_excerpts: int = 12,
    seed: int = 0,
) -> Collected:
  """Reads a data set once.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps. Fields of nested
      steps whose shape may differ from step to step are left out.
    episode_index: the name of the field of an episode that holds its index in
      the data set, int64 `[]`. By default the episodes are counted from 0.
    bounds: the bounds of fields, by their paths in a step.
    encoded_images: the paths, in a step, of strings that hold encoded images.
    num_excerpts: the number of episodes of which there are excerpts.
    seed: the seed of all samples.

  Returns:
    What was found.

  Raises:
    ValueError: as `compute_statistics` does; or if there is no field that
      `bounds` or `encoded_images` name, or the bounds do not fit its shape.
    InvalidArgumentError: if the data cannot be read.
  """
  spec = steps_lib.steps_spec(rlds_data)
  fields = [
      field
      for field, part in spec.step.items()
      if spec.stacked
      or field in steps_lib.get_rlds_step_features()
      or all(map(steps_lib.has_one_shape, tf.nest.flatten(part)))
  ]
  step_spec = {
      field: spec.step[field]
      for field in fields
      if all(
          isinstance(leaf, tf.TensorSpec)
          for leaf in tf.nest.flatten(spec.step[field])
      )
  }
  stacked_spec = _stacked_spec(rlds_data.element_spec, step_spec)
  stacked_spec.pop(episode_index, None)
  # Statistics of single pixels say nothing.
  accumulation = compute.Accumulation(
      step_spec,
      [
          keys
          for keys, leaf in rows_lib.choose_leaves(step_spec, None)
          if not excerpts_lib.is_image(leaf)
      ],
      seed=seed,
  )
  encoded = [paths.find(step_spec, path) for path in encoded_images]
  images = excerpts_lib.image_leaves(step_spec, encoded)
  bounds = {
      paths.name_of(paths.find(step_spec, path)): bound
      for path, bound in (bounds or {}).items()
  }
  limits = _limits(accumulation, bounds)
  others = facts_lib.other_leaves(stacked_spec, accumulation)

  def to_facts(position, episode):
    index = position if episode_index is None else episode[episode_index]
    steps = episode[rlds.STEPS]
    if not spec.stacked:
      steps = steps_lib.stack_steps(
          steps.map(lambda step: {name: step[name] for name in step_spec})
      )
    steps, is_cut = facts_lib.with_equal_lengths(
        {name: steps[name] for name in step_spec}
    )
    episode = {**episode, rlds.STEPS: steps}
    facts = facts_lib.facts_of(
        index, episode, is_cut, accumulation, limits, list(others), encoded
    )
    slot = excerpts_lib.draw_slot(position, num_excerpts, seed)
    excerpt = excerpts_lib.take(
        steps,
        facts.rows[:, : -rows_lib.NUM_OUTCOMES],
        images,
        slot < num_excerpts,
    )
    return facts, position, slot, excerpt

  noted = rlds_data.enumerate().map(
      _no_autograph(to_facts), num_parallel_calls=tf.data.AUTOTUNE
  )
  collector = _Collector(accumulation, len(others), num_excerpts, images)
  for block in _in_blocks(noted, accumulation.block_length):
    collector.add(*block)
  return collector.collected(stacked_spec, others, bounds, encoded)


def _stacked_spec(episode_spec, step_spec) -> Dict[str, Any]:
  """Returns the spec of an episode whose steps have the fields `step_spec`."""
  return {
      **episode_spec,
      rlds.STEPS: tf.nest.map_structure(
          lambda leaf: tf.TensorSpec(
              None if leaf.shape.rank is None else [None, *leaf.shape],
              leaf.dtype,
          ),
          step_spec,
      ),
  }


def _limits(accumulation, bounds) -> Tuple[np.ndarray, np.ndarray]:
  """Returns the least and the greatest value of each column."""
  names = [paths.name_of(keys) for keys, _ in accumulation.leaves]
  for name in bounds:
    if name not in names:
      raise ValueError(
          f'{name} cannot have bounds. The fields that can are {names}.'
      )
  lows, highs = [np.zeros(0)], [np.zeros(0)]
  for field, (keys, spec) in zip(names, accumulation.leaves):
    low, high = -np.inf, np.inf
    if field in bounds:
      low, high = bounds[field].low, bounds[field].high
    elif keys[0] == rlds.ACTION and spec.dtype.is_floating:
      low, high = _UNIT
    for name, values, bound, sign in (
        ('low', lows, low, -1),
        ('high', highs, high, 1),
    ):
      bound = np.asarray(bound, np.float64)
      try:
        bound = np.broadcast_to(bound, spec.shape.as_list()).ravel()
      except ValueError as e:
        raise ValueError(
            f'The bounds of {field} must have its shape {spec.shape},'
            f' but {name} is {bound}.'
        ) from e
      values.append(bound + sign * _TOLERANCE * np.maximum(np.abs(bound), 1))
  return np.concatenate(lows), np.concatenate(highs)


def _in_blocks(noted, block_length) -> tf.data.Dataset:
  """Stacks episodes of about the same length, `block_length` steps in all."""

  def key(facts, *unused_rest):
    length = tf.cast(tf.maximum(facts.num_steps, 1), tf.float64)
    return tf.cast(tf.math.log(length) / np.log(2.0), tf.int64)

  def size(key):
    fitting = tf.bitwise.right_shift(tf.constant(block_length, tf.int64), key)
    return tf.clip_by_value(fitting, 1, _MAX_EPISODES_PER_BLOCK)

  def stack(facts, *rest):
    rows = facts.rows
    if isinstance(rows, tf.RaggedTensor):
      rows = rows.values
    else:  # All episodes are known to have one length.
      rows = tf.reshape(rows, [-1, rows.shape[-1]])
    return facts._replace(rows=rows), moments_lib.of_block(rows), *rest

  return (
      noted.group_by_window(
          key,
          lambda key, window: window.ragged_batch(size(key)),
          window_size_func=size,
      )
      .map(stack, num_parallel_calls=tf.data.AUTOTUNE)
      .prefetch(1)
  )


class _Collector:
  """Adds up blocks of facts."""

  def __init__(self, accumulation, num_others, num_excerpts, images):
    self._accumulation = accumulation
    self._images = images
    self._state = accumulation.empty()
    spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, self._state)
    self._add_rows = tf.function(
        accumulation.add,
        input_signature=[
            spec,
            spec.moments,
            tf.TensorSpec([None, accumulation.width], tf.float64),
        ],
        autograph=False,
    )
    sizes = [leaf.shape.num_elements() for _, leaf in accumulation.leaves]
    self._columns_of = np.repeat(np.arange(len(sizes)), sizes)
    self._checks = tallies.Tally(len(facts_lib.CHECKS))
    self._not_finite = tallies.Tally(len(sizes))
    self._outside = tallies.Tally(len(sizes))
    self._outside_values = np.zeros(len(sizes), np.int64)
    self._order = tallies.OrderedNumbers()
    self._lows = np.full(num_others, np.inf)
    self._highs = np.full(num_others, -np.inf)
    # The places, indices and hashes of the episodes.
    self._contents: List[np.ndarray] = []
    self._last_rewards = (0.0, np.inf, -np.inf)
    self._excerpts: Dict[int, Tuple[int, excerpts_lib.Excerpt]] = {}
    self._num_excerpts = num_excerpts
    self._num_read = 0

  def add(self, facts, moments, positions, slots, excerpts) -> None:
    """Adds a block of episodes."""
    self._state = self._add_rows(self._state, moments, facts.rows)
    facts = facts._replace(rows=None)
    facts = facts_lib.Facts(
        *(None if leaf is None else leaf.numpy() for leaf in facts)
    )
    positions, slots = positions.numpy(), slots.numpy()
    self._num_read += len(positions)
    self._checks.add(facts.episode, facts.checks, facts.check_steps)
    for tally, steps in (
        (self._not_finite, facts.not_finite),
        (self._outside, facts.outside_steps),
    ):
      steps = self._of_fields(steps)
      tally.add(facts.episode, steps >= 0, steps)
    np.add.at(self._outside_values, self._columns_of, facts.outside.sum(0))
    self._lows = np.minimum(self._lows, facts.lows.min(0, initial=np.inf))
    self._highs = np.maximum(self._highs, facts.highs.max(0, initial=-np.inf))
    last = facts.last_reward
    last = last[np.isfinite(last) & (last != 0)]
    total, low, high = self._last_rewards
    self._last_rewards = (
        total + float(last.sum()),
        float(last.min(initial=low)),
        float(last.max(initial=high)),
    )
    has_steps = facts.num_steps > 0
    self._order.add(positions[has_steps], facts.outcome[has_steps, 0])
    self._contents.append(
        np.stack([facts.episode, facts.content], 1)[has_steps]
    )
    for row in np.flatnonzero(slots < self._num_excerpts):
      slot, position = slots[row], positions[row]
      # Episodes of another length may have come out before.
      if slot not in self._excerpts or self._excerpts[slot][0] < position:
        undiscounted_return, _, is_terminal = facts.outcome[row]
        self._excerpts[slot] = position, excerpts_lib.parse(
            excerpts[row].numpy(),
            self._images,
            episode=int(facts.episode[row]),
            num_steps=int(facts.num_steps[row]),
            undiscounted_return=float(undiscounted_return),
            is_terminal=bool(is_terminal),
        )

  def _of_fields(self, steps: np.ndarray) -> np.ndarray:
    """Returns the first step of any column of each field, `[B, fields]`."""
    none = np.iinfo(np.int64).max
    first = np.full([len(steps), self._not_finite.counts.size], none)
    found = np.where(steps < 0, none, steps)
    np.minimum.at(first, (slice(None), self._columns_of), found)
    return np.where(first == none, -1, first)

  def collected(self, spec, others, bounds, encoded) -> Collected:
    """Returns what was found in all blocks."""
    excerpts = sorted(self._excerpts.values(), key=lambda one: one[0])
    return Collected(
        spec=spec,
        num_read=self._num_read,
        statistics=self._accumulation.statistics(self._state),
        samples=self._accumulation.samples(self._state),
        fields=[paths.name_of(keys) for keys, _ in self._accumulation.leaves],
        ranges={
            keys: (float(low), float(high))
            for keys, low, high in zip(others, self._lows, self._highs)
            if low <= high
        },
        order=self._order.bins(),
        checks=self._checks,
        not_finite=self._not_finite,
        outside=self._outside,
        outside_values=self._outside_values,
        bounds=bounds,
        duplicates=_duplicates(self._contents),
        last_rewards=self._last_rewards,
        excerpts=[excerpt for _, excerpt in excerpts],
        encoded_images=encoded,
    )


def _duplicates(contents: List[np.ndarray]) -> Duplicates:
  if not contents:
    return Duplicates(0)
  episodes, hashes = np.concatenate(contents).T
  order = np.lexsort((episodes, hashes))
  episodes, hashes = episodes[order], hashes[order]
  repeats = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
  if not repeats.size:
    return Duplicates(0)
  first = repeats[np.argmin(episodes[repeats])]
  original = np.searchsorted(hashes, hashes[first])
  return Duplicates(len(repeats), int(episodes[first]), int(episodes[original]))
