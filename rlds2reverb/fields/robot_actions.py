"""Sources that make the parts of a robot's action from what was recorded.

The data sets of Open X-Embodiment record grippers in many ways, and some of
them no actions that a policy could learn from. Octo and OpenVLA make one form
of them before they train. These sources do the same, as parts of a mapping:

    StepMapping(action=['action[:6]', GripperOpening('action[6:]', 'closed')])
"""

import dataclasses
from typing import Any, Dict

import gin
import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.fields import field_sources
from rlds2reverb.fields.field_sources import Source

_RECORDED = ('open', 'closed', 'closing', 'nearly_open')


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class GripperOpening:
  """Makes how far a gripper is to open, from 0 for closed to 1 for open.

      recorded="open"         |  -1    0   .3    1 |   clipped to [0, 1]
                              |   0    0   .3    1 |
      recorded="closed"       |  -1    0   .3    1 |   the same, from 1
                              |   1    1   .7    0 |
      recorded="closing"      |   0   .5    0   -1    0 |   a change
                              |   1    0    0    1    1 |
      recorded="nearly_open"  |  .5    1   .6    0   .4 |   made 0 or 1
                              |   1    1    0    0   .4 |

  A change above .1 closes the gripper, and one below -.1 opens it; all others
  leave it as it is. Before the first change it is in the other state than after
  it, and open if there is none. The numbers of `"nearly_open"` are 1 above .95
  and 0 below .05; those between become what is reached after them, and where
  the episode ends before, they become its last number. Both are as Octo
  (`rel2abs_gripper_actions` and `binarize_gripper_actions` of
  `octo/data/utils/data_utils.py`, 241fb35) and OpenVLA (c8f03f4) have them.

  Attributes:
    source: the source of what was recorded: one number, of any dtype.
    recorded: what was recorded, one of those above.
  """

  source: Source
  recorded: str

  def __post_init__(self):
    checks.check_choice('recorded', self.recorded, _RECORDED)

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns float32 `[T]` for an episode with stacked steps.

    Raises:
      ValueError: if the source does not fit the episode, or is more than one
        number.
    """
    values = field_sources.read_alone(self.source, episode, 'GripperOpening')
    if (
        not isinstance(values, tf.Tensor)
        or values.shape[1:].num_elements() != 1
    ):
      raise ValueError(
          f'GripperOpening needs one number, but {self.source!r} is'
          f' {getattr(values, "shape", values)[1:]} in every step.'
      )
    values = tf.reshape(tf.cast(values, tf.float32), [-1])
    if self.recorded == 'closing':
      return _after_changes(values)
    if self.recorded == 'nearly_open':
      return _binary(values)
    values = tf.clip_by_value(values, 0, 1)
    return 1 - values if self.recorded == 'closed' else values


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class NextChange:
  """Makes an action of what the next step's field is more than this step's.

      state                   |   1    3    6    6 |
      NextChange('state')     |   2    3    0    0 |

  The last step has no next one. It gets zeros, as the action of a last step is
  never used. Octo and OpenVLA relabel the actions of BridgeData V2 so.

  Attributes:
    source: the source of the field, numbers or vectors of them.
  """

  source: Source

  def __call__(self, episode: Dict[str, Any]) -> Any:
    """Returns the changes, `[T, ...]`, for an episode with stacked steps.

    Raises:
      ValueError: if the source does not fit the episode.
    """
    return tf.nest.map_structure(
        lambda leaf: tf.concat([leaf[1:], leaf[-1:]], 0) - leaf,
        field_sources.read_alone(self.source, episode, 'NextChange'),
    )


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TextOfCodes:
  """Makes a string of the codes of its characters, which zeros follow.

  Language Table keeps its instructions so, as int32 `[512]`.

  Attributes:
    source: the source of the codes, a vector of integers.
  """

  source: Source

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns strings `[T]` for an episode with stacked steps.

    Raises:
      ValueError: if the source does not fit the episode.
    """
    codes = field_sources.read_alone(self.source, episode, 'TextOfCodes')
    text = tf.strings.unicode_encode(tf.cast(codes, tf.int32), 'UTF-8')
    return tf.strings.regex_replace(text, r'(?s)\x00.*', '')


def _after_changes(changes: tf.Tensor) -> tf.Tensor:
  """Returns the openings, `[T]`, that changes, `[T]`, lead to."""
  opens, closes = changes < -0.1, changes > 0.1
  reached = tf.boolean_mask(tf.where(opens, 1.0, 0.0), opens | closes)
  before = tf.concat([1 - reached, [1.0]], 0)[:1]
  num_changes = tf.cumsum(tf.cast(opens | closes, tf.int32))
  return tf.gather(tf.concat([before, reached], 0), num_changes)


def _binary(openings: tf.Tensor) -> tf.Tensor:
  """Returns openings, `[T]`, with those between 0 and 1 replaced."""
  is_open, is_closed = openings > 0.95, openings < 0.05
  is_end = is_open | is_closed
  ends = tf.boolean_mask(tf.where(is_open, 1.0, 0.0), is_end)
  num_before = tf.cumsum(tf.cast(is_end, tf.int32), exclusive=True)
  return tf.gather(tf.concat([ends, openings[-1:]], 0), num_before)
