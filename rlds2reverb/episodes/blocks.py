"""Cuts episodes into blocks: runs of consecutive steps, stacked `[B, ...]`.

A pipeline that handles steps one by one is slow, and one that loads whole
episodes may run out of memory. So all work here is done on blocks. An episode
whose steps are stacked is in memory already and becomes one block. Nested
steps are read into blocks of about 2 MiB, however long the episode is.

The *outline* of an episode is its flags and discounts: a few bytes for each
step. The whole outline is read before the first block of the episode comes
out, so that an invalid episode is refused before any of it is used.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib

# An outline is a dict of columns [T]: the flags are bool, and the discount is
# float32. Where NaN is looked for, there is also NAN_FIELD, int32. It is 0 for
# a step without NaN. Otherwise it is 1 + the index of the step's first field
# that holds one, in the order of `steps_lib.float_fields`.
Outline = Dict[str, tf.Tensor]
NAN_FIELD = 'nan_field'

_OUTLINE_FIELDS = frozenset(
    [rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT]
)

_MAX_BLOCK_LENGTH = 4096
_UNKNOWN_DIM = 256  # The size assumed for an unknown dimension: an image side.
_UNUSED_BYTES = 4096  # At most so much of a nested step is read but not used.
_STRING_BYTES = 4096  # The size assumed for a string: a small encoded image.


# Nothing here needs AutoGraph, which would take most of a second to find out.
_no_autograph = tf.autograph.experimental.do_not_convert


class Verdict(NamedTuple):
  """Whether an episode is valid, and if not, why.

  Attributes:
    valid: bool `[]`.
    describe: a function that makes the message, string `[]`, in graph mode. The
      message says what is wrong, and where. It means nothing if the episode is
      valid.
  """

  valid: tf.Tensor
  describe: Callable[[], tf.Tensor]


# Judges an episode, in graph mode. The arguments are the index of the episode,
# int64 `[]`; the outline of the episode and of the step that follows it,
# `[T + 1]`; and the `Lengths` of its fields, or None if they are known to be
# the same. If they differ, `T` is 0.
Inspect = Callable[
    [tf.Tensor, Outline, Optional[steps_lib.Lengths]], Verdict
]


class Block(NamedTuple):
  """A run of `B` consecutive steps of one episode.

  Attributes:
    steps: a dict of the selected step fields, every leaf `[B, ...]`.
    outline: the outline of these steps and of the step that follows, `[B + 1]`.
      The last step of an episode is followed by `end_outline()`, or with
      `join_episodes` by the first step of the next episode.
    episode: int64 `[]`: the index of the episode in the data set.
    step: int64 `[]`: the index in its episode of the block's first step.
    fault: string `[]`: what is wrong with the episode; empty if it is valid.
    episode_id: `[]`: the field that identifies the episode; `()` if no such
      field was asked for.
  """

  steps: Any
  outline: Outline
  episode: tf.Tensor
  step: tf.Tensor
  fault: tf.Tensor
  episode_id: Any = ()


class _Seen(NamedTuple):
  """An episode whose outline has been read.

  Attributes:
    outline: `[T]`; `[0]` if the lengths of the fields differ.
    lengths: int32 `[leaves]`, the lengths of all leaves that are used; `()` if
      they are known to be the same.
    steps: the used fields, `[T, ...]`; or, for nested steps, the data set of
      their blocks.
    episode: see `Block`.
    episode_id: see `Block`.
  """

  outline: Outline
  lengths: Any
  steps: Any
  episode: tf.Tensor
  episode_id: Any


def default_block_length(step_spec: Any, num_bytes: int = 2 << 20) -> int:
  """Returns the number of steps that make a block of about `num_bytes`."""
  return min(max(num_bytes // step_bytes(step_spec), 1), _MAX_BLOCK_LENGTH)


def step_bytes(step_spec: Any) -> int:
  """Returns about how many bytes a step of `step_spec` takes; at least 1."""
  total = 0
  for spec in tf.nest.flatten(step_spec):
    shape = [None] if spec.shape.rank is None else spec.shape.as_list()
    size = _STRING_BYTES if spec.dtype == tf.string else spec.dtype.size
    for dim in shape:
      size *= _UNKNOWN_DIM if dim is None else dim
    total += size
  return max(total, 1)


def end_outline() -> Outline:
  """Returns the outline `[1]` of a FIRST step, assumed to follow an episode."""
  return {
      rlds.IS_FIRST: tf.constant([True]),
      rlds.IS_LAST: tf.constant([False]),
      rlds.IS_TERMINAL: tf.constant([False]),
      rlds.DISCOUNT: tf.constant([0.0]),
  }


def outline_of(
    steps: Dict[str, Any],
    nan_fields: Sequence[str] = (),
    lengths: Optional[steps_lib.Lengths] = None,
) -> Outline:
  """Returns the outline `[T]` of a whole episode.

  Args:
    steps: its stacked steps `[T, ...]`.
    nan_fields: the names of the fields in which NaN is looked for. If there are
      any, the outline has the column `NAN_FIELD`.
    lengths: the lengths of the steps' leaves, if they may differ. If they do,
      the outline is `[0]`.
  """
  return _outline(steps, nan_fields, lengths)


def episode_blocks(
    rlds_data: tf.data.Dataset,
    fields: Sequence[str],
    *,
    inspect: Inspect,
    invalid_episodes: str,
    join_episodes: bool = False,
    find_nan: bool = False,
    block_length: Optional[int] = None,
    episode_id: Optional[str] = None,
    block_fn: Callable[[Block], Any] = lambda block: block,
) -> tf.data.Dataset:
  """Cuts every episode into `Block`s, after its outline has been inspected.

  The blocks come in the order of the steps:

      an episode, T=5, block_length=2    |  0  1 |  2  3 |  4  |
      the outlines of its blocks         |  0  1    2
                                                 |  2  3    4
                                                         |  4   end

  Nested steps are read once if the episode fits into one block. The steps of a
  longer episode are read twice, first for the outline and then for the blocks,
  and must be the same each time.

  Args:
    rlds_data: an RLDS data set with a valid `steps_spec`.
    fields: the names of the step fields that the blocks carry. Other fields are
      ignored.
    inspect: the function that judges an episode before any of it comes out; see
      `Inspect`. It must refuse an episode without steps if
      `invalid_episodes="raise"`; otherwise it may accept one, which then makes
      no block.
    invalid_episodes: what becomes of an episode that `inspect` refuses.
      `"raise"` raises an error; `"skip"` leaves the episode out; `"mark"` lets
      its first block pass, which carries the fault and may have no steps.
    join_episodes: whether an episode is followed by the first step of the next
      one, rather than by `end_outline()`. Then episodes without steps are left
      out, and an episode comes out only after the next one was read.
    find_nan: whether the outline that is inspected has the column `NAN_FIELD`,
      which is about `fields`.
    block_length: the largest number of steps in a block. By default, an episode
      with stacked steps, which is in memory as a whole, becomes one block;
      nested steps are cut into blocks of about 2 MiB.
    episode_id: the name of the field of an episode that identifies it.
    block_fn: a function to apply to each block.

  Returns:
    A data set of `Block`s, or of what `block_fn` returns for them.

  Raises:
    ValueError: if `block_length` is not positive, if a used field is ragged or
      sparse, or if `episode_id` is not a field of the episodes that is one
      integer or string.
    InvalidArgumentError: while iterating, if an episode is invalid, or if
      nested steps change between two readings.
  """
  spec = steps_lib.steps_spec(rlds_data)
  steps_lib.check_dense(_select(spec.step, fields))
  used_fields = _OUTLINE_FIELDS.union(fields)
  if not spec.stacked and block_length is None:
    block_length = default_block_length(_select(spec.step, used_fields))
  if block_length is not None:
    checks.check_positive('block_length', block_length)
  nan_fields = fields if find_nan else ()
  if episode_id is not None:
    _check_episode_id(rlds_data.element_spec, episode_id)
  paths = []  # The path of each leaf whose length is checked; set by `see`.

  def see(index, episode):
    """Reads the outline of an episode."""
    steps = episode[rlds.STEPS]
    lengths = None
    if spec.stacked:
      lengths = steps_lib.lengths_of(_select(steps, used_fields))
      paths[:] = lengths.paths if lengths else ()
      outline = _outline(steps, nan_fields, lengths)
      steps = _select(steps, fields)
    else:
      outline, steps = _read_nested(
          steps, _read_fields(spec.step, used_fields), nan_fields, block_length
      )
    return _Seen(
        outline=outline,
        lengths=lengths.rows if lengths else (),
        steps=steps,
        episode=index,
        episode_id=() if episode_id is None else episode[episode_id],
    )

  def judge(seen, following):
    """Returns the whole episode as a `Block`, without its steps if nested."""
    end = {NAN_FIELD: tf.constant([0])} if nan_fields else {}
    outline = concat(seen.outline, {**following, **end})
    lengths = steps_lib.Lengths(paths, seen.lengths) if paths else None
    verdict = inspect(seen.episode, outline, lengths)
    fault = tf.cond(verdict.valid, lambda: tf.constant(''), verdict.describe)
    guards = []
    if invalid_episodes == 'raise':
      guards.append(tf.debugging.Assert(verdict.valid, [fault]))
    with tf.control_dependencies(guards):
      index = tf.identity(seen.episode)
    return Block(
        steps=seen.steps if spec.stacked else (),
        outline=_select(outline, following),
        episode=index,
        step=tf.constant(0, tf.int64),
        fault=fault,
        episode_id=seen.episode_id,
    )

  def kept_length(whole):
    """Returns how many steps to cut into blocks; 0 or 1 if invalid."""
    return tf.where(
        whole.fault == '',
        tf.size(whole.outline[rlds.IS_FIRST], tf.int64) - 1,
        tf.constant(0 if invalid_episodes == 'skip' else 1, tf.int64),
    )

  def cut(seen, following):
    """Returns a data set of the arguments of `to_block` for each block."""
    whole = judge(seen, following)
    parts = (
        tf.data.Dataset.range(0, kept_length(whole), block_length),
        tf.data.Dataset.from_tensors(whole).repeat(),
    )
    return tf.data.Dataset.zip(
        parts if spec.stacked else (*parts, seen.steps)
    )

  def to_block(start, whole, piece=None):
    outline = _rows(whole.outline, start, block_length + 1)
    if piece is None:
      stop = tf.minimum(
          start + block_length,
          tf.size(whole.outline[rlds.IS_FIRST], tf.int64) - 1,
      )
      steps = steps_lib.own_rows(whole.steps, start, stop)
    else:
      with tf.control_dependencies([
          _check_unchanged(outline, _outline(piece, ()), whole.episode)
      ]):
        start = tf.identity(start)
      steps = _select(piece, fields)
    return block_fn(whole._replace(steps=steps, outline=outline, step=start))

  episodes = rlds_data.enumerate()
  if join_episodes:
    episodes = _followed(episodes.map(_no_autograph(see)))
    on_episode = _no_autograph
  else:
    on_episode = lambda function: _no_autograph(
        lambda *episode: function(see(*episode), end_outline())
    )
  if block_length is not None:
    return episodes.flat_map(on_episode(cut)).map(_no_autograph(to_block))
  if invalid_episodes == 'raise' and not join_episodes:
    return episodes.map(
        on_episode(lambda *episode: block_fn(judge(*episode)))
    )
  return (
      episodes.map(on_episode(judge))
      .filter(_no_autograph(lambda whole: kept_length(whole) > 0))
      .map(_no_autograph(block_fn))
  )


def with_following_step(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every block with the step that follows it.

  The step that follows the last block of an episode is the first step of the
  next episode.

  Args:
    dataset: a data set of `Block`s. Only those of invalid episodes may have no
      steps.

  Returns:
    A data set of pairs: the `Block`; and the step that follows it, `[1, ...]`.
    The last block, and any block before an invalid episode, is paired with a
    FIRST step whose fields are zeros, in the shapes of the data.
  """
  end = steps_lib.zeros(dataset.element_spec)

  def end_step(held):
    step = tf.nest.map_structure(
        lambda leaf: tf.zeros_like(leaf[-1:]), held.steps
    )
    if rlds.IS_FIRST in step:
      step[rlds.IS_FIRST] = tf.ones_like(step[rlds.IS_FIRST])
    return step

  @_no_autograph
  def pair(held, block):
    has_steps = tf.size(block.outline[rlds.IS_FIRST]) > 1
    following = tf.cond(
        has_steps & (block.fault == ''),
        lambda: steps_lib.own_rows(block.steps, 0, 1),
        lambda: end_step(held),
    )
    return block, (held, following)

  # `scan` gives out the block before, so `end` comes out first.
  return (
      dataset.concatenate(tf.data.Dataset.from_tensors(end))
      .scan(end, pair)
      .skip(1)
  )


def _followed(episodes: tf.data.Dataset) -> tf.data.Dataset:
  """Pairs every episode with the outline of the first step of the next one.

  Args:
    episodes: a data set of `_Seen`. Episodes without steps are left out.

  Returns:
    A data set of pairs: the `_Seen`; and the outline `[1]` of the first step of
    the next episode. It is `end_outline()` if there is no next episode, or if
    the fields of the next episode differ in length.
  """
  spec = episodes.element_spec
  is_nested = isinstance(spec.steps, tf.data.DatasetSpec)

  @_no_autograph
  def has_steps(seen):
    rows = tf.size(seen.outline[rlds.IS_FIRST])
    if spec.lengths != ():
      rows = tf.reduce_max(seen.lengths)
    return rows > 0

  # The state of a scan cannot be a data set, but it can be a variant.
  @_no_autograph
  def to_state(seen):
    if not is_nested:
      return seen
    return seen._replace(steps=tf.data.experimental.to_variant(seen.steps))

  @_no_autograph
  def pair(held, seen):
    end = end_outline()
    following = {
        name: tf.concat([seen.outline[name], end[name]], 0)[:1] for name in end
    }
    return seen, (held, following)

  @_no_autograph
  def from_state(seen, following):
    if is_nested:
      pieces = tf.data.experimental.from_variant(
          seen.steps, spec.steps.element_spec
      )
      seen = seen._replace(steps=pieces)
    return seen, following

  @_no_autograph
  def pairs(unused_one):
    nothing = _Seen(
        outline={
            name: tf.zeros([0], column.dtype)
            for name, column in spec.outline.items()
        },
        lengths=steps_lib.zeros(spec.lengths),
        steps=tf.data.Dataset.from_tensors(
            steps_lib.zeros(spec.steps.element_spec)
        )
        if is_nested
        else steps_lib.zeros(spec.steps),
        episode=tf.constant(0, tf.int64),
        episode_id=steps_lib.zeros(spec.episode_id),
    )
    end = tf.data.Dataset.from_tensors(nothing)
    # `scan` gives out the episode before, so `nothing` comes out first.
    return (
        episodes.filter(has_steps)
        .concatenate(end)
        .map(to_state)
        .scan(to_state(nothing), pair)
        .skip(1)
    )

  # All of this is in the function of a `flat_map`, because the graph of a data
  # set cannot hold a variant.
  return tf.data.Dataset.range(1).flat_map(pairs).map(from_state)


def _check_episode_id(episode, name) -> None:
  fields = [field for field in episode if field != rlds.STEPS]
  if name not in fields:
    raise ValueError(
        f'episode_id must be a field of the episodes, but is {name!r}. They'
        f' have {fields}.'
    )
  spec = episode[name]
  if spec.shape.rank != 0 or not (spec.dtype.is_integer or
                                  spec.dtype == tf.string):
    raise ValueError(
        f'Episode field {name} must be one integer or string, to identify'
        f' episodes, but its spec is {spec}.'
    )


def _rows(nest, start, count):
  # `leaf[start:end]` would add the same operations again for every leaf.
  end = tf.reshape(start + count, [1])
  begin = tf.reshape(tf.cast(start, end.dtype), [1])
  strides = tf.ones([1], end.dtype)
  return tf.nest.map_structure(
      lambda leaf: tf.strided_slice(leaf, begin, end, strides), nest
  )


def concat(head: Any, rest: Any) -> Any:
  """Concatenates two nests of tensors along their leading dimension."""
  return tf.nest.map_structure(
      lambda *leaves: tf.concat(leaves, 0), head, rest
  )


def _outline(steps, nan_fields, lengths=None) -> Outline:
  """Returns the outline `[B]` of steps stacked `[B, ...]`.

  Args:
    steps: a dict of the outline's fields and `nan_fields`, and perhaps others.
    nan_fields: the names of the fields that `NAN_FIELD` is about. If there are
      none, the outline has no such column.
    lengths: the `Lengths` of the steps, if they may differ. If they do differ,
      the outline is `[0]`.
  """
  if lengths is not None:
    shortest = tf.reduce_min(lengths.rows, keepdims=True)
    end = tf.where(shortest == tf.reduce_max(lengths.rows), shortest, 0)
    steps = tf.nest.map_structure(
        lambda leaf: tf.strided_slice(leaf, [0], end, [1]),
        _select(steps, _OUTLINE_FIELDS.union(nan_fields)),
    )
  outline = {}
  for name, end in end_outline().items():
    outline[name] = steps_lib.one_a_step(name, steps[name], end.dtype)
  if nan_fields:
    leaves = steps_lib.float_fields(_select(steps, nan_fields))
    nan_field = tf.zeros_like(outline[rlds.DISCOUNT], tf.int32)
    for index, (_, leaf) in reversed(list(enumerate(leaves))):
      has_nan = tf.reduce_any(
          tf.math.is_nan(tf.reshape(leaf, [tf.shape(leaf)[0], -1])), axis=1
      )
      nan_field = tf.where(has_nan, index + 1, nan_field)
    outline[NAN_FIELD] = nan_field
  return outline


def _select(steps, fields):
  return {field: steps[field] for field in fields}


def _read_fields(step_spec, used_fields):
  """Returns the names of the fields that are read of nested steps.

  Leaving out the unused fields takes an operation for every step, which costs
  more than copying a few bytes. So if they are small, all fields are read.
  """
  unused = {
      field: spec
      for field, spec in step_spec.items()
      if field not in used_fields
  }
  if (
      all(map(steps_lib.has_one_shape, tf.nest.flatten(unused)))
      and step_bytes(unused) <= _UNUSED_BYTES
  ):
    return frozenset(step_spec)
  return used_fields


def _read_nested(steps, read_fields, nan_fields, block_length):
  """Reads the outline of a nested data set of steps.

  Args:
    steps: the data set of an episode's steps.
    read_fields: the names of the fields to read; see `_read_fields`.
    nan_fields: see `_outline`.
    block_length: the largest number of steps in a block.

  Returns:
    The outline, `[T]`; and a data set of the fields read, whose elements are
    `[B, ...]`, one for each block.
  """
  if frozenset(steps.element_spec) != read_fields:
    steps = steps.map(lambda step: _select(step, read_fields))
  blocks = steps.batch(block_length)
  # If there are no steps, the first block is empty.
  nothing = tf.data.Dataset.from_tensors(
      steps_lib.zeros(blocks.element_spec)
  )
  head = blocks.concatenate(nothing).take(1).get_single_element()
  outline = _outline(head, nan_fields)
  # An episode that ends with its first block is not read a second time.
  is_whole = tf.size(outline[rlds.IS_FIRST]) < block_length
  head_outline = outline
  outline = tf.cond(
      is_whole,
      lambda: head_outline,
      lambda: blocks.skip(1).reduce(
          head_outline,
          lambda outline, block: concat(outline, _outline(block, nan_fields)),
      ),
  )
  rest = blocks.skip(1).take(tf.where(is_whole, tf.constant(0, tf.int64), -1))
  # The empty blocks at the end make a second reading that ends too soon differ
  # from the first one, which `_check_unchanged` finds.
  return outline, (
      tf.data.Dataset.from_tensors(head)
      .concatenate(rest)
      .concatenate(nothing.repeat())
  )


def _check_unchanged(outline, again, episode):
  """Returns an op that checks `outline` `[B + 1]` against `again`, `[B]`."""
  length = tf.size(again[rlds.IS_FIRST])
  same = [tf.size(outline[rlds.IS_FIRST]) == length + 1]
  for name, column in again.items():
    first = outline[name][:length]
    # A NaN is not equal to itself, but it is the same.
    same.append(
        tf.reduce_all(
            (first == column[: tf.size(first)])
            | ((first != first) if name == rlds.DISCOUNT else False)
        )
    )
  return tf.debugging.Assert(
      tf.reduce_all(same),
      [
          'Nested steps must be the same each time they are read, but those of'
          ' this episode changed:',
          episode,
      ],
  )
