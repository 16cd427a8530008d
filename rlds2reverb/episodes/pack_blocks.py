"""Makes blocks of packs: many whole episodes at a time.

Nearly every pack holds valid episodes only. It is checked as a whole, by a few
operations, and becomes one block. The episodes of a pack that holds an invalid
one become blocks one by one, so that those before it still come out.
"""

from typing import Any, Callable, NamedTuple, Optional, Sequence

import tensorflow as tf

from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import outlines
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import steps as steps_lib

# AutoGraph would take most of a second to find that nothing here needs it.
_no_autograph = tf.autograph.experimental.do_not_convert


class _Seen(NamedTuple):
  """A pack whose outline has been read.

  Attributes:
    block: all of the pack. Its outline may have the column `NAN_FIELD`.
    lengths: int32 `[leaves]`, the lengths of all leaves that are used; `()` if
      they are known to be the same.
    is_valid: bool `[]`: whether all episodes are valid.
    fault: see `packs.Pack`.
  """

  block: blocks.Block
  lengths: Any
  is_valid: tf.Tensor
  fault: Any


def pack_blocks(
    packs: tf.data.Dataset,
    fields: Sequence[str],
    *,
    inspect: blocks.Inspect,
    are_valid: blocks.AreValid,
    invalid_episodes: str,
    find_nan: bool = False,
    episode_id: Optional[str] = None,
    block_fn: Callable[[blocks.Block], Any] = lambda block: block,
) -> tf.data.Dataset:
  """Makes `Block`s of whole episodes, after their outlines were inspected.

  Args:
    packs: a data set of `packs.Pack`s. The leaves of a pack of one episode may
      differ in length, which makes the episode invalid.
    fields: see `blocks.episode_blocks`.
    inspect: see `blocks.episode_blocks`. It is asked only if `are_valid` says
      that not all episodes of a pack are valid, or if lengths differ.
    are_valid: the function that judges all episodes of a pack together.
    invalid_episodes: see `blocks.episode_blocks`.
    find_nan: see `blocks.episode_blocks`.
    episode_id: see `blocks.episode_blocks`.
    block_fn: a function to apply to each block.

  Returns:
    A data set of `Block`s, or of what `block_fn` returns for them.

  Raises:
    ValueError: if a used field is ragged or sparse, or if `episode_id` is not a
      field of the episodes that is one integer or string.
    InvalidArgumentError: while iterating, if an episode is invalid. The
      episodes before it have come out then.
  """
  spec = packs.element_spec
  steps_lib.check_dense(outlines.select(spec.steps, fields))
  used_fields = outlines.FIELDS.union(fields)
  nan_fields = fields if find_nan else ()
  if episode_id is not None:
    blocks.check_episode_id(steps_lib.without_time(spec.fields), episode_id)
  paths = []  # The path of each leaf whose length is checked; set by `see`.

  def see(index, pack):
    """Reads the outline of a pack, and counts its episodes."""
    lengths = steps_lib.lengths_of(outlines.select(pack.steps, used_fields))
    paths[:] = lengths.paths if lengths else ()
    outline = blocks.concat(
        outlines.outline_of(pack.steps, nan_fields, lengths),
        outlines.end_outline(find_nan),
    )
    num_episodes = tf.size(pack.row_splits, tf.int64) - 1
    # Where lengths differ the outline is empty, and so no episode is valid.
    splits = tf.minimum(pack.row_splits, blocks.splits_of_one(outline)[1])
    block = blocks.Block(
        steps=outlines.select(pack.steps, fields),
        outline=outline,
        episode=index + tf.range(num_episodes),
        step=tf.constant(0, tf.int64),
        row_splits=splits,
        fault=tf.constant(''),
        episode_id=() if episode_id is None else pack.fields[episode_id],
    )
    is_valid = are_valid(outline, splits) & ~packs_lib.has_fault(pack)
    seen = _Seen(block, lengths.rows if lengths else (), is_valid, pack.fault)
    return index + num_episodes, seen

  def cut(seen):
    """Returns a data set of the arguments of `to_block` for each block."""
    num_blocks = tf.where(
        seen.is_valid,
        tf.constant(1, tf.int64),
        tf.size(seen.block.episode, tf.int64),
    )
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.range(num_blocks),
            tf.data.Dataset.from_tensors(seen).repeat(),
        )
    )

  def to_block(index, seen):
    block = tf.cond(
        seen.is_valid, lambda: seen.block, lambda: judge(index, seen)
    )
    return block._replace(
        outline=outlines.select(block.outline, outlines.FIELDS)
    )

  def judge(index, seen):
    """Returns one episode of a pack as a `Block`, without steps if invalid."""
    block = seen.block
    begin, end = block.row_splits[index], block.row_splits[index + 1]
    outline = {
        name: tf.concat([column[begin:end], column[-1:]], 0)
        for name, column in block.outline.items()
    }
    lengths = steps_lib.Lengths(paths, seen.lengths) if paths else None
    episode = block.episode[index]
    stored = () if seen.fault == () else (seen.fault,)
    verdict = inspect(episode, outline, lengths, *stored)
    num_kept = tf.where(verdict.valid, end - begin, tf.zeros_like(end))
    return block._replace(
        steps=steps_lib.own_rows(block.steps, begin, begin + num_kept),
        outline={
            name: tf.concat([column[:num_kept], column[-1:]], 0)
            for name, column in outline.items()
        },
        episode=episode[tf.newaxis],
        row_splits=tf.stack([0, num_kept]),
        fault=blocks.fault_of(verdict, invalid_episodes),
        episode_id=tf.nest.map_structure(
            lambda leaf: leaf[index : index + 1], block.episode_id
        ),
    )

  result = packs.scan(tf.constant(0, tf.int64), _no_autograph(see)).flat_map(
      _no_autograph(cut)
  )
  if invalid_episodes == 'raise':
    return result.map(
        _no_autograph(lambda index, seen: block_fn(to_block(index, seen)))
    )
  result = result.map(_no_autograph(to_block))
  if invalid_episodes == 'skip':
    result = result.filter(_no_autograph(lambda block: block.fault == ''))
  return result.map(_no_autograph(block_fn))
