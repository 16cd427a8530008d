"""Sources that derive a field of RLDS from another field of the data."""

import dataclasses
from typing import Any

import gin
import tensorflow as tf

from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import sources
from rlds2reverb.fields.sources import Source


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TerminalOnSuccess(sources.Derived):
  """Makes `is_terminal` from success: an episode is terminal if it succeeds.

      success          |  0  0  0  1 |  0  0  1  0 |  0  1  0  0 |
      is_terminal      |  0  0  0  1 |  0  0  0  1 |  0  0  0  0 |

  Some recorders report success with the last step, and some with the transition
  into it; both count. An earlier success does not make the episode terminal.

  Attributes:
    success: the source of the success, one number or bool.
  """

  success: Source

  def derive(self, value: Any, rows: sources.Rows) -> tf.Tensor:
    success = steps_lib.one_a_step('success', value, tf.bool)
    return rows.last & (success | (tf.roll(success, 1, 0) & ~rows.first))


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class TextOfCodes(sources.Derived):
  """Makes a string of character codes, up to the zeros that follow them.

      codes       | 112 117 115 104   0   0 |
      text        | 'push'                  |

  Language Table stores its instructions in this form, int32 `[512]`.

  Attributes:
    source: the source of the codes, a vector of integers.
  """

  source: Source

  def derive(self, value: Any, rows: sources.Rows) -> tf.Tensor:
    is_vector = not tf.nest.is_nested(value) and value.shape.rank == 2
    if not is_vector or not value.dtype.is_integer:
      raise ValueError(
          'TextOfCodes needs a vector of integers in every step, but'
          f' {self.source!r} is {sources.kind_of(value)}.'
      )
    text = tf.strings.unicode_encode(tf.cast(value, tf.int32), 'UTF-8')
    return tf.strings.regex_replace(text, r'(?s)\x00.*', '')
