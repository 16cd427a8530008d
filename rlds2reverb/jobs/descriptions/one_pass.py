"""Reads a data set once, and collects the findings for a description.

The facts of each episode are made in graph mode, of several episodes in
parallel. Blocks of episodes are then added up by a `Collector`.
"""

import dataclasses
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs.descriptions import excerpts as excerpts_lib
from rlds2reverb.jobs.descriptions import facts as facts_lib
from rlds2reverb.jobs.descriptions import findings as findings_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import rows as rows_lib

_MAX_EPISODES_PER_BLOCK = 256
_UNIT = (-1.0, 1.0)
# How far a number may exceed its bounds, because of rounding.
_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Bounds:
  """The bounds of a field.

  Attributes:
    low: the least value, one number or an array of the field's shape.
    high: the greatest value.
    source: where they come from, such as `the features of the data set`.
    names: the names of the values from `low` to `high`, if they have names.
  """

  low: Any
  high: Any
  source: str
  names: Sequence[str] = ()


def read_once(
    rlds_data: tf.data.Dataset,
    *,
    episode_index: Optional[str] = None,
    bounds: Optional[Mapping[str, Bounds]] = None,
    with_frames: bool = True,
    seed: int = 0,
) -> findings_lib.Findings:
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
  step_spec = _step_spec(rlds_data)
  stacked_spec = _stacked_spec(rlds_data.element_spec, step_spec)
  stacked_spec.pop(episode_index, None)
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
  images = excerpts_lib.image_leaves(step_spec) if with_frames else []
  bounds = {
      paths.name_of(paths.find(step_spec, path)): bound
      for path, bound in (bounds or {}).items()
  }
  limits = _limits(accumulation, bounds)

  def to_facts(position, episode):
    steps, is_cut = facts_lib.cut_to_shortest(
        stacked_steps.stacked_fields(episode[rlds.STEPS], step_spec)
    )
    return facts_lib.facts_of(
        position if episode_index is None else episode[episode_index],
        steps,
        is_cut,
        accumulation,
        limits,
        images,
        {key: part for key, part in episode.items() if key != rlds.STEPS},
    )

  facts = rlds_data.enumerate().map(
      graphs.no_autograph(to_facts), num_parallel_calls=tf.data.AUTOTUNE
  )
  findings = findings_lib.Findings(accumulation, stacked_spec, bounds, images)
  for block in _in_blocks(facts, accumulation):
    findings.add(*block)
  return findings


def _step_spec(rlds_data) -> Dict[str, Any]:
  """Returns the spec of the step fields that can be described."""
  spec = steps_lib.steps_spec(rlds_data.element_spec)
  return {
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


def _in_blocks(facts, accumulation) -> tf.data.Dataset:
  """Stacks episodes of about the same length to blocks of a good size."""

  def key(facts):
    length = tf.cast(tf.maximum(facts.num_steps, 1), tf.float64)
    return tf.cast(tf.math.log(length) / np.log(2.0), tf.int64)

  def size(key):
    fitting = tf.bitwise.right_shift(
        tf.constant(accumulation.block_length, tf.int64), key
    )
    return tf.clip_by_value(fitting, 1, _MAX_EPISODES_PER_BLOCK)

  def stack(facts):
    rows = facts.rows
    if isinstance(rows, tf.RaggedTensor):
      rows = rows.values
    else:  # All episodes are known to have one length.
      rows = tf.reshape(rows, [-1, rows.shape[-1]])
    return facts._replace(rows=rows), accumulation.part(rows)

  return (
      facts.group_by_window(
          key,
          lambda key, window: window.ragged_batch(size(key)),
          window_size_func=size,
      )
      .map(stack, num_parallel_calls=tf.data.AUTOTUNE)
      .prefetch(1)
  )
