"""The task of a policy: instructions, goals, and masks for missing ones.

In this episode, steps had an instruction and a goal, and each keeps one that is
drawn:

    instruction     "pick"   ""       "pick"   ""
    goal            0        g1       0        g3
    goal_step       3        2        3        3
"""

import dataclasses

import gin
import tensorflow as tf

from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import packs as packs_lib
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import vectors
from rlds2reverb.transforms import whole_episodes


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class DropConditioning(whole_episodes.WholeEpisodeTransform):
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

  def __post_init__(self):
    super().__post_init__()
    if not 0 <= self.keep_goal <= 1:
      raise ValueError(f'keep_goal must be in [0, 1], but is {self.keep_goal}.')

  def transform_rows(self, steps, rows):
    words = vectors.strings(steps, self.instruction)
    keeps_goal = rows.fractions(self.seed) < self.keep_goal
    keeps_goal |= tf.equal(words, '')
    words = tf.where(keeps_goal, '', words)
    steps = paths.map_leaves(lambda *_: words, steps, self.instruction)

    def drop(unused_name, leaf):
      mask = tf.reshape(keeps_goal, [-1] + [1] * (leaf.shape.rank - 1))
      nothing = tf.zeros([], leaf.dtype)  # the empty string, too
      return tf.where(mask, leaf, nothing)

    steps = paths.map_leaves(drop, steps, self.goal)
    if self.goal_step is None:
      return steps
    last = rows.last - rows.first
    return paths.map_leaves(
        lambda _, step: tf.where(keeps_goal, step, tf.cast(last, step.dtype)),
        steps,
        self.goal_step,
    )


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class MarkPadding(whole_episodes.WholeEpisodeTransform):
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
      masks[name] = tf.reduce_any(tf.stack(found), axis=0)
    return paths.insert(
        steps, (*paths.find(steps, self.field), self.mask), masks
    )


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class AddTimestep(whole_episodes.WholeEpisodeTransform):
  """Adds the index of each step in its episode, int32 `[T]`, as Octo does.

  Attributes:
    field: the path at which it is added.
  """

  field: paths.Path = 'observation/timestep'

  def transform_rows(self, steps, rows):
    step = tf.cast(rows.row - rows.first, tf.int32)
    return paths.insert(steps, paths.split(self.field), step)


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class DropEnd(whole_episodes.PackTransform):
  """Drops the last step of an episode if it has no action.

  Octo and OpenVLA do so where they make actions of states. The step before gets
  its flags, and keeps its action: `has_action` says that it counts. The result
  is for robot learning, as the observation to which the last action leads is
  lost. The only step of an episode stays.

      step          0   1   2 (last)          step          0   1 (last)
      action        a0  a1  -                 action        a0  a1
      has_action    T   T   F                 has_action    T   T
      is_last       F   F   T                 is_last       F   T
  """

  def transform_pack(self, pack, episode_index=None):
    rows = self._rows(pack)
    is_last = tf.equal(rows.row, rows.last)
    have_action = last_steps.have_action(pack.steps, is_last)
    is_dropped = is_last & ~have_action & (rows.last > rows.first)
    of_episode = tf.gather(is_dropped, rows.last)
    pack = pack._replace(
        steps={**pack.steps, last_steps.HAS_ACTION: have_action | of_episode}
    )
    kept = tf.where(~is_dropped)[:, 0]
    # Where the last step is dropped, the step before it is the last.
    flags_of = tf.gather(rows.next(), kept)
    flags_of = tf.where(tf.gather(is_dropped, flags_of), flags_of, kept)
    flags = {
        flag: tf.gather(pack.steps[flag], flags_of)
        for flag in (rlds.IS_LAST, rlds.IS_TERMINAL)
        if flag in pack.steps
    }
    pack = packs_lib.keep_rows(pack, kept)
    return pack._replace(steps={**pack.steps, **flags})


def _is_there(leaf) -> tf.Tensor:
  """Returns which rows of a leaf are no padding, bool `[N]`."""
  length = tf.shape(leaf)[0]
  if leaf.dtype == tf.string:
    found = tf.strings.length(leaf) > 0
  elif leaf.dtype == tf.uint8 and leaf.shape.rank == 4:
    found = tf.cast(leaf, tf.bool)
  else:
    return tf.ones([length], tf.bool)
  return tf.reduce_any(tf.reshape(found, [length, -1]), axis=1)
