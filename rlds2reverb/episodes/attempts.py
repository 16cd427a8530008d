"""Catches errors in graph mode, which has no `try`."""

from typing import Any, Callable, Optional

import tensorflow as tf

from rlds2reverb.episodes import graphs


def attempt(
    data: tf.data.Dataset,
    function: Callable[..., Any],
    otherwise: Callable[..., Any],
    num_parallel_calls: Optional[int] = None,
) -> tf.data.Dataset:
  """Maps a function over a data set, and another one where that fails.

  Args:
    data: a data set.
    function: a function of an element, in graph mode.
    otherwise: a function of the spec of the result, and of an element. Its
      result takes the place of one that failed.
    num_parallel_calls: how many elements are handled at a time.

  Returns:
    A data set of as many elements, in the same order.
  """

  def attempted(*element):
    one = tf.data.Dataset.from_tensors(element)
    made = one.map(function)
    instead = one.map(lambda *one: otherwise(made.element_spec, *one))
    # After an error, the first data set has no element.
    return made.ignore_errors().concatenate(instead).take(1)

  return graphs.flat_map(data, attempted, num_parallel_calls)
