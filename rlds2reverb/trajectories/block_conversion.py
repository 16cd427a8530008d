"""Converts blocks of steps to blocks of frames, in graph mode.

Building the pipeline of a conversion, which TensorFlow traces, takes about a
tenth of a second: as long as converting a small data set. Therefore a pipeline
is built once for each spec, as a graph function of the data set, and is kept
for the next data set of this spec.
"""

import dataclasses
import functools
from typing import Any, Callable, Hashable, NamedTuple, Optional, Tuple

import tensorflow as tf
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import block_cutting
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import following as following_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import judging
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds
from rlds2reverb.trajectories import boundaries
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import rules as rules_lib

_MAX_PIPELINES = 32


def kept(build: Callable[..., tf.data.Dataset]) -> Callable[..., Any]:
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
  """Returns a pipeline, and the spec of its elements; see `kept`.

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
    fields: the names of the step fields that are used.
    all_fields: the names of all, if blocks have their steps.
    nan_fields: the paths of their float leaves.
    block_length: see `trajectory_blocks`.
    one_episode_blocks: see `trajectory_blocks`.
    episode_fields: the names of the fields of episodes that blocks have.
    rules: the rules of the conversion.
  """

  fields: Tuple[str, ...]
  all_fields: Tuple[str, ...]
  nan_fields: Tuple[str, ...]
  block_length: Optional[int]
  one_episode_blocks: bool
  episode_fields: Tuple[str, ...]
  rules: rules_lib.ConversionRules


@kept
def convert_blocks(data, report, settings, policy_info=None):
  """Converts episodes to `FrameBlock`s.

  Args:
    data: an RLDS data set, or a data set of packs.
    report: the `ReportTables` to fill, or None.
    settings: the `Settings`.
    policy_info: a `specs.PolicyInfo`, or None.
  """
  rules = settings.rules
  find_nan = rules.nan == 'invalid'

  def inspect(episode, outline, lengths, stored=None):
    on_fault = None
    if report and rules.invalid_episodes == 'skip':
      on_fault = functools.partial(report.add_skipped, episode)
    return boundaries.check_episode(
        episode,
        outline,
        lengths,
        validation=rules.validation,
        nan_fields=settings.nan_fields if find_nan else (),
        stored=stored,
        on_fault=on_fault,
    )

  def convert(block, following=None):
    used = block._replace(steps=outlines.select(block.steps, settings.fields))
    frames, bootstraps = _to_frames(
        used.steps, used.outline, rules.terminal_discount
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
        block.steps if settings.all_fields else (),
    )

  joins = rules.validation == 'tf_agents'
  judge = judging.Judge(
      inspect,
      rules.invalid_episodes,
      None
      if joins
      else functools.partial(boundaries.are_strictly_valid, find_nan=find_nan),
      find_nan,
  )
  to_blocks = functools.partial(
      block_cutting.episode_blocks,
      data_sets.packs_or_nested(data),
      settings.fields,
      cut=blocks.Cut(settings.one_episode_blocks, settings.block_length, joins),
      more_fields=settings.all_fields,
      episode_fields=settings.episode_fields,
  )
  if policy_info is None:
    return to_blocks(judge=judge, block_fn=convert)

  if rules.invalid_episodes == 'raise':
    judge = dataclasses.replace(judge, invalid_episodes='mark')
  return following_lib.with_following_step(to_blocks(judge=judge)).map(
      lambda block, following: convert(_without_fault(block), following)
  )


def _without_fault(block):
  """Returns a block, or raises the error of its invalid episode.

  The error is raised after each block was paired with the step that follows.
  Before that, it would also stop the last block of the episode before.
  """
  return graphs.asserted(block, block.fault == '', block.fault)


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
