"""Episodes cut into blocks: runs of consecutive steps, stacked `[B, ...]`.

A block is the unit of all work here. It is long enough that the cost of a
`tf.data` element does not count, and no longer than memory allows: a whole
episode where that is in memory already, stacked, and about 2 MiB of one that is
read step by step, whatever its length.

The flags and the discount of an episode, its *outline*, are a few bytes a step.
They are read whole before the episode's first block comes out, so that an
episode can be refused before anything of it is used.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib

# An outline is a dict of columns [T]: the flags, bool; the discount, float32;
# and, where NaN is looked for, NAN_FIELD, int32: 0, or 1 + the index of the
# step's first field that holds a NaN, in the order of `steps_lib.float_fields`.
Outline = Dict[str, tf.Tensor]
NAN_FIELD = 'nan_field'

_OUTLINE_FIELDS = frozenset(
    [rlds.IS_FIRST, rlds.IS_LAST, rlds.IS_TERMINAL, rlds.DISCOUNT]
)

_MAX_BLOCK_LENGTH = 4096
_UNKNOWN_DIM = 256  # what a dimension of unknown size counts for: an image side
_UNUSED_BYTES = 4096  # how much of a nested step is read and not used, at most
_STRING_BYTES = 4096  # what a string counts for: a small encoded image


# Nothing here needs AutoGraph, which takes most of a second to see that.
_no_autograph = tf.autograph.experimental.do_not_convert


class Verdict(NamedTuple):
  """Whether an episode, or a block, is valid.

  Attributes:
    valid: bool `[]`.
    describe: called, where it is not valid, to make in the graph the string
      `[]` that says what is wrong, and where.
  """

  valid: tf.Tensor
  describe: Callable[[], tf.Tensor]


# Called in the graph with the index of an episode, int64 `[]`; with its outline
# and that of the step that follows, `[T + 1]`; and with the `Lengths` of its
# fields, or None where they are the same for certain. Where they are not, the
# outline is that of no steps.
Inspect = Callable[
    [tf.Tensor, Outline, Optional[steps_lib.Lengths]], Verdict
]


class Block(NamedTuple):
  """A run of `B` consecutive steps of one episode.

  Attributes:
    steps: a dict of the selected step fields, every leaf `[B, ...]`.
    outline: the outline of these steps and of the one that follows, `[B + 1]`.
      What follows an episode's last step is `end_outline()`, or with
      `join_episodes` the first step of the next one.
    episode: int64 `[]`: the index of the episode in the data set.
    step: int64 `[]`: the index in its episode of the block's first step.
    fault: string `[]`: what is wrong with the episode; empty where it is valid.
    episode_id: what identifies the episode, `[]`: the field asked for; `()`
      where none was.
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
    outline: `[T]`; of no steps where the lengths of the fields differ.
    lengths: int32 `[leaves]`, of all that are used; `()` where they are the
      same for certain.
    steps: the used fields, `[T, ...]`; or the data set of the blocks of nested
      steps.
    episode: see `Block`.
    episode_id: see `Block`.
  """

  outline: Outline
  lengths: Any
  steps: Any
  episode: tf.Tensor
  episode_id: Any


def default_block_length(step_spec: Any, num_bytes: int = 2 << 20) -> int:
  """Returns how many steps of `step_spec` make a block of about `num_bytes`."""
  return min(max(num_bytes // step_bytes(step_spec), 1), _MAX_BLOCK_LENGTH)


def step_bytes(step_spec: Any) -> int:
  """Returns about how many bytes a step of `step_spec` has; at least 1."""
  total = 0
  for spec in tf.nest.flatten(step_spec):
    shape = [None] if spec.shape.rank is None else spec.shape.as_list()
    size = _STRING_BYTES if spec.dtype == tf.string else spec.dtype.size
    for dim in shape:
      size *= _UNKNOWN_DIM if dim is None else dim
    total += size
  return max(total, 1)


def end_outline() -> Outline:
  """The outline `[1]` of the step thought after an episode's last: a FIRST."""
  return {
      rlds.IS_FIRST: tf.constant([True]),
      rlds.IS_LAST: tf.constant([False]),
      rlds.IS_TERMINAL: tf.constant([False]),
      rlds.DISCOUNT: tf.constant([0.0]),
  }


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
  """Cuts every episode into `Block`s, in order, after a look at its outline.

      an episode, T=5, block_length=2    |  0  1 |  2  3 |  4  |
      the outlines of its blocks         |  0  1    2
                                                 |  2  3    4
                                                         |  4   end

  A nested data set of steps is read once where an episode fits one block. Of a
  longer one the outline is read first, then all of it: its steps must be the
  same each time.

  Args:
    rlds_data: an RLDS data set with a valid `steps_spec`.
    fields: the names of the step fields that the blocks carry. No other field
      is looked at.
    inspect: judges an episode before any of it comes out, see `Inspect`. An
      episode without steps that it accepts leaves nothing; where invalid
      episodes raise, it must refuse it.
    invalid_episodes: what an episode that `inspect` refuses leaves: `"raise"`,
      an error; `"skip"`, nothing; `"mark"`, its first block, which may have no
      steps, with the fault.
    join_episodes: whether an episode is followed by the first step of the next
      one, rather than by `end_outline()`. Episodes without steps count as not
      there, and nothing comes out of an episode before the next one is read.
    find_nan: whether the outline that is inspected has the column `NAN_FIELD`,
      on `fields`.
    block_length: the most steps of a block. By default a stacked episode, which
      is in memory whole, is one block, and of nested steps about 2 MiB are.
    episode_id: the name of a field of the episodes that identifies them.
    block_fn: applied to each block.

  Returns:
    A data set of `Block`s, or of what `block_fn` makes of them.

  Raises:
    ValueError: if `block_length` is not positive, a used field is ragged or
      sparse, or the episodes do not have the field `episode_id`, a number or
      string.
    InvalidArgumentError: while iterating, on an invalid episode, or if nested
      steps change between two readings.
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
  paths = []  # of the leaves whose lengths an element has

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
    """Returns a `Block` of the whole episode; of nested steps without them."""
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
    """Returns the steps that go on; of an invalid episode one, or none."""
    return tf.where(
        whole.fault == '',
        tf.size(whole.outline[rlds.IS_FIRST], tf.int64) - 1,
        tf.constant(0 if invalid_episodes == 'skip' else 1, tf.int64),
    )

  def cut(seen, following):
    """Returns the data set of an episode's blocks, still to be made."""
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
  """Gives every block the step that follows it, in the next episode too.

  Args:
    dataset: a data set of `Block`s, none of them without steps but of invalid
      episodes.

  Returns:
    A data set of pairs: the `Block`; and the step that follows it, `[1, ...]`.
    The last block, and one before an invalid episode, is followed by a first
    step whose fields are zeros, shaped as in the data.
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

  # The first block to come out is the one held before there was any.
  return (
      dataset.concatenate(tf.data.Dataset.from_tensors(end))
      .scan(end, pair)
      .skip(1)
  )


def _followed(episodes: tf.data.Dataset) -> tf.data.Dataset:
  """Gives every episode the outline of the first step of the next one.

  Args:
    episodes: a data set of `_Seen`. Those without steps are left out.

  Returns:
    A data set of pairs: the `_Seen`, and the outline `[1]` of the step that
    follows it: of the next episode's first one; or `end_outline()`, where there
    is no next one or its fields differ in length.
  """
  spec = episodes.element_spec
  is_nested = isinstance(spec.steps, tf.data.DatasetSpec)

  @_no_autograph
  def has_steps(seen):
    rows = tf.size(seen.outline[rlds.IS_FIRST])
    if spec.lengths != ():
      rows = tf.reduce_max(seen.lengths)
    return rows > 0

  # A data set cannot be the state of a scan, but a variant can.
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
    # The first to come out is the one held before there was any.
    return (
        episodes.filter(has_steps)
        .concatenate(end)
        .map(to_state)
        .scan(to_state(nothing), pair)
        .skip(1)
    )

  # In a function, as the graph of a data set cannot hold a variant.
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
  # The operators for this make their own operations for every leaf.
  end = tf.reshape(start + count, [1])
  begin = tf.reshape(tf.cast(start, end.dtype), [1])
  strides = tf.ones([1], end.dtype)
  return tf.nest.map_structure(
      lambda leaf: tf.strided_slice(leaf, begin, end, strides), nest
  )


def concat(head: Any, rest: Any) -> Any:
  """Concatenates two nests in their leading dimension."""
  return tf.nest.map_structure(
      lambda *leaves: tf.concat(leaves, 0), head, rest
  )


def _outline(steps, nan_fields, lengths=None) -> Outline:
  """Returns the outline `[B]` of steps stacked `[B, ...]`.

  Args:
    steps: a dict of at least the outline's fields and `nan_fields`.
    nan_fields: the fields that `NAN_FIELD` is about; without any there is none.
    lengths: the `Lengths` of the steps, if they may differ. Where they do, the
      outline is `[0]`.
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
  """Returns the fields that are read of nested steps: those used, or more.

  To leave a field out takes an operation a step, which costs more than to copy
  a few bytes. So small ones are read with the others.
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
    read_fields: the fields that are read, if only to be left out: all, or
      those that are used.
    nan_fields: see `_outline`.
    block_length: the most steps of a block.

  Returns:
    The outline, `[T]`, and a data set of what was read, `[B, ...]` a block.
  """
  if frozenset(steps.element_spec) != read_fields:
    steps = steps.map(lambda step: _select(step, read_fields))
  blocks = steps.batch(block_length)
  # Of no steps the first block is empty.
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
  # Where the second reading ends too soon, it is found to have changed.
  return outline, (
      tf.data.Dataset.from_tensors(head)
      .concatenate(rest)
      .concatenate(nothing.repeat())
  )


def _check_unchanged(outline, again, episode):
  """Returns the op that compares `outline` `[B + 1]` with `again`, `[B]`."""
  length = tf.size(again[rlds.IS_FIRST])
  same = [tf.size(outline[rlds.IS_FIRST]) == length + 1]
  for name, column in again.items():
    first = outline[name][:length]
    # NaN is not equal to itself.
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
