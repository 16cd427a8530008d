"""Converts blocks of steps to blocks of frames, in graph mode.

Building the pipeline of a conversion, which TensorFlow traces, takes about a
tenth of a second: as long as converting a small data set. Therefore a pipeline
is built once for each spec, as a graph function of the data set, and is kept
for the next data set of this spec.
"""

import functools
from typing import Any, Callable, Hashable, NamedTuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.trajectories import cutting
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import validation

_MAX_PIPELINES = 32


def cache_pipeline(build: Callable[..., tf.data.Dataset]) -> Callable[..., Any]:
  """Decorates a function so that the pipelines that it builds are kept.

  Args:
    build: a function `(data, tables, settings, function=None)` that builds a
      pipeline of a data set, a nest of tensors or None, and other settings,
      which must be hashable. The pipeline must depend on the specs of the first
      two and on the settings alone. If it calls a `function`, it is not kept.

  Returns:
    The decorated function.
  """

  @functools.wraps(build)
  def call(
      data: tf.data.Dataset, tables: Any, settings: Hashable, function=None
  ):
    # A data set in the graph of a function must not leave it.
    if function is not None or not tf.executing_eagerly():
      return build(data, tables, settings, function)
    specs = None
    if tables is not None:
      specs = tf.nest.map_structure(
          lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tables
      )
    pipeline, element_spec = _pipeline(
        build, settings, _Specs(data.element_spec, specs)
    )
    variant = pipeline(tf.data.experimental.to_variant(data), tables)
    result = tf.data.experimental.from_variant(variant, element_spec)
    # Sources of a data set, such as a generator, live as long as its Python
    # object.
    result._source = data  # pylint: disable=protected-access
    return result

  return call


class _Specs:
  """The specs of a data set's elements and of tables, which can be hashed."""

  def __init__(self, element: Any, tables: Any):
    self.element = element
    self.tables = tables
    self._key = repr((element, tables))

  def __eq__(self, other):
    return self._key == other._key

  def __hash__(self):
    return hash(self._key)


@functools.lru_cache(maxsize=_MAX_PIPELINES)
def _pipeline(build, settings, specs):
  """Returns a pipeline, and the spec of its elements; see `cache_pipeline`.

  The pipeline is a graph function of the variant of a data set, and of tables.
  """
  element_specs = []

  @tf.function(autograph=False)
  def to_variant(variant, tables):
    result = build(
        tf.data.experimental.from_variant(variant, specs.element),
        tables,
        settings,
    )
    element_specs[:] = [result.element_spec]
    return tf.data.experimental.to_variant(result)

  to_variant = to_variant.get_concrete_function(
      tf.TensorSpec([], tf.variant), specs.tables
  )

  return to_variant, element_specs[0]


class Settings(NamedTuple):
  """Everything besides the data that the pipeline of a conversion depends on.

  Attributes:
    cut: what blocks of steps hold.
    terminal_discount: see `ConversionRules`.
    with_steps: whether blocks of frames have their steps.
  """

  cut: cutting.Cut
  terminal_discount: str
  with_steps: bool


@cache_pipeline
def convert_blocks(data, report, settings, policy_info=None):
  """Converts episodes to `FrameBlock`s.

  Args:
    data: an RLDS data set, or a data set of batches.
    report: the `ReportTables` to fill, or None.
    settings: the `Settings`.
    policy_info: a `specs.PolicyInfo`, or None.
  """
  cut = settings.cut

  def convert(block, following=None):
    used = block._replace(steps=validation.select(block.steps, cut.fields))
    frames, bootstraps = _to_frames(
        used.steps, used.outline, settings.terminal_discount
    )
    if policy_info:
      frames = frames._replace(policy_info=policy_info(used.steps, following))
    if report:
      report.add_block(used, bootstraps)
    return frame_blocks.FrameBlock(
        frames,
        block.episode,
        block.row_splits,
        block.step,
        block.fields,
        block.steps if settings.with_steps else (),
    )

  batches = data_sets.batches_of(
      data,
      fields=validation.FIELDS.union(cut.all_fields),
      episode_fields=cut.episode_fields,
      with_faults=True,
  )
  on_skipped = report.add_skipped if report else None
  if policy_info is None:
    return cutting.cut_episodes(batches, cut, convert, on_skipped)
  # The error of an invalid episode is raised after each block was paired with
  # the step that follows. Before that, it would also stop the block before.
  marked = cutting.cut_episodes(
      batches,
      cut._replace(marks=not cut.skips),
      lambda block: block,
      on_skipped,
  )
  return _with_following_step(marked).map(
      lambda block, following: convert(
          graphs.asserted(block, block.fault == '', block.fault), following
      )
  )


@cache_pipeline
def frames_alone(blocks, unused_tables, unused_settings, unused_function=None):
  """Returns the frames of `FrameBlock`s."""
  return graphs.map_elements(blocks, lambda block: block.frames)


def _with_following_step(blocks: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every block with the step that follows it, `[1, ...]`.

  Behind the last block, and any block before an invalid episode, that is a
  FIRST step whose fields are zeros, in the shapes of the data.
  """
  end = steps_lib.zeros(blocks.element_spec)

  def end_step(held):
    step = tf.nest.map_structure(
        lambda leaf: tf.zeros_like(leaf[-1:]), held.steps
    )
    if rlds.IS_FIRST in step:
      step[rlds.IS_FIRST] = tf.ones_like(step[rlds.IS_FIRST])
    return step

  def pair(held, block):
    has_steps = tf.size(block.outline[rlds.IS_FIRST]) > 1
    following = tf.cond(
        has_steps & (block.fault == ''),
        lambda: stacked_steps.own_rows(block.steps, 0, 1),
        lambda: end_step(held),
    )
    return block, (held, following)

  # `scan` returns the block before, so `end` comes out first.
  with_end = blocks.concatenate(tf.data.Dataset.from_tensors(end))
  return graphs.scan(with_end, end, pair, blocks.element_spec).skip(1)


def _to_frames(steps, outline, terminal_discount):
  """Converts steps `[B, ...]` with an outline `[B + 1]` to frames `[B, ...]`.

  Returns:
    The frames; and, bool `[B]`, which of them are transitions into a terminal
    step that have a discount other than 0.
  """
  is_first, is_last = outline[rlds.IS_FIRST], outline[rlds.IS_LAST]
  is_end = is_last & outline[rlds.IS_TERMINAL]
  discount = tf.where(is_end, 0.0, outline[rlds.DISCOUNT])[:-1]
  into_end = is_end[1:] & ~is_last[:-1]
  if terminal_discount == 'transition':
    discount = tf.where(into_end, 0.0, discount)
  step_type = tf.where(
      is_first,
      ts.StepType.FIRST,
      tf.where(is_last, ts.StepType.LAST, ts.StepType.MID),
  )
  # An episode of one step is a LAST step, followed by a LAST step.
  is_single = is_first[:-1] & is_first[1:]
  frames = trajectory.Trajectory(
      step_type=tf.where(is_single, ts.StepType.LAST, step_type[:-1]),
      observation=steps[rlds.OBSERVATION],
      action=steps[rlds.ACTION],
      policy_info=(),
      next_step_type=tf.where(is_single, ts.StepType.LAST, step_type[1:]),
      reward=steps[rlds.REWARD],
      discount=discount,
  )
  return frames, into_end & (discount != 0)
