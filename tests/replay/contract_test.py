"""One trainer's steps on replay buffers of every kind.

Whatever stands behind a replay buffer, a trainer is written once. What must
differ is in a table of docs/guides/replay_buffer.md.
"""

import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory

from rlds2reverb.replay import opening
from rlds2reverb.replay.local import appendable
from rlds2reverb.replay.server import tables
from rlds2reverb.store import sum_tree
from rlds2reverb.trajectories import specs
from tests import golden
from tests.replay.local import replay_testing

_ALPHA = 0.5
_NUM_ITEMS = 3 + 2 + 4
_BATCH = 8
_LOCAL = ('folder', 'appendable')


def _data():
  return golden.stacked(replay_testing.episodes_of((4, 3, 5)))


def _first(frames):
  """Returns what tells the items of a batch apart: their first observation."""
  return np.asarray(frames.observation)[:, 0, 0]


class ContractTest(parameterized.TestCase, tf.test.TestCase):

  def open(self, kind, is_prioritized=True):
    data, kwargs = _data(), {}
    if kind == 'server':
      table = tables.create_reverb_table(
          'items',
          specs.create_trajectory_data_spec(data),
          100,
          'prioritized' if is_prioritized else 'uniform',
          priority_exponent=_ALPHA,
      )
      kwargs = {'reverb_server': True, 'reverb_table': table}
    elif is_prioritized:
      kwargs = {'sampler': sum_tree.Prioritized(alpha=_ALPHA)}
    if kind == 'appendable':
      return appendable.AppendableReplayBuffer(data, 100, **kwargs)
    if kind == 'folder':
      folder = self.create_tempdir().full_path
      kwargs['directory'] = os.path.join(folder, 'new')
    buffer = opening.open_replay_buffer(data, **kwargs)
    self.addCleanup(buffer.close)
    return buffer

  def check_batch(self, frames, info):
    self.assertIsInstance(frames, trajectory.Trajectory)
    self.assertEqual(frames.reward.shape, [_BATCH, 2])
    self.assertEqual(
        [leaf.dtype for leaf in info],
        [tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32],
    )
    for leaf in info:
      self.assertEqual(leaf.shape, [_BATCH, 2])
      self.assertAllEqual(leaf[:, 0], leaf[:, 1])
    self.assertAllEqual(info.table_size, np.full([_BATCH, 2], _NUM_ITEMS))

  def take_all(self, buffer):
    """Returns the keys of the items, by what tells the items apart."""
    keys = {}
    for frames, info in buffer.as_dataset(_BATCH, 2).take(200):
      self.check_batch(frames, info)
      keys.update(zip(_first(frames).tolist(), info.key.numpy()[:, 0].tolist()))
      if len(keys) == _NUM_ITEMS:
        break
    self.assertEqual(sorted(keys), [0, 1, 2, 100, 101, 200, 201, 202, 203])
    return keys

  def check_next_batches(self, buffer):
    # The method of TF-Agents prints a deprecation warning.
    self.assertNotIn('DEPRECATED', buffer.get_next.__doc__)
    self.check_batch(*tf.function(lambda: buffer.get_next(_BATCH, 2))())
    self.check_batch(*buffer.get_next(_BATCH, 2))
    steps, _ = buffer.get_next(_BATCH, 2, time_stacked=False)
    self.assertLen(steps, 2)
    frames, info = buffer.get_next(num_steps=2)
    self.assertEqual([frames.reward.shape, info.key.shape], [[2], [2]])

  def check_what_differs(self, buffer, kind, keys):
    _, info = buffer.get_next(_BATCH, 2)
    unknown = np.array([1 << 60], np.uint64)
    if kind in _LOCAL:
      self.assertEqual(buffer.num_frames(), 12)
      self.assertEqual(sorted(keys.values()), list(range(_NUM_ITEMS)))
      self.assertAllEqual(info.times_sampled, np.zeros([_BATCH, 2]))
      self.assertEqual(buffer.gather_all().reward.shape, [1, 12])
      self.assertNotIn('DEPRECATED', buffer.gather_all.__doc__)
      with self.assertRaises(tf.errors.InvalidArgumentError):
        buffer.update_priorities(unknown, [1.0])
    else:
      self.assertEqual(buffer.num_frames(), _NUM_ITEMS)
      self.assertGreater(info.times_sampled.numpy().max(), 0)
      with self.assertRaises(NotImplementedError):
        buffer.gather_all()
      buffer.update_priorities(unknown, [1.0])
      self.assertEqual(buffer.num_items, _NUM_ITEMS)

  # A server has no trainer that runs eagerly; see `priority_updates_test`.
  @parameterized.parameters(
      ('folder', True), ('appendable', False), ('server', True)
  )
  def test_train_step_samples_and_updates_priorities(self, kind, in_graph):
    buffer = self.open(kind)
    self.assertEqual(buffer.num_items, _NUM_ITEMS)
    keys = self.take_all(buffer)

    def train_step(frames, info):
      weights = buffer.importance_weights(info, 1.0)
      errors = frames.observation[:, 0, 0] + 1
      buffer.update_priorities(info.key, errors)
      return weights, buffer.importance_weights(info, 0.5, normalization='none')

    if in_graph:
      train_step = tf.function(train_step)
    iterator = iter(buffer.as_dataset(_BATCH, 2))
    for _ in range(3):
      frames, info = next(iterator)
      weights, others = train_step(frames, info)
      probability = info.probability.numpy()
      self.assertAllClose(weights, probability.min() / probability, rtol=1e-5)
      self.assertAllClose(others, (_NUM_ITEMS * probability) ** -0.5, rtol=1e-5)

    # The priorities of all items, and draws by these priorities.
    names = np.array(sorted(keys))
    buffer.update_priorities(
        np.array([keys[name] for name in names], np.uint64), names + 1
    )
    expected = (names + 1) ** _ALPHA / np.sum((names + 1) ** _ALPHA)
    # Prefetched batches come first.
    for frames, info in buffer.as_dataset(_BATCH, 2).take(3):
      chosen = np.searchsorted(names, _first(frames))
      self.assertAllClose(info.priority[:, 0], names[chosen] + 1)
      self.assertAllClose(info.probability[:, 0], expected[chosen], rtol=1e-6)
    if kind in _LOCAL:
      # The weight by table is 1 for the smallest priority, which is 1.
      self.assertAllClose(
          buffer.importance_weights(info, 1.0, normalization='table'),
          info.priority.numpy() ** -_ALPHA,
          rtol=1e-5,
      )
    else:
      with self.assertRaisesRegex(ValueError, 'does not report'):
        buffer.importance_weights(info, 1.0, normalization='table')

    for invalid in -1.0, np.nan, np.inf:
      with self.assertRaises(tf.errors.InvalidArgumentError):
        buffer.update_priorities(
            info.key, tf.constant([invalid] * _BATCH, tf.float64)
        )
    for invalid in [1.0] * (_BATCH - 1), 1.0, tf.ones([_BATCH, 1]):
      with self.assertRaises(ValueError):
        buffer.update_priorities(info.key, invalid)
    with self.assertRaisesRegex(ValueError, 'normalization'):
      buffer.importance_weights(info, 1.0, normalization='mean')
    self.check_next_batches(buffer)
    self.check_what_differs(buffer, kind, keys)

  @parameterized.parameters('memory', 'server')
  def test_buffer_without_priorities_refuses_updates(self, kind):
    buffer = self.open(kind, is_prioritized=False)
    _, info = buffer.get_next(_BATCH, 2)
    self.assertAllClose(info.probability, np.full([_BATCH, 2], 1 / _NUM_ITEMS))
    with self.assertRaises(ValueError):
      buffer.importance_weights(info, 1.0)
    with self.assertRaises(ValueError):
      buffer.update_priorities(info.key, [1.0] * _BATCH)
    with self.assertRaisesRegex(ValueError, r'num_steps is 3.*Windows\(3\)'):
      buffer.as_dataset(_BATCH, 3)
    both = lambda frames: (frames.reward, frames.reward[::-1])
    for size in _BATCH, None:
      shape = [2] if size is None else [_BATCH, 2]
      dataset = buffer.as_dataset(size, 2, sequence_preprocess_fn=both)
      self.assertEqual(dataset.element_spec[0][0].shape, shape)
      [((reward, reverse), info)] = dataset.take(1)
      self.assertEqual([reward.shape, info.key.shape], [shape, shape])
      self.assertAllEqual(reverse, reward[..., ::-1])
    buffer.close()
    buffer.close()


if __name__ == '__main__':
  tf.test.main()
