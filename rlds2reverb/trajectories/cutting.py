"""Cuts episodes into blocks of steps, after each episode was checked.

This is the one place that cuts, and that leaves out or refuses invalid
episodes. Batches whose episodes are all valid, which nearly all are, become one
block each, unless shorter blocks are asked for.
"""

from typing import Any, Callable, NamedTuple, Optional, Tuple

import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults as faults_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import windows
from rlds2reverb.trajectories import validation


class Block(NamedTuple):
  """`B` consecutive steps: of one episode, or of `E` whole ones.

  Attributes:
    steps: a dict of the selected step fields, every leaf `[B, ...]`.
    outline: the outline of these steps and of the step that follows, `[B + 1]`;
      see `validation`.
    episode: int64 `[E]`: the index in the data set of each episode.
    step: int64 `[]`: the index in its episode of the block's first step.
    row_splits: int64 `[E + 1]`: the steps of episode `e` are those from
      `row_splits[e]` to `row_splits[e + 1]`.
    fault: string `[]`: the sentence about an invalid episode, in a block
      without steps; empty otherwise.
    fields: a dict of the fields of the episodes that were asked for, every leaf
      `[E, ...]`.
  """

  steps: Any
  outline: validation.Outline
  episode: tf.Tensor
  step: tf.Tensor
  row_splits: tf.Tensor
  fault: tf.Tensor
  fields: Any = ()


class Cut(NamedTuple):
  """Says what blocks hold, and which episodes are valid.

  Attributes:
    fields: the names of the step fields that are used.
    all_fields: the names of all that blocks hold, `fields` among them.
    episode_fields: the names of the fields of episodes that blocks hold.
    block_length: the largest number of steps in a block, which then is of one
      episode; None for whole batches.
    by_episode: whether the steps of a block are of one episode.
    validation: see `ConversionRules`. Under `"tf_agents"` an episode is
      followed by the first step of the next one, so it comes out only after
      the next one was read, and episodes without steps are left out.
    skips: whether invalid episodes are left out.
    marks: whether an invalid episode comes out as a block with its `fault`. If
      neither, it raises an InvalidArgumentError in its place.
    nan_paths: the paths of the float leaves of `fields`, if an episode that
      holds NaN there is invalid.
  """

  fields: Tuple[str, ...]
  all_fields: Tuple[str, ...]
  episode_fields: Tuple[str, ...] = ()
  block_length: Optional[int] = None
  by_episode: bool = False
  validation: str = 'strict'
  skips: bool = False
  marks: bool = False
  nan_paths: Tuple[str, ...] = ()


class _InspectedEpisodes(NamedTuple):
  """The episodes of a batch, and what their checks need.

  Attributes:
    steps: a dict of the fields that blocks hold, `[N, ...]`.
    outline: `[N]`; `[0]` if the lengths of the fields differ.
    row_splits: int64 `[E + 1]`, at most `N`.
    episode: int64 `[E]`.
    fields: a dict of other fields of the episodes, every leaf `[E, ...]`.
    lengths: int32 `[leaves]`, the lengths of all leaves that are used; `()` if
      they are known to be the same.
    stored: see `EpisodeBatch.fault`.
  """

  steps: Any
  outline: validation.Outline
  row_splits: tf.Tensor
  episode: tf.Tensor
  fields: Any
  lengths: Any
  stored: Any


def cut_episodes(
    batches: tf.data.Dataset,
    cut: Cut,
    block_fn: Callable[[Block], Any],
    on_skipped: Optional[Callable[[tf.Tensor, faults_lib.Fault], Any]] = None,
) -> tf.data.Dataset:
  """Cuts the episodes of batches into blocks, after they were checked.

  Args:
    batches: a data set of `EpisodeBatch`s with the step fields of the outline.
    cut: what blocks hold.
    block_fn: a function that is applied to each block.
    on_skipped: is called, in a graph, with the index and the fault of each
      episode that is left out.

  Returns:
    A data set of what `block_fn` returns.

  Raises:
    ValueError: if a used field is ragged or sparse.
    InvalidArgumentError: while iterating, if an episode is invalid. The
      episodes before it come out first.
  """
  step = steps_lib.without_time(batches.element_spec.steps)
  steps_lib.check_dense(validation.select(step, cut.all_fields))
  cutter = _Cutter(cut, block_fn, on_skipped)
  seen = graphs.scan(batches, tf.constant(0, tf.int64), cutter.see)
  if cut.validation == 'tf_agents':
    seen = _followed(seen)
  return graphs.map_elements(
      graphs.flat_map(seen, cutter.parts), cutter.to_block
  )


class _Cutter:
  """The stages of `cut_episodes`, in graph mode."""

  def __init__(self, cut, block_fn, on_skipped):
    self._cut = cut
    self._block_fn = block_fn
    self._on_skipped = on_skipped
    self._paths = []  # Of the leaves whose lengths may differ; set by `see`.

  def see(self, index, batch: episode_batches.EpisodeBatch):
    """Returns the index after a batch, and its `_InspectedEpisodes`."""
    cut = self._cut
    used = validation.FIELDS.union(cut.all_fields)
    lengths = stacked_steps.lengths_of(validation.select(batch.steps, used))
    self._paths[:] = lengths.paths if lengths else ()
    outline = validation.outline_of(
        batch.steps, cut.fields if cut.nan_paths else (), lengths
    )
    num_rows = tf.size(outline[rlds.IS_FIRST], tf.int64)
    count = episode_batches.num_episodes(batch)
    return index + count, _InspectedEpisodes(
        steps=validation.select(batch.steps, cut.all_fields),
        outline=outline,
        row_splits=tf.minimum(batch.row_splits, num_rows),
        episode=index + tf.range(count),
        fields=validation.select(batch.fields, cut.episode_fields),
        lengths=lengths.rows if lengths else (),
        stored=batch.fault,
    )

  def parts(self, seen: _InspectedEpisodes, following=None) -> tf.data.Dataset:
    """Returns the arguments of `to_block`, for each block of a batch."""
    cut = self._cut
    seen = seen._replace(outline=validation.with_end(seen.outline, following))
    is_valid = validation.are_valid(
        seen.outline, seen.row_splits, cut.validation
    )
    is_valid &= ~faults_lib.is_fault(seen.stored)
    if self._paths:
      # An episode whose fields differ in length is alone.
      is_valid &= stacked_steps.are_equal(self._lengths(seen))
    fault, seen = tf.cond(
        tf.reduce_all(is_valid),
        lambda: (tf.constant(''), seen),
        lambda: self._without_invalid(seen, is_valid),
    )
    bounds = self._bounds(seen)
    # The error comes after the blocks of the episodes before.
    count = tf.shape(bounds, tf.int64)[0] + tf.cast(fault != '', tf.int64)
    return graphs.with_each(tf.data.Dataset.range(count), (bounds, fault, seen))

  def to_block(self, index, parts):
    """Returns what `block_fn` makes of a block, or raises the error."""
    bounds, fault, seen = parts
    is_fault = index == tf.shape(bounds, tf.int64)[0]
    guards = []
    if not self._cut.marks:
      guards = [tf.debugging.Assert(~is_fault, [fault])]
    with tf.control_dependencies(guards):
      # The block of a fault has no episodes.
      start, stop, first, last = tf.unstack(
          tf.concat([bounds, tf.zeros([1, 4], tf.int64)], 0)[index]
      )
    is_all = ~is_fault & (stop - start == seen.row_splits[-1])
    splits = seen.row_splits[first : last + 1]
    return self._block_fn(
        Block(
            steps=tf.cond(
                is_all,
                lambda: seen.steps,
                lambda: stacked_steps.own_rows(seen.steps, start, stop),
            ),
            outline=stacked_steps.rows_of(seen.outline, start, stop + 1),
            episode=seen.episode[first:last],
            step=start - splits[0],
            row_splits=tf.clip_by_value(splits - start, 0, stop - start),
            fault=tf.where(is_fault, fault, ''),
            fields=tf.nest.map_structure(
                lambda leaf: leaf[first:last], seen.fields
            ),
        )
    )

  def _bounds(self, seen) -> tf.Tensor:
    """Returns the rows and the episodes of each block, int64 `[P, 4]`."""
    cut, splits = self._cut, seen.row_splits
    num_rows = splits[-1]
    if (
        cut.block_length is None
        and not cut.by_episode
        and cut.validation != 'tf_agents'
    ):
      whole = [[0, num_rows, 0, tf.size(seen.episode, tf.int64)]]
      return tf.convert_to_tensor(whole)[: tf.minimum(num_rows, 1)]
    length = tf.maximum(num_rows, 1)
    if cut.block_length is not None:
      length = tf.constant(cut.block_length, tf.int64)
    count = (splits[1:] - splits[:-1] + length - 1) // length
    episode, start = windows.ranges(splits[:-1], count, length)
    stop = tf.minimum(start + length, tf.gather(splits, episode + 1))
    return tf.stack([start, stop, episode, episode + 1], 1)

  def _without_invalid(self, seen, is_valid):
    """Returns a sentence for an error, and the episodes that come out."""
    invalid = tf.where(~is_valid)[:, 0]
    if self._cut.skips:
      tf.map_fn(
          lambda place: self._fault(seen, place),
          invalid,
          fn_output_signature=tf.string,
      )
      fault, keep = tf.constant(''), is_valid
    else:
      fault = self._fault(seen, invalid[0])
      keep = tf.range(tf.size(is_valid, tf.int64)) < invalid[0]
    is_kept = tf.gather(keep, episode_batches.episode_of_rows(seen.row_splits))
    rows = tf.where(is_kept)[:, 0]
    with_next = tf.concat([rows, seen.row_splits[-1:]], 0)
    lengths = (seen.row_splits[1:] - seen.row_splits[:-1])[keep]
    take = lambda nest, index: tf.nest.map_structure(
        lambda leaf: tf.gather(leaf, index), nest
    )
    return fault, seen._replace(
        steps=take(seen.steps, rows),
        outline=take(seen.outline, with_next),
        row_splits=tf.concat([[0], tf.cumsum(lengths)], 0),
        episode=seen.episode[keep],
        fields=take(seen.fields, tf.where(keep)[:, 0]),
    )

  def _fault(self, seen, place) -> tf.Tensor:
    """Returns the sentence about an invalid episode; notes it if skipped."""
    cut, splits = self._cut, seen.row_splits
    start, stop = splits[place], splits[place + 1]
    if cut.validation == 'strict':
      rows = stacked_steps.rows_of(seen.outline, start, stop)
      outline = validation.with_end(rows)
    else:
      outline = stacked_steps.rows_of(seen.outline, start, stop + 1)
    fault = validation.first_fault(
        outline,
        self._lengths(seen),
        seen.stored,
        validation=cut.validation,
        nan_paths=cut.nan_paths,
    )
    if self._on_skipped and cut.skips:
      fault = self._on_skipped(seen.episode[place], fault)
    return validation.sentence(fault, seen.episode[place])

  def _lengths(self, seen) -> Optional[stacked_steps.Lengths]:
    if not self._paths:
      return None
    return stacked_steps.Lengths(self._paths, seen.lengths)


def _followed(seen: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs episodes with the outline `[1]` of the step that follows them.

  Those without steps are left out. The step is a FIRST step if there is no next
  episode, or if its fields differ in length.
  """

  def has_steps(one):
    rows = one.row_splits[-1]
    if not isinstance(one.lengths, tuple):
      rows = tf.maximum(rows, tf.cast(tf.reduce_max(one.lengths), tf.int64))
    return rows > 0

  def pair(held, one):
    following = {
        name: column[:1]
        for name, column in validation.with_end(one.outline).items()
        if name != validation.NAN_FIELD
    }
    return one, (held, following)

  nothing = steps_lib.zeros(seen.element_spec)
  # `scan` returns the episodes before, so `nothing` comes out first.
  with_end = seen.filter(graphs.no_autograph(has_steps)).concatenate(
      tf.data.Dataset.from_tensors(nothing)
  )
  return graphs.scan(with_end, nothing, pair, seen.element_spec).skip(1)
