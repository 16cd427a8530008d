"""A learner that measures how long it waits for data."""

import tensorflow as tf
from tf_agents.train import learner


class TimedLearner(learner.Learner):
  """TF-Agents' `Learner`, which adds up the time for which it waits for data.

  The time is taken in the graph, around each `next` of the data set, and the
  next train step begins only when the one before has ended. So what is measured
  is time in which the agent did nothing.
  """

  def __init__(self, *args, **kwargs):
    """Creates the learner; all arguments are those of `Learner`."""
    # The base class traces a train step.
    self._waited = tf.Variable(0.0, trainable=False, dtype=tf.float64)
    super().__init__(*args, **kwargs)

  @property
  def waited_seconds(self) -> float:
    """For how long the learner has waited for data since it was made."""
    return self._waited.numpy()

  def run(self, iterations=1, iterator=None, parallel_iterations=1):
    return super().run(iterations, iterator, parallel_iterations)

  def single_train_step(self, iterator):
    return super().single_train_step(_TimedIterator(iterator, self._waited))


class _TimedIterator:
  """An iterator that adds the time of each `next` to a variable."""

  def __init__(self, iterator, seconds: tf.Variable):
    self._iterator = iterator
    self._seconds = seconds

  def __next__(self):
    start = tf.timestamp()
    with tf.control_dependencies([start]):
      element = next(self._iterator)
    with tf.control_dependencies(tf.nest.flatten(element)):
      self._seconds.assign_add(tf.timestamp() - start)
    return element
