"""Draws one instruction from several that an episode has."""

import dataclasses
from typing import Sequence

import gin
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

LEVELS = ('episode', 'step')


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class DrawInstruction(base.EpisodeTransform):
  """Draws one of several instructions, uniformly; empty ones are left out.

      instruction      "pick"   "pick"   "pick"
      instruction_2    "grab"   "grab"   "grab"
      instruction_3    ""       ""       ""
      drawn            "grab"   "grab"   "grab"

  This is Octo's `language_key` with a wildcard, for example for the three
  instructions of DROID; but Octo also draws empty ones, and never the last. A
  draw is a function of the seed and of the index of the episode in the data
  set. If all are empty, so is the result. The inverse leaves the field out.

  Attributes:
    fields: the paths of leaves of strings, `[T]`, or `[T, K]` with K of them.
    target: the path of the result, strings `[T]`, such as
      `observation/instruction`, which agents see.
    level: `"episode"` draws one for the whole episode, from those of its first
      step: the same place in all steps. `"step"` draws one for each step.
    seed: the seed of the draws, an int.
  """

  draws = True

  fields: Sequence[paths.Path]
  target: paths.Path
  level: str = 'episode'
  seed: int = 0

  def __post_init__(self):
    super().__post_init__()
    paths.check_list('fields', self.fields)
    checks.check_choice('level', self.level, LEVELS)
    if not self.fields:
      raise ValueError('There are no fields to draw an instruction from.')

  def transform_rows(self, steps, rows):
    words = tf.concat([_words(steps, path) for path in self.fields], 1)
    is_given = tf.strings.length(words) > 0
    fraction = rows.fractions(self.seed)
    if self.level == 'episode':
      is_given = tf.gather(is_given, rows.first)
      fraction = tf.gather(fraction, rows.first)
    rank = tf.cumsum(tf.cast(is_given, tf.int64), axis=1)
    count = rank[:, -1]
    drawn = tf.cast(fraction * tf.cast(count, tf.float64), tf.int64)
    # The first place of that rank; without any, the first of all.
    place = tf.argmax(rank > tf.minimum(drawn, count - 1)[:, None], axis=1)
    drawn_words = tf.gather(words, place, axis=1, batch_dims=1)
    return values.add(steps, self.target, drawn_words)

  def invert(self, steps):
    return values.drop(steps, self.target)


def _words(steps, path) -> tf.Tensor:
  """Returns a leaf of strings, `[T, K]`."""
  leaf = values.one_leaf(steps, path)
  if leaf.dtype != tf.string or leaf.shape.rank not in (1, 2):
    raise ValueError(
        f'{paths.name_of(path)} must be a string, or a list of strings, for'
        f' each step, but is {leaf.dtype.name} {leaf.shape}.'
    )
  return leaf[:, tf.newaxis] if leaf.shape.rank == 1 else leaf
