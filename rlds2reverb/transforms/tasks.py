"""The task of a policy: instructions, goals, and masks for missing ones.

In this episode, steps had an instruction and a goal, and each keeps one that is
drawn:

    instruction     "pick"   ""       "pick"   ""
    goal            0        g1       0        g3
    goal_step       3        2        3        3
"""

from typing import Sequence

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values


@base.configurable
class DropConditioning(base.EpisodeTransform):
  """Keeps either the goal or the instruction of a step, at random.

  This is `delete_task_conditioning` of Octo and OpenVLA. A step without an
  instruction keeps its goal. Where the goal is dropped, `goal_step` becomes the
  index of the last step.

  A draw is a function of the seed, of the index of the episode in the data set
  and of the step; see `RelabelGoals`.

  Attributes:
    goal: the path of the goal, of one leaf or several. When it is dropped,
      numbers become zeros and strings empty.
    instruction: the path of the instruction, strings `[T]`.
    keep_goal: the probability of the goal to be kept, in [0, 1].
    goal_step: the path of the index of the goal, integers `[T]`, or None.
    seed: the seed of the draws, an int.
  """

  draws = True

  goal: paths.Path = 'goal'
  instruction: paths.Path = 'observation/instruction'
  keep_goal: float = 0.5
  goal_step: paths.Path = 'goal_step'
  seed: int = 0

  def _check(self):
    values.check_probability('keep_goal', self.keep_goal)

  def transform_rows(self, steps, rows):
    words = values.one_leaf(steps, self.instruction, values.STRINGS)
    keeps_goal = rows.fractions(self.seed) < self.keep_goal
    keeps_goal |= tf.equal(words, '')
    steps = values.put_where(keeps_goal, steps, self.instruction)
    steps = values.put_where(~keeps_goal, steps, self.goal)
    if self.goal_step is None:
      return steps
    last = rows.last - rows.first
    return values.put_where(~keeps_goal, steps, self.goal_step, last)


@base.configurable
class MarkPadding(base.EpisodeTransform):
  """Adds masks to a dict of fields, which are False where a field is padding.

      image        image   black       instruction    "pick"   ""
      its mask     T       F           its mask       T        F

  This is `add_pad_mask_dict` of Octo and OpenVLA, which take empty strings and
  empty encoded images for padding. Here images that are all black are padding,
  too: `FitImages` gives them to data sets without the camera.

  Attributes:
    field: the path of the dict, such as the observation.
    mask: the key of the masks in it: a dict with the same keys, bool `[T]`
      each, True where any part of the field is there.
  """

  field: paths.Path = rlds.OBSERVATION
  mask: str = 'pad_mask_dict'

  def transform_rows(self, steps, rows):
    fields = paths.get(steps, self.field)
    if not isinstance(fields, dict):
      raise ValueError(
          f'{paths.name_of(self.field)} must be a dict of fields, to which'
          f' {self.mask} is added.'
      )
    masks = {}
    for name, field in fields.items():
      found = [_is_there(leaf) for leaf in tf.nest.flatten(field)]
      masks[name] = tf.reduce_any(found, 0)
    path = *paths.find(steps, self.field), self.mask
    return paths.insert(steps, path, masks)


@base.configurable
class AddTimestep(base.EpisodeTransform):
  """Adds the index of each step in its episode, int32 `[T]`, as Octo does.

  Attributes:
    field: the path at which it is added.
  """

  field: paths.Path = 'observation/timestep'

  def transform_rows(self, steps, rows):
    return paths.insert(steps, self.field, tf.cast(rows.step, tf.int32))


@base.configurable
class MarkActions(base.EpisodeTransform):
  """Adds `has_action` where it is missing: all steps but the last have one.

      step                          0    1    2 (last)
      has_action, missing           T    T    F
      has_action, of last_action    T    T    T          as it was

  In a mixture, only some data sets may have an action in their last step, by
  the `last_action` of their `StepMapping`. With this, all have the same fields.
  """

  def transform_rows(self, steps, rows):
    return {**steps, last_steps.HAS_ACTION: rows.have_action()}


def _is_there(leaf) -> tf.Tensor:
  """Returns which rows of a leaf are no padding, bool `[N]`."""
  if leaf.dtype == tf.string:
    leaf = tf.strings.length(leaf)
  elif leaf.dtype != tf.uint8 or leaf.shape.rank != 4:
    return tf.ones([tf.shape(leaf)[0]], tf.bool)
  found = tf.cast(leaf, tf.bool)
  return tf.reduce_any(found, list(range(1, leaf.shape.rank)))


LEVELS = ('episode', 'step')


@base.configurable
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

  def _check(self):
    paths.check_list('fields', self.fields)
    checks.check_choice('level', self.level, LEVELS)
    if not self.fields:
      raise ValueError('There are no fields to draw an instruction from.')

  def transform_rows(self, steps, rows):
    kind = values.TEXTS
    words = [values.one_leaf(steps, path, kind) for path in self.fields]
    words = [one[:, None] if one.shape.rank == 1 else one for one in words]
    words = tf.concat(words, 1)
    is_given = tf.strings.length(words) > 0
    fraction = rows.fractions(self.seed)
    if self.level == 'episode':
      is_given = tf.gather(is_given, rows.first)
      fraction = tf.gather(fraction, rows.first)
    rank = tf.cumsum(tf.cast(is_given, tf.int64), axis=1)
    count = rank[:, -1:]
    drawn = values.below(fraction[:, None], count)
    # The first place of that rank; without any, the first of all.
    place = tf.argmax(rank > drawn, axis=1)
    drawn_words = tf.gather(words, place, axis=1, batch_dims=1)
    return paths.insert(steps, self.target, drawn_words)

  def invert(self, steps):
    return values.drop(steps, self.target)
