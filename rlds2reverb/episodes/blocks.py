"""Cuts episodes into blocks: runs of consecutive steps, stacked `[B, ...]`.

A pipeline that handles steps one by one is slow, and one that loads whole
episodes may run out of memory. So all work here is done on blocks. An episode
whose steps are stacked is in memory already and becomes one block. Nested
steps are read into blocks of about 2 MiB, however long the episode is.

The whole outline of an episode is read before its first block comes out, so
that an invalid episode is refused before any of it is used.
"""

from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    NamedTuple,
    Optional,
    Sequence,
)

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import following as following_lib
from rlds2reverb.episodes import nested_groups
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_MAX_BLOCK_LENGTH = 4096
_MAX_GROUP_LENGTH = 256  # With more steps, what an episode takes hardly counts.
_UNKNOWN_DIM = 256  # The size assumed for an unknown dimension: an image side.
_UNUSED_BYTES = 4096  # At most so much of a nested step is read but not used.
_STRING_BYTES = 4096  # The size assumed for a string: a small encoded image.


# AutoGraph would take most of a second to find that nothing here needs it.
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
# the same. If they differ, `T` is 0. For episodes of packs that have one, the
# `faults.Fault` of how the episode is stored follows.
Inspect = Callable[..., Verdict]


# Judges several episodes together, in graph mode, and returns, bool `[]`,
# whether all of them are valid. The arguments are the outline of their steps
# and of the step that follows them, `[N + 1]`; and their row splits, int64
# `[E + 1]`, which are at most `N`.
AreValid = Callable[[outlines.Outline, tf.Tensor], tf.Tensor]


class Block(NamedTuple):
  """A run of `B` consecutive steps: of one episode, or of `E` whole ones.

  Attributes:
    steps: a dict of the selected step fields, every leaf `[B, ...]`.
    outline: the outline of these steps and of the step that follows, `[B + 1]`.
      The last step of an episode is followed by `outlines.end_outline()`, or
      with `join_episodes` by the first step of the next episode.
    episode: int64 `[E]`: the index in the data set of each episode.
    step: int64 `[]`: the index in its episode of the block's first step; 0 if
      there are several episodes.
    row_splits: int64 `[E + 1]`: the steps of episode `e` are those from
      `row_splits[e]` to `row_splits[e + 1]`.
    fault: string `[]`: what is wrong with the episode; empty if it is valid.
    episode_id: `[E]`: the field that identifies each episode; `()` if no such
      field was asked for.
  """

  steps: Any
  outline: outlines.Outline
  episode: tf.Tensor
  step: tf.Tensor
  row_splits: tf.Tensor
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
    episode: int64 `[]`: the index of the episode in the data set.
    episode_id: `[]`: the field that identifies the episode, or `()`.
  """

  outline: outlines.Outline
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
    are_valid: Optional[AreValid] = None,
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
      one, rather than by `outlines.end_outline()`. Then episodes without steps
      are left out, and an episode comes out only after the next one was read.
    find_nan: whether the outline that is inspected has the column
      `outlines.NAN_FIELD`, which is about `fields`.
    block_length: the largest number of steps in a block. By default, an episode
      with stacked steps, which is in memory as a whole, becomes one block;
      nested steps are cut into blocks of about 2 MiB.
    episode_id: the name of the field of an episode that identifies it.
    are_valid: a function for nested steps, which judges several short episodes
      together. If it is given, they come in one block. `inspect` is asked only
      about episodes that it does not accept.
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
  steps_lib.check_dense(outlines.select(spec.step, fields))
  used_fields = outlines.FIELDS.union(fields)
  if not spec.stacked and block_length is None:
    block_length = default_block_length(outlines.select(spec.step, used_fields))
  if block_length is not None:
    checks.check_positive('block_length', block_length)
  nan_fields = fields if find_nan else ()
  if episode_id is not None:
    check_episode_id(rlds_data.element_spec, episode_id)
  paths = []  # The path of each leaf whose length is checked; set by `see`.

  def see(index, episode):
    """Reads the outline of an episode."""
    steps = episode[rlds.STEPS]
    lengths = None
    if spec.stacked:
      lengths = steps_lib.lengths_of(outlines.select(steps, used_fields))
      paths[:] = lengths.paths if lengths else ()
      outline = outlines.outline_of(steps, nan_fields, lengths)
      steps = outlines.select(steps, fields)
    else:
      outline, steps = _read_nested(
          steps, read_fields(spec.step, used_fields), nan_fields, block_length
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
    outline = concat(
        seen.outline, {**outlines.end_outline(find_nan), **following}
    )
    lengths = steps_lib.Lengths(paths, seen.lengths) if paths else None
    verdict = inspect(seen.episode, outline, lengths)
    return Block(
        steps=seen.steps if spec.stacked else (),
        outline=outlines.select(outline, following),
        episode=tf.reshape(seen.episode, [1]),
        step=tf.constant(0, tf.int64),
        row_splits=splits_of_one(outline),
        fault=fault_of(verdict, invalid_episodes),
        episode_id=tf.nest.map_structure(
            lambda leaf: tf.reshape(leaf, [1]), seen.episode_id
        ),
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
    return in_blocks(judge(seen, following), seen.steps)

  def in_blocks(whole, steps):
    parts = (
        tf.data.Dataset.range(0, kept_length(whole), block_length),
        tf.data.Dataset.from_tensors(whole).repeat(),
    )
    return tf.data.Dataset.zip(parts if spec.stacked else (*parts, steps))

  def to_block(start, whole, piece=None):
    outline = _rows(whole.outline, start, block_length + 1)
    if piece is None:
      stop = tf.minimum(
          start + block_length,
          tf.size(whole.outline[rlds.IS_FIRST], tf.int64) - 1,
      )
      steps = steps_lib.own_rows(whole.steps, start, stop)
    else:
      with tf.control_dependencies(
          [
              _check_unchanged(
                  outline, outlines.outline_of(piece, ()), whole.episode[0]
              )
          ]
      ):
        start = tf.identity(start)
      steps = outlines.select(piece, fields)
    length = splits_of_one(outline)[1]
    return block_fn(
        whole._replace(
            steps=steps,
            outline=outline,
            step=start,
            row_splits=tf.clip_by_value(whole.row_splits - start, 0, length),
        )
    )

  def cut_group(group):
    """Does what `cut` does, for the episodes of a `nested_groups.Group`."""
    outline, pieces = _read_nested(
        group.steps,
        read_fields(spec.step, used_fields),
        nan_fields,
        block_length,
    )
    outline = concat(outline, outlines.end_outline(find_nan))
    # The length of a single episode need not be known before.
    splits = tf.concat(
        [
            [0],
            tf.cumsum(group.lengths[:-1]),
            splits_of_one(outline)[1:],
        ],
        0,
    )
    whole = Block(
        steps=(),
        outline=outlines.select(outline, outlines.FIELDS),
        episode=group.first + tf.range(tf.size(group.lengths, tf.int64)),
        step=tf.constant(0, tf.int64),
        row_splits=splits,
        fault=tf.constant(''),
        episode_id=group.episode_id,
    )
    together = in_blocks(whole, pieces)

    def cut_one(index):
      steps = group.steps.skip(splits[index]).take(group.lengths[index])
      one = {rlds.STEPS: steps}
      if episode_id is not None:
        one[episode_id] = group.episode_id[index]
      return cut(see(group.first + index, one), outlines.end_outline())

    def one_by_one():
      indices = tf.data.Dataset.range(tf.size(group.lengths, tf.int64))
      return indices.flat_map(_no_autograph(cut_one))

    # Only what is used is built, and hardly ever is an episode invalid.
    chosen = tf.cond(
        are_valid(outline, splits),
        lambda: tf.data.experimental.to_variant(together),
        lambda: tf.data.experimental.to_variant(one_by_one()),
    )
    return tf.data.experimental.from_variant(chosen, together.element_spec)

  episodes = rlds_data.enumerate()
  if join_episodes:
    episodes = following_lib.followed(episodes.map(_no_autograph(see)))
    on_episode = _no_autograph
  else:
    on_episode = lambda function: _no_autograph(
        lambda *episode: function(see(*episode), outlines.end_outline())
    )
  if are_valid is not None:
    groups = nested_groups.group_episodes(
        rlds_data, min(block_length, _MAX_GROUP_LENGTH), episode_id
    )
    return groups.flat_map(_no_autograph(cut_group)).map(
        _no_autograph(to_block)
    )
  if block_length is not None:
    return episodes.flat_map(on_episode(cut)).map(_no_autograph(to_block))
  if invalid_episodes == 'raise' and not join_episodes:
    return episodes.map(on_episode(lambda *episode: block_fn(judge(*episode))))
  return (
      episodes.map(on_episode(judge))
      .filter(_no_autograph(lambda whole: kept_length(whole) > 0))
      .map(_no_autograph(block_fn))
  )


def fault_of(verdict: Verdict, invalid_episodes: str) -> tf.Tensor:
  """Returns what is wrong with an episode, string `[]`; empty if it is valid.

  Args:
    verdict: the verdict on the episode.
    invalid_episodes: see `episode_blocks`.

  Raises:
    InvalidArgumentError: while iterating, if the episode is invalid and
      `invalid_episodes="raise"`.
  """
  fault = tf.cond(verdict.valid, lambda: tf.constant(''), verdict.describe)
  guards = []
  if invalid_episodes == 'raise':
    guards.append(tf.debugging.Assert(verdict.valid, [fault]))
  with tf.control_dependencies(guards):
    return tf.identity(fault)


def check_episode_id(episode: Dict[str, Any], name: str) -> None:
  """Checks that a field of the episodes can identify them.

  Args:
    episode: the spec of an episode.
    name: the name of the field.

  Raises:
    ValueError: if there is no such field, or it is not one integer or string.
  """
  fields = [field for field in episode if field != rlds.STEPS]
  if name not in fields:
    raise ValueError(
        f'episode_id must be a field of the episodes, but is {name!r}. They'
        f' have {fields}.'
    )
  spec = episode[name]
  if spec.shape.rank != 0 or not (
      spec.dtype.is_integer or spec.dtype == tf.string
  ):
    raise ValueError(
        f'Episode field {name} must be one integer or string, to identify'
        f' episodes, but its spec is {spec}.'
    )


def splits_of_one(outline: outlines.Outline) -> tf.Tensor:
  """Returns the row splits of a block of one episode, by its outline."""
  return tf.stack([0, tf.size(outline[rlds.IS_FIRST], tf.int64) - 1])


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
  return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), head, rest)


def read_fields(
    step_spec: Dict[str, Any], used_fields: FrozenSet[str]
) -> FrozenSet[str]:
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
    read_fields: the names of the fields to read; see `read_fields`.
    nan_fields: see `_outline`.
    block_length: the largest number of steps in a block.

  Returns:
    The outline, `[T]`; and a data set of the fields read, whose elements are
    `[B, ...]`, one for each block.
  """
  if frozenset(steps.element_spec) != read_fields:
    steps = steps.map(lambda step: outlines.select(step, read_fields))
  blocks = steps.batch(block_length)
  # If there are no steps, the first block is empty.
  nothing = tf.data.Dataset.from_tensors(steps_lib.zeros(blocks.element_spec))
  head = blocks.concatenate(nothing).take(1).get_single_element()
  outline = outlines.outline_of(head, nan_fields)
  # An episode that ends with its first block is not read a second time.
  is_whole = tf.size(outline[rlds.IS_FIRST]) < block_length
  head_outline = outline
  outline = tf.cond(
      is_whole,
      lambda: head_outline,
      lambda: blocks.skip(1).reduce(
          head_outline,
          lambda outline, block: concat(
              outline, outlines.outline_of(block, nan_fields)
          ),
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
