"""A source that makes strings from character codes."""

import dataclasses
from typing import Any, Dict

import gin
import tensorflow as tf

from rlds2reverb.fields import field_sources
from rlds2reverb.fields.field_sources import Source


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
    codes = field_sources.read_alone(self.source, episode, 'TextOfCodes')
    if tf.nest.is_nested(codes) or not (
        codes.dtype.is_integer and codes.shape.rank == 2
    ):
      raise ValueError(
          'TextOfCodes needs a vector of integers in every step, but'
          f' {self.source!r} is {field_sources.kind_of(codes)}.'
      )
    text = tf.strings.unicode_encode(tf.cast(codes, tf.int32), 'UTF-8')
    return tf.strings.regex_replace(text, r'(?s)\x00.*', '')
