"""Cuts episodes into blocks, after each was judged.

Most packs have only valid episodes. Such a pack is checked as a whole, by a few
operations, and becomes one block. If a pack has an invalid episode, its
episodes are judged one by one, so that those before it still come out.

The whole outline of an episode is read before its first block comes out, so an
invalid episode is refused before any of it is used. Episodes in memory come in
packs. Nested steps are read into blocks of about 2 MiB, however long an episode
is; short episodes make a pack.
"""

from typing import Any, Callable, NamedTuple, Sequence

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import faults
from rlds2reverb.episodes import following as following_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import judging
from rlds2reverb.episodes import nested
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib


def episode_blocks(
    data: tf.data.Dataset,
    fields: Sequence[str],
    judge: judging.Judge,
    cut: blocks.Cut = blocks.Cut(),
    *,
    more_fields: Sequence[str] = (),
    episode_fields: Sequence[str] = (),
    block_fn: Callable[[blocks.Block], Any] = lambda block: block,
) -> tf.data.Dataset:
  """Cuts episodes into `Block`s, after their outlines have been inspected.

  Args:
    data: what `data_sets.packs_or_nested` returns for an RLDS data set with a
      valid `steps_spec`.
    fields: the names of the step fields that the blocks carry. Other fields are
      ignored.
    more_fields: the names of more such fields, which may hold NaN.
    judge: says which episodes are valid.
    cut: says what makes a block.
    episode_fields: the names of fields of an episode that its block carries.
    block_fn: a function to apply to each block.

  Returns:
    A data set of `Block`s, or of what `block_fn` returns for them.

  Raises:
    ValueError: if a used field is ragged or sparse.
    InvalidArgumentError: while iterating, if an episode is invalid, or if
      nested steps change between two readings. The episodes before it come out
      first.
  """
  cutter = _Cutter(
      data.element_spec,
      (*fields, *(field for field in more_fields if field not in fields)),
      judge,
      cut,
      episode_fields,
      fields if judge.find_nan else (),
  )
  seen = (
      cutter.see(data)
      .scan(tf.constant(0, tf.int64), graphs.no_autograph(cutter.number))
      .flat_map(graphs.no_autograph(cutter.split))
      .map(graphs.no_autograph(_one_or_all))
  )
  if cut.join_episodes:
    judged = following_lib.followed(seen)
  else:
    judged = seen.map(
        graphs.no_autograph(lambda one: (one, outlines.end_outline()))
    )
  judged = judged.map(graphs.no_autograph(cutter.judge))
  if judge.invalid_episodes != 'raise':
    judged = judged.filter(
        graphs.no_autograph(lambda one: cutter.num_kept(one.block) > 0)
    )
  if cutter.cuts_episodes:
    judged = judged.flat_map(graphs.no_autograph(cutter.pieces)).map(
        graphs.no_autograph(cutter.to_piece)
    )
  return judged.map(graphs.no_autograph(lambda one: block_fn(one.block)))


class _Judged(NamedTuple):
  """A block of whole episodes, all valid or one that is marked.

  Attributes:
    block: the block. Of a nested episode that is longer than a block it has
      only the steps of the first.
    rest: see `nested.Head`.
  """

  block: blocks.Block
  rest: Any = ()


class _Cutter:
  """The steps of `episode_blocks`, in graph mode."""

  def __init__(
      self, element_spec, fields, judge, cut, episode_fields, nan_fields
  ):
    """Takes arguments of `episode_blocks`; `fields` has all step fields."""
    self._judge = judge
    self._cut = cut
    self._fields = fields
    self._nan_fields = nan_fields
    self._used_fields = outlines.FIELDS.union(fields)
    self._episode_fields = episode_fields
    self._paths = []  # Of the leaves whose lengths are known; set by `_see`.
    # Invalid episodes are rare, and a branch that is not taken costs nothing.
    self._inspect_fn = graphs.built_once(self._inspect)
    self._reader = None
    is_nested = not isinstance(element_spec, packs_lib.Pack)
    if is_nested:
      step = element_spec[rlds.STEPS].element_spec
    else:
      step = steps_lib.without_time(element_spec.steps)
    steps_lib.check_dense(outlines.select(step, fields))
    self._block_length = cut.block_length
    if is_nested:
      self._block_length = cut.block_length or blocks.default_block_length(
          outlines.select(step, self._used_fields)
      )
      self._reader = nested.Reader(
          step, self._used_fields, fields, self._nan_fields, self._block_length
      )

  @property
  def cuts_episodes(self) -> bool:
    """Whether an episode may become several blocks."""
    return self._block_length is not None

  def see(self, data: tf.data.Dataset) -> tf.data.Dataset:
    """Reads outlines. Numbers and verdicts are added by `number`."""
    if self._reader is None:
      return data.map(graphs.no_autograph(self._see_pack))
    heads = self._reader.heads(data, self._episode_fields, self._cut.are_alone)
    return heads.map(graphs.no_autograph(self._see_head))

  def _see_pack(self, pack):
    steps = outlines.select(pack.steps, self._used_fields)
    lengths = stacked_steps.lengths_of(steps)
    self._paths[:] = lengths.paths if lengths else ()
    outline = outlines.outline_of(pack.steps, self._nan_fields, lengths)
    # If lengths differ, the outline is empty, and no episode is valid.
    num_rows = tf.size(outline[rlds.IS_FIRST], tf.int64)
    return self._seen(
        pack.steps,
        outline,
        tf.minimum(pack.row_splits, num_rows),
        pack.fields,
        are_valid=~faults.is_fault(pack.fault),
        lengths=lengths.rows if lengths else (),
        fault=pack.fault,
    )

  def _see_head(self, head):
    return self._seen(
        head.steps,
        head.outline,
        head.row_splits,
        head.episodes,
        are_valid=tf.constant(True),
        rest=head.rest,
    )

  def _seen(self, steps, outline, row_splits, fields, **others):
    return judging.Seen(
        steps=outlines.select(steps, self._fields),
        outline=outline,
        row_splits=row_splits,
        episode=tf.zeros_like(row_splits[1:]),
        fields={name: fields[name] for name in self._episode_fields},
        **others,
    )

  def number(self, index, seen: judging.Seen):
    """Adds the numbers of the episodes, and whether all are valid."""
    count = tf.size(seen.episode, tf.int64)
    if self._judge.are_valid is None:
      are_valid = tf.constant(False)
    else:
      outline = blocks.concat(
          seen.outline, outlines.end_outline(self._judge.find_nan)
      )
      are_valid = self._judge.are_valid(outline, seen.row_splits)
    return index + count, seen._replace(
        episode=index + tf.range(count), are_valid=seen.are_valid & are_valid
    )

  def split(self, seen: judging.Seen) -> tf.data.Dataset:
    """Returns the arguments of `_one_or_all`."""
    count = tf.size(seen.episode, tf.int64)
    if not self._cut.are_alone:
      count = tf.where(seen.are_valid, tf.ones_like(count), count)
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.range(count),
            tf.data.Dataset.from_tensors((count, seen)).repeat(),
        )
    )

  def judge(self, seen: judging.Seen, following: outlines.Outline) -> _Judged:
    """Judges episodes, and drops the steps of one that is invalid.

    Args:
      seen: valid episodes, or one.
      following: the outline `[1]` of the step that follows.
    """
    find_nan = self._judge.find_nan
    outline = blocks.concat(
        seen.outline, {**outlines.end_outline(find_nan), **following}
    )

    def keep():
      return seen.steps, outlines.select(outline, following), seen.row_splits

    def drop():
      return (
          stacked_steps.own_rows(seen.steps, 0, 0),
          {name: outline[name][-1:] for name in following},
          tf.zeros_like(seen.row_splits),
      )

    fault = tf.cond(
        seen.are_valid,
        lambda: tf.constant(''),
        lambda: self._inspect_fn(
            seen.episode[0], outline, seen.lengths, seen.fault
        ),
    )
    if self._judge.invalid_episodes == 'raise':
      steps, outline, row_splits = keep()
    else:
      steps, outline, row_splits = tf.cond(fault == '', keep, drop)
    block = blocks.Block(
        steps=steps,
        outline=outline,
        episode=seen.episode,
        step=tf.constant(0, tf.int64),
        row_splits=row_splits,
        fault=fault,
        fields=seen.fields,
    )
    return _Judged(block, seen.rest)

  def _inspect(self, episode, outline, lengths, fault):
    """Returns the fault of one episode, string `[]`."""
    lengths = (
        stacked_steps.Lengths(self._paths, lengths) if self._paths else None
    )
    stored = () if fault == () else (fault,)
    verdict = self._judge.inspect(episode, outline, lengths, *stored)
    return judging.fault_of(verdict, self._judge.invalid_episodes)

  def num_kept(self, block: blocks.Block) -> tf.Tensor:
    """Returns how many steps become blocks; 1 for an episode that is marked."""
    of_fault = 0 if self._judge.invalid_episodes == 'skip' else 1
    return tf.where(
        block.fault == '', block.row_splits[-1], tf.constant(of_fault, tf.int64)
    )

  def pieces(self, judged: _Judged) -> tf.data.Dataset:
    """Returns a data set of the arguments of `to_piece`."""
    length = tf.constant(self._block_length, tf.int64)
    whole = tf.data.Dataset.from_tensors(judged).repeat()
    if self._reader is None:
      starts = tf.data.Dataset.range(0, self.num_kept(judged.block), length)
      return tf.data.Dataset.zip((starts, whole))
    # Several episodes are one block, even if it is longer.
    count = self.num_kept(judged.block)
    length = tf.where(
        tf.size(judged.block.episode) > 1, tf.maximum(count, length), length
    )
    starts = tf.data.Dataset.range(0, count, length)
    block = judged.block
    head = nested.Head(
        block.steps, block.outline, block.row_splits, (), judged.rest
    )
    read = self._reader.pieces(head, starts.cardinality())
    return tf.data.Dataset.zip((starts, whole, read))

  def to_piece(self, start, judged: _Judged, read=None) -> _Judged:
    """Returns the block from a step on."""
    whole = judged.block
    num_rows = tf.size(whole.outline[rlds.IS_FIRST], tf.int64) - 1
    stop = tf.minimum(start + self._block_length, num_rows)
    if read is None:
      steps = stacked_steps.own_rows(whole.steps, start, stop)
    else:
      steps, again = read
      stop = tf.where(tf.size(whole.episode) > 1, num_rows, stop)
    outline = stacked_steps.rows_of(whole.outline, start, stop + 1)
    if read is not None:
      check = nested.check_unchanged(outline, again, whole.episode[0])
      with tf.control_dependencies([check]):
        start = tf.identity(start)
    return _Judged(
        whole._replace(
            steps=steps,
            outline=outline,
            step=start,
            row_splits=tf.clip_by_value(
                whole.row_splits - start, 0, stop - start
            ),
        )
    )


def _one_or_all(index, split) -> judging.Seen:
  """Returns all episodes, or the one at `index`.

  Args:
    index: int64 `[]`.
    split: 1 for all, or the number of episodes; and the `Seen` episodes.
  """
  count, seen = split

  def one():
    start, stop = seen.row_splits[index], seen.row_splits[index + 1]
    each = lambda leaf: leaf[index : index + 1]
    return seen._replace(
        steps=stacked_steps.own_rows(seen.steps, start, stop),
        outline=stacked_steps.rows_of(seen.outline, start, stop),
        row_splits=tf.stack([0, stop - start]),
        episode=each(seen.episode),
        fields=tf.nest.map_structure(each, seen.fields),
        rest=tf.nest.map_structure(each, seen.rest),
    )

  # A single episode may be longer than its steps in memory, and is not copied.
  is_all = (count == 1) | (tf.size(seen.episode) == 1)
  return tf.cond(is_all, lambda: seen, one)
