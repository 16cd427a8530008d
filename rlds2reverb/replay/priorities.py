"""The priorities of items, where a function of their frames gives them."""

from typing import Any, Callable

import numpy as np
import tensorflow as tf


def batched(priority_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """Returns a graph function that gives the priorities of items, `[N]`.

  Args:
    priority_fn: takes the `Trajectory` of an item, and returns its priority.
  """

  @tf.function(reduce_retracing=True)
  def priorities(items):
    # tf.squeeze in a priority function would remove a batch dimension of 1, so
    # there are always two items or more.
    twice = tf.nest.map_structure(
        lambda leaf: tf.concat([leaf, leaf[:1]], 0), items
    )
    # A priority function may return a variable.
    return tf.vectorized_map(
        lambda item: tf.convert_to_tensor(priority_fn(item)), twice
    )[:-1]

  return priorities


def check(
    priorities: np.ndarray, table_name: str, frame_of: Callable[[int], int]
) -> None:
  """Raises a ValueError if a priority is not a number from 0 up.

  Args:
    priorities: the priorities of items, `[N]`.
    table_name: the name of their table.
    frame_of: returns the frame of its episode at which an item starts.
  """
  wrong = np.flatnonzero(~(priorities >= 0))
  if len(wrong):
    raise ValueError(
        'A priority must be a number from 0 up, but that of an item of table'
        f' {table_name!r} is {priorities[wrong[0]]}: of the one that starts at'
        f' frame {frame_of(wrong[0])} of its episode.'
    )
