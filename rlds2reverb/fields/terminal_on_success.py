"""Derives which episodes are terminal from a data set's own field."""

import dataclasses
from typing import Any, Dict

import gin
import tensorflow as tf

from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import field_sources
from rlds2reverb.fields.field_sources import Source


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TerminalOnSuccess:
  """Makes `is_terminal` from success: an episode is terminal if it succeeds.

      success          |  0  0  0  1 |  0  0  1  0 |  0  1  0  0 |
      is_terminal      |  0  0  0  1 |  0  0  0  1 |  0  0  0  0 |

  Some recorders report success with the last step, and some with the transition
  into it; both count. An earlier success does not make the episode terminal.

  Attributes:
    success: the source of the success, one number or bool.
  """

  success: Source

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns bool `[T]` for an episode with stacked steps."""
    success = field_sources.read_alone(
        self.success, episode, 'TerminalOnSuccess'
    )
    success = steps_lib.one_a_step('success', success, tf.bool)
    at_end = tf.reduce_any(success[-2:])
    return last_steps.is_last(tf.size(success)) & at_end
