"""A learner that measures how long it waits for data."""

import math
import time

import tensorflow as tf
from tf_agents.train import learner


class TimedLearner(learner.Learner):
  """TF-Agents' `Learner`, which measures for how long it waits for data.

  The time is taken in the graph, around each `next` of the data set. A train
  step asks for its batch when the step before has ended, and does nothing else
  before it has the batch. So the agent is idle in the measured time.
  """

  def __init__(self, *args, **kwargs):
    """Creates the learner; all arguments are those of `Learner`."""
    self._waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)
    self._seconds = None
    super().__init__(*args, **kwargs)

  @property
  def waiting_share(self) -> float:
    """The share of all calls of `run` in which the agent waited for data.

    The first call is left out, because it traces the train step. NaN if there
    was no other.
    """
    if not self._seconds:
      return float('nan')
    return self.waited_seconds / self._seconds

  @property
  def waited_seconds(self) -> float:
    """The seconds that the agent has waited, in all calls after the first."""
    return float(self._waited.numpy())

  def run(self, iterations=1, iterator=None, parallel_iterations=1):
    start = time.perf_counter()
    loss_info = super().run(iterations, iterator, parallel_iterations)
    if self._seconds is None:
      self._seconds = 0.0
      self._waited.assign(0.0)
    else:
      self._seconds += time.perf_counter() - start
    return loss_info

  def single_train_step(self, iterator):
    start = tf.timestamp()
    with tf.control_dependencies([start]):
      batch = next(iterator)
    with tf.control_dependencies(tf.nest.flatten(batch)):
      is_counted = self._waited.assign_add(
          tf.timestamp() - start, read_value=False
      )
    # Otherwise operations that need no data, such as random numbers, would run
    # meanwhile, and their time would count.
    with tf.control_dependencies([is_counted]):
      return super().single_train_step(iter([batch]))


def describe_waiting(share: float) -> str:
  """Returns a clause about how long a learner has waited.

  Args:
    share: its `waiting_share`. While that is not known, the result is empty.
  """
  if math.isnan(share):
    return ''
  return f', waiting for data {share:.1%} of the time'
