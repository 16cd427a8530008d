"""Batches as a `tf.data.Dataset`."""

from typing import Any

import tensorflow as tf
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import private


def as_dataset(batches: Any, start: int, **kwargs: Any) -> tf.data.Dataset:
  """Returns batches as a data set; see `Batches.as_dataset`."""
  spec = batches.spec
  names = set(trajectory.Trajectory._fields)
  is_trajectory = isinstance(spec, dict) and set(spec) == names

  def to_tensor_spec(leaf):
    dtype = tf.as_dtype(
        tf.string if leaf.dtype == 'string' else leaf.numpy_dtype
    )
    return tf.TensorSpec(leaf.shape, dtype)

  def generate():
    with batches.iterate(start, **kwargs) as iterator:
      yield from iterator

  dataset = tf.data.Dataset.from_generator(
      generate, output_signature=tree.map_structure(to_tensor_spec, spec)
  )
  if is_trajectory:
    dataset = dataset.map(lambda batch: trajectory.Trajectory(**batch))
  return private.WrappedDataset(dataset)
