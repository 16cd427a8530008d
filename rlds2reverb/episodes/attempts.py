"""Catches errors in graph mode, which has no `try`."""

from typing import Any, Callable, Tuple

import tensorflow as tf

from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import steps as steps_lib


def attempt(
    function: Callable[..., Any],
    *args: Any,
    otherwise: Callable[[Any], Any] = steps_lib.zeros,
) -> Tuple[tf.Tensor, Any]:
  """Calls a function, and tells whether it failed.

  Args:
    function: a function that returns a nest of tensors, in graph mode.
    *args: its arguments, nests of tensors.
    otherwise: a function of the spec of the result. It returns the values for a
      failure: by default zeros, whose unknown dimensions are 0.

  Returns:
    bool `[]`, whether it succeeded; and the result of the function, or of
    `otherwise`.
  """
  # After an error, the data set has one element fewer.
  result = tf.data.Dataset.from_tensors(args).map(
      graphs.no_autograph(lambda *args: (True, function(*args)))
  )
  nothing = (False, otherwise(result.element_spec[1]))
  return (
      result.ignore_errors()
      .concatenate(tf.data.Dataset.from_tensors(nothing))
      .take(1)
      .get_single_element()
  )
