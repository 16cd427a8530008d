"""Sources that derive a field of RLDS from another field of the data."""

import dataclasses
from typing import Any, Dict

import gin
import tensorflow as tf

from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import sources
from rlds2reverb.fields.sources import Source


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
    success = sources.read_alone(self.success, episode, 'TerminalOnSuccess')
    success = steps_lib.one_a_step('success', success, tf.bool)
    at_end = tf.reduce_any(success[-2:])
    return last_steps.is_last(tf.size(success)) & at_end


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TextOfCodes:
  """Makes a string of character codes, up to the zeros that follow them.

      codes       | 112 117 115 104   0   0 |
      text        | 'push'                  |

  Language Table stores its instructions in this form, int32 `[512]`.

  Attributes:
    source: the source of the codes, a vector of integers.
  """

  source: Source

  def __call__(self, episode: Dict[str, Any]) -> tf.Tensor:
    """Returns strings `[T]` for an episode with stacked steps.

    Raises:
      ValueError: if the source does not fit the episode, or is not a vector of
        integers.
    """
    codes = sources.read_alone(self.source, episode, 'TextOfCodes')
    if tf.nest.is_nested(codes) or not (
        codes.dtype.is_integer and codes.shape.rank == 2
    ):
      raise ValueError(
          'TextOfCodes needs a vector of integers in every step, but'
          f' {self.source!r} is {sources.kind_of(codes)}.'
      )
    text = tf.strings.unicode_encode(tf.cast(codes, tf.int32), 'UTF-8')
    return tf.strings.regex_replace(text, r'(?s)\x00.*', '')
