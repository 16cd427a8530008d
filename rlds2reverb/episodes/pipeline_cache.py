"""Keeps pipelines, because building one takes long.

Building a pipeline, which TensorFlow traces, takes about a tenth of a second or
more: as long as reading or converting a small data set. Therefore a pipeline is
built once for each spec, as a graph function of its data sets, and is kept for
the next data sets of this spec.
"""

import functools
from typing import Any, Callable, Hashable

import tensorflow as tf

_MAX_PIPELINES = 64

# A pipeline only makes data sets. To optimize it would take longer than to run
# it: `tf.data` optimizes the stages.
_NOT_OPTIMIZED = tf.compat.v1.ConfigProto(
    graph_options=tf.compat.v1.GraphOptions(
        rewrite_options={'disable_meta_optimizer': True}
    )
).SerializeToString()


def cache_pipeline(build: Callable[..., tf.data.Dataset]) -> Callable[..., Any]:
  """Decorates a function so that the pipelines that it builds are kept.

  Args:
    build: a function `(inputs, *settings, **functions)` that builds a pipeline
      of a nest of data sets and tensors, and of other settings, which must be
      hashable. The pipeline must depend on the specs of the inputs and on the
      settings alone. With a function that is not None, it is not kept.

  Returns:
    The decorated function.
  """

  @functools.wraps(build)
  def call(inputs: Any, *settings: Hashable, **functions) -> tf.data.Dataset:
    # A data set in the graph of a function must not leave it.
    has_function = any(one is not None for one in functions.values())
    if has_function or not tf.executing_eagerly():
      return build(inputs, *settings, **functions)
    spec = tf.nest.map_structure(tf.type_spec_from_value, inputs)
    pipeline = _pipeline(build, settings, repr(spec))
    pipeline = pipeline.get_concrete_function(spec)
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    with tf.device('CPU'):
      (variant,) = tf.raw_ops.StatefulPartitionedCall(
          args=leaves + pipeline.captured_inputs,
          Tout=[tf.variant],
          f=pipeline,
          config_proto=_NOT_OPTIMIZED,
      )
    result = tf.data.experimental.from_variant(
        variant, pipeline.structured_outputs.element_spec
    )
    # What a data set reads or calls, such as a generator, lives as long as its
    # Python object.
    result._sources = inputs, pipeline  # pylint: disable=protected-access
    return result

  return call


@functools.lru_cache(maxsize=_MAX_PIPELINES)
def _pipeline(build, settings, unused_spec):
  """Returns a graph function of inputs of one spec."""
  return tf.function(lambda inputs: build(inputs, *settings), autograph=False)
