"""How functions become graphs."""

import functools
from typing import Any

import tensorflow as tf

# AutoGraph rewrites the `if` and `for` of a function that depend on tensors. To
# find that there are none takes it most of a second in a function that calls
# many others, and its errors are not those that were raised. So whatever this
# library has traced that calls other functions has this decorator.
no_autograph = tf.autograph.experimental.do_not_convert

# A decorator for functions that are used in several places of a graph, and take
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
