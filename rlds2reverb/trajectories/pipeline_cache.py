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
      specs = tf.nest.map_structure(
          lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), tables
      )
    pipeline, element_spec = _pipeline(
        build, settings, _Specs(data.element_spec, specs)
    )
    variant = pipeline(tf.data.experimental.to_variant(data), tables)
    result = tf.data.experimental.from_variant(variant, element_spec)
    # Sources of a data set, such as a generator, live as long as its Python
    # object.
    result._source = data  # pylint: disable=protected-access
    return result

  return call


class _Specs:
  """The specs of a data set's elements and of tables, which can be hashed."""

  def __init__(self, element: Any, tables: Any):
    self.element = element
    self.tables = tables
    self._key = repr((element, tables))

  def __eq__(self, other):
    return self._key == other._key

  def __hash__(self):
    return hash(self._key)


@functools.lru_cache(maxsize=_MAX_PIPELINES)
def _pipeline(build, settings, specs):
  """Returns a pipeline, and the spec of its elements; see `cache_pipeline`.

  The pipeline is a graph function of the variant of a data set, and of tables.
  """
  element_specs = []

  @tf.function(autograph=False)
  def to_variant(variant, tables):
    result = build(
        tf.data.experimental.from_variant(variant, specs.element),
        tables,
        settings,
    )
    element_specs[:] = [result.element_spec]
    return tf.data.experimental.to_variant(result)

  to_variant = to_variant.get_concrete_function(
      tf.TensorSpec([], tf.variant), specs.tables
  )

  return to_variant, element_specs[0]
