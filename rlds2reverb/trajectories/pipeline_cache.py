"""Keeps the pipelines of conversions, because building one takes long.

Building a pipeline, which TensorFlow traces, takes about a tenth of a second:
as long as converting a small data set. Therefore a pipeline is built once for
each spec, as a graph function of the data set, and is kept for the next data
set of this spec.
"""

import functools
from typing import Any, Callable, Hashable

import tensorflow as tf

_MAX_PIPELINES = 32


def cache_pipeline(build: Callable[..., tf.data.Dataset]) -> Callable[..., Any]:
  """Decorates a function so that the pipelines that it builds are kept.

  Args:
    build: a function `(data, tables, settings, function=None)` that builds a
      pipeline of a data set, a nest of tensors or None, and other settings,
      which must be hashable. The pipeline must depend on the specs of the first
      two and on the settings alone. If it calls a `function`, it is not kept.

  Returns:
    The decorated function.
  """

  @functools.wraps(build)
  def call(
      data: tf.data.Dataset, tables: Any, settings: Hashable, function=None
  ):
    # A data set in the graph of a function must not leave it.
    if function is not None or not tf.executing_eagerly():
      return build(data, tables, settings, function)
    specs = None
    if tables is not None:
      specs = tf.nest.map_structure(tf.type_spec_from_value, tables)
    pipeline = _pipeline(build, settings, repr((data.element_spec, specs)))
    result = pipeline(data, tables)
    # Sources of a data set, such as a generator, live as long as its Python
    # object.
    result._source = data  # pylint: disable=protected-access
    return result

  return call


@functools.lru_cache(maxsize=_MAX_PIPELINES)
def _pipeline(build, settings, unused_specs):
  """Returns a graph function of a data set and of tables, for one spec each."""
  return tf.function(
      lambda data, tables: build(data, tables, settings), autograph=False
  )
