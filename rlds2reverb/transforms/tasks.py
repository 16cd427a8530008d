"""The task of a policy: instructions, goals, and masks of missing inputs.

Here steps had both an instruction and a goal, and `DropConditioning` kept one:

    instruction     "pick"   ""       "pick"   ""
    goal            0        g1       0        g3
    goal_step       3        2        3        3
"""

from collections.abc import Sequence

import tensorflow as tf

from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import values

LEVELS = ('episode', 'step')


@base.configurable
class DropConditioning(base.EpisodeTransform):
  """Keeps either the goal or the instruction of a step, at random.

  This is `delete_task_conditioning` of Octo and OpenVLA. A step without an
  instruction keeps its goal. If the goal is dropped, `goal_step` becomes the
  index of the last step.

  A draw depends on the seed, the index of the episode in the data set, and the
  step; see `RelabelGoals`.

  Attributes:
    goal: the path of the goal, of one leaf or several. A dropped goal has zeros
      and empty strings.
    instruction: the path of the instruction, strings `[T]`.
    keep_goal: the probability of keeping the goal, in [0, 1].
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
    instruction = values.one_leaf(steps, self.instruction, values.STRINGS)
    keeps_goal = rows.fractions(self.seed) < self.keep_goal
    keeps_goal |= tf.equal(instruction, '')
    steps = values.put_where(keeps_goal, steps, self.instruction)
    steps = values.put_where(~keeps_goal, steps, self.goal)
    if self.goal_step is None:
      return steps
    last_step = rows.last - rows.first
    return values.put_where(~keeps_goal, steps, self.goal_step, last_step)


@base.configurable
class MarkPadding(base.EpisodeTransform):
  """Adds masks to a dict of fields, which are False where a field is padding.

      image        image   black       instruction    "pick"   ""
      its mask     T       F           its mask       T        F

  This is `add_pad_mask_dict` of Octo and OpenVLA, which treat empty strings and
  empty encoded images as padding. Here black images are padding as well:
  `FitImages` adds them to data sets without the camera.

  Attributes:
    field: the path of the dict, such as the observation.
    mask: the key of the masks in it: a dict with the same keys, each bool
      `[T]`, True if any part of the field is not padding.
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
      leaf_masks = [_is_not_padding(leaf) for leaf in tf.nest.flatten(field)]
      masks[name] = tf.reduce_any(leaf_masks, 0)
    path = *paths.find(steps, self.field), self.mask
    return paths.insert(steps, path, masks)


def _is_not_padding(leaf) -> tf.Tensor:
  """Returns which rows of a leaf are not padding, bool `[N]`."""
  if leaf.dtype == tf.string:
    leaf = tf.strings.length(leaf)
  elif leaf.dtype != tf.uint8 or leaf.shape.rank != 4:
    return tf.ones([tf.shape(leaf)[0]], tf.bool)
  axes = list(range(1, leaf.shape.rank))
  return tf.reduce_any(tf.cast(leaf, tf.bool), axes)


@base.configurable
class AddTimestep(base.EpisodeTransform):
  """Adds the index of each step in its episode, int32 `[T]`, as Octo does.

  Attributes:
    field: the path of the new field.
  """

  field: paths.Path = 'observation/timestep'

  def transform_rows(self, steps, rows):
    return paths.insert(steps, self.field, tf.cast(rows.step, tf.int32))


@base.configurable
class MarkActions(base.EpisodeTransform):
  """Adds `has_action` if it is missing: True for all steps but the last.

      step                          0    1    2 (last)
      has_action, missing           T    T    F
      has_action, of last_action    T    T    T          not changed

  In a mixture, some data sets may have an action in their last step, by the
  `last_action` of their `StepMapping`. With this, all have the same fields.
  """

  def transform_rows(self, steps, rows):
    return {**steps, batch_lib.HAS_ACTION: rows.have_action()}


@base.configurable
class DrawInstruction(base.EpisodeTransform):
  """Draws one of several instructions uniformly, except for empty ones.

      instruction      "pick"   "pick"   "pick"
      instruction_2    "grab"   "grab"   "grab"
      instruction_3    ""       ""       ""
      drawn            "grab"   "grab"   "grab"

  This is Octo's `language_key` with a wildcard, for example for the three
  instructions of DROID; but Octo also draws empty ones, and never the last. A
  draw depends on the seed and the index of the episode in the data set. If all
  instructions are empty, the result is empty. The inverse drops the field.

  Attributes:
    fields: the paths of leaves of strings, `[T]`, or `[T, K]` for K of them.
    target: the path of the result, strings `[T]`, such as
      `observation/instruction`, which agents see.
    level: `"episode"` draws one instruction per episode, from the
      first step: the same field in all steps. `"step"` draws one per step.
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
    leaves = [
        values.one_leaf(steps, path, values.TEXTS) for path in self.fields
    ]
    texts = tf.concat(
        [leaf[:, None] if leaf.shape.rank == 1 else leaf for leaf in leaves], 1
    )
    is_candidate = tf.strings.length(texts) > 0
    fraction = rows.fractions(self.seed)
    if self.level == 'episode':
      is_candidate = tf.gather(is_candidate, rows.first)
      fraction = tf.gather(fraction, rows.first)
    rank = tf.cumsum(tf.cast(is_candidate, tf.int64), axis=1)
    drawn_rank = values.to_index(fraction[:, None], rank[:, -1:])
    # The first column of that rank; without candidates, the first column.
    column = tf.argmax(rank > drawn_rank, axis=1)
    drawn = tf.gather(texts, column, axis=1, batch_dims=1)
    return paths.insert(steps, self.target, drawn)

  def invert(self, steps):
    return values.drop(steps, self.target)
