"""Judges episodes, by their outlines, before they become blocks."""

import dataclasses
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from rlds2reverb.episodes import outlines


class Verdict(NamedTuple):
  """The judgement of an episode: whether it is valid, and if not, why.

  Attributes:
    valid: bool `[]`.
    describe: a function that makes the message, string `[]`, in graph mode. The
      message says what is wrong, and where. It has no meaning if the episode is
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


@dataclasses.dataclass(frozen=True)
class Judge:
  """Says which episodes are valid, and how to treat the others.

  Attributes:
    inspect: the function that judges an episode before any of it comes out; see
      `Inspect`. It must refuse an episode without steps if
      `invalid_episodes="raise"`; otherwise it may accept one, which then makes
      no block.
    invalid_episodes: `"raise"` raises an error; `"skip"` leaves the episode
      out; `"mark"` lets a block without steps pass, which carries the fault.
    are_valid: a function that judges several episodes together. `inspect` is
      called only for episodes that it does not accept; without it, for all.
    find_nan: whether the outline that is inspected has the column
      `outlines.NAN_FIELD`, which is about the fields of the blocks.
  """

  inspect: Inspect
  invalid_episodes: str
  are_valid: Optional[AreValid] = None
  find_nan: bool = False


class Seen(NamedTuple):
  """Episodes whose outline has been read.

  Attributes:
    steps: the used fields, `[N, ...]`; see `nested.Head`.
    outline: `[N]`, of all steps; `[0]` if the lengths of the fields differ.
    row_splits: int64 `[E + 1]`: where each episode has its rows of the outline.
    episode: int64 `[E]`: the index of each episode in the data set.
    fields: a dict of other fields of the episodes, every leaf `[E, ...]`.
    are_valid: bool `[]`: whether all are known to be valid.
    lengths: int32 `[leaves]`, the lengths of all leaves that are used; `()` if
      they are known to be the same.
    fault: see `packs.Pack`.
    rest: see `nested.Head`; `()` if steps are not nested.
  """

  steps: Any
  outline: outlines.Outline
  row_splits: tf.Tensor
  episode: tf.Tensor
  fields: Any
  are_valid: tf.Tensor
  lengths: Any = ()
  fault: Any = ()
  rest: Any = ()


def fault_of(verdict: Verdict, invalid_episodes: str) -> tf.Tensor:
  """Returns the fault of an episode, string `[]`; empty if it is valid.

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
