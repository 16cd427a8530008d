"""Transforms of the gripper's numbers in an action.

An absolute command is 1 where the gripper is to be open and 0 where it is to be
closed, as in Octo and OpenVLA, whose functions of like names these follow.
If the action of an episode's last step has no meaning, it is ignored, and
becomes the command before it; see `episodes.last_steps`.
"""

from typing import Callable, Optional

import tensorflow as tf

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.transforms import base
from rlds2reverb.transforms import episode_rows
from rlds2reverb.transforms import values


class _GripperTransform(base.EpisodeTransform):
  """Makes absolute commands by those around them, as `_absolute` does."""

  field: paths.Path
  index: Optional[int]
  _absolute: Callable[[tf.Tensor, episode_rows.EpisodeRows], tf.Tensor]

  def transform_rows(self, steps, rows):
    def absolute(command):
      values.check_kind(paths.name_of(self.field), command, values.COLUMN)
      return self._absolute(command, rows)

    return values.change_one(absolute, steps, self.field, self.index)


@base.configurable
class BinarizeGripper(_GripperTransform):
  """Makes absolute commands that pass between 0 and 1 either 0 or 1.

  A command between them is on the way to the next clear one, and becomes that
  one. Where no clear one follows, it becomes the last command of the episode,
  as in Octo, which is not binary:

      action     .02  .5  .98  .7   .4 (last step)
      result      0    1   1   .7   .7

  It has no inverse: `invert` changes nothing.

  Attributes:
    field: the path of the leaf of floats, such as `action`.
    index: which number of its last axis is the gripper's, counted from the end
      where it is below 0; None if the field is that number itself.
    closed_below: commands below it are 0.
    open_above: commands above it are 1.
  """

  field: paths.Path = rlds.ACTION
  index: Optional[int] = -1
  closed_below: float = 0.05
  open_above: float = 0.95

  def _absolute(self, command, rows):
    is_open = command > self.open_above
    is_clear = is_open | (command < self.closed_below)
    row = rows.last_action()
    clear = rows.nearest(is_clear & rows.have_action(), backward=False)
    clear = tf.gather(clear, tf.minimum(rows.row, row))
    opens = tf.cast(_at(is_open, clear), command.dtype)
    made = tf.where(clear >= 0, opens, tf.gather(command, row))
    # An episode of one step need not have an action.
    has_none = (rows.first == rows.last) & ~rows.have_action()
    return tf.where(has_none, command, made)


@base.configurable
class RelativeToAbsoluteGripper(_GripperTransform):
  """Makes absolute commands of relative ones: +1 closes, -1 opens, 0 keeps.

  Before its first command, the gripper is taken to be the opposite of it. Where
  an episode has no command, it is open:

      relative    0   1   0   0  -1   0 (last step)
      absolute    1   0   0   0   1   1

  The inverse, `relative`, needs the command before. `invert` changes nothing.

  Attributes:
    field: the path of the leaf of floats, such as `action`.
    index: which number of its last axis is the gripper's, counted from the end
      where it is below 0; None if the field is that number itself.
    threshold: commands between this and its negative count as 0.
  """

  field: paths.Path = rlds.ACTION
  index: Optional[int] = -1
  threshold: float = 0.1

  def _check(self):
    if not self.threshold >= 0:
      raise ValueError(f'threshold must be 0 or more, but is {self.threshold}.')

  def _absolute(self, command, rows):
    opens = command < -self.threshold
    is_command = (opens | (command > self.threshold)) & rows.have_action()
    before = rows.nearest(is_command, backward=True)
    after = rows.nearest(is_command, backward=False)
    is_open = ~_at(opens, after) | (after < 0)
    is_open = tf.where(before >= 0, _at(opens, before), is_open)
    return tf.cast(is_open, command.dtype)

  @staticmethod
  def relative(absolute: tf.Tensor, previous: tf.Tensor) -> tf.Tensor:
    """Returns the relative command that leads to an absolute one.

    It undoes this transform when a policy is deployed.

    Args:
      absolute: the policy's command, floats of any shape, from 0 (closed) to 1
        (open). From 0.5 up it counts as open.
      previous: the command before, of the same shape; at the start of an
        episode, the state of the gripper.

    Returns:
      +1 where the gripper is to close, -1 where it is to open, and 0 where it
      stays, in the dtype of `absolute`.
    """
    commands = [tf.convert_to_tensor(one) for one in (absolute, previous)]
    for name, command in zip(('absolute', 'previous'), commands):
      values.check_kind(name, command, values.FLOATS)
    closed, was_closed = (
        tf.cast(command < 0.5, commands[0].dtype) for command in commands
    )
    return closed - was_closed


@base.configurable
class InvertGripper(values.FieldTransform):
  """Turns the gripper's command, so that 1 is open: `x` becomes `1 - x`.

  Attributes:
    field: the path of the leaf of floats, such as `action`.
    index: which number of its last axis is the gripper's, counted from the end
      where it is below 0; None if the field is that number itself.
    closed: the command that closes it in the data, such as 255.
  """

  field: paths.Path = rlds.ACTION
  index: Optional[int] = -1
  closed: float = 1.0

  def _change(self, steps, undo):
    def turn(one):
      return (1 - one) * self.closed if undo else 1 - one / self.closed

    return values.change_one(turn, steps, self.field, self.index)


def _at(column, row):
  """Returns `column[row]`, and any number where there is no such row."""
  return tf.gather(column, tf.maximum(row, 0))
