"""Decorators and checks for functions that become graphs."""

import functools
from typing import Any

import tensorflow as tf

# AutoGraph rewrites the `if` and `for` of a function that depend on tensors. In
# a function that calls many others, it takes most of a second to find that
# there are none, and it changes the errors. So every traced function of this
# library that calls others has this decorator.
no_autograph = tf.autograph.experimental.do_not_convert

# A decorator for functions that a graph uses in several places, and that take
# long to build.
built_once = functools.partial(
    tf.function,
    autograph=False,
    experimental_attributes={'_noinline': True},
)


def asserted(nest: Any, condition: Any, *message: Any) -> Any:
  """Returns a nest of tensors, after a check that a condition holds.

  Args:
    nest: the tensors.
    condition: bool `[]`.
    *message: what the `InvalidArgumentError` says otherwise: strings and
      tensors.
  """
  with tf.control_dependencies([tf.debugging.Assert(condition, list(message))]):
    return tf.nest.map_structure(tf.identity, nest)
