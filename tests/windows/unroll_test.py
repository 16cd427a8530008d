"""Tests of unrolling episodes, and of burn-in."""

from absl.testing import parameterized
import numpy as np
from rlds2reverb.windows import unroll
import tensorflow as tf

from tests import contract

_SIX = contract.make_steps(range(7), [1, 2, 3, 4, 5, 6], terminal=False)


def _expected(steps, length, residual):
  """Returns the chunks as lists of rows, their masks and first rows."""
  rows = contract.transitions(steps)
  chunks, masks, firsts = [], [], []
  for first in range(0, len(rows), length):
    chunk = rows[first : first + length]
    missing = length - len(chunk)
    mask = [True] * len(chunk) + [False] * missing
    if missing:
      if residual == 'drop':
        break
      if residual == 'overlap' and len(rows) >= length:
        first = len(rows) - length
        chunk, mask = rows[first:], [True] * length
      elif residual == 'repeat_last':
        chunk = chunk + [chunk[-1]] * missing
      else:
        null = {**contract.zero_like(rows[0]), 'is_last': np.bool_(True)}
        chunk = chunk + [null] * missing
    chunks.append(chunk)
    masks.append(mask)
    firsts.append(first)
  return chunks, masks, firsts


class UnrollTest(parameterized.TestCase, tf.test.TestCase):

  def _rewards(self, steps, length, residual):
    chunks = unroll.unroll(steps, length, residual)
    return chunks['reward'].numpy().tolist(), chunks['mask'].numpy().tolist()

  def test_no_residual(self):
    for residual in unroll.RESIDUALS:
      rewards, mask = self._rewards(_SIX, 3, residual)
      self.assertEqual(rewards, [[1, 2, 3], [4, 5, 6]])
      self.assertEqual(mask, [[True] * 3] * 2)

  @parameterized.parameters(
      ('repeat_last', [[1, 2, 3, 4], [5, 6, 6, 6]], [1, 1, 0, 0]),
      ('overlap', [[1, 2, 3, 4], [3, 4, 5, 6]], [1, 1, 1, 1]),
      ('drop', [[1, 2, 3, 4]], None),
      ('null', [[1, 2, 3, 4], [5, 6, 0, 0]], [1, 1, 0, 0]),
  )
  def test_residuals(self, residual, expected, last_mask):
    rewards, mask = self._rewards(_SIX, 4, residual)
    self.assertEqual(rewards, expected)
    self.assertEqual(mask[0], [True] * 4)
    if last_mask:
      self.assertEqual(mask[1], list(map(bool, last_mask)))

  def test_null_rows_are_last_and_have_no_discount(self):
    chunks = unroll.unroll(_SIX, 4, 'null')
    self.assertAllEqual(chunks['is_last'][1], [False, True, True, True])
    self.assertAllEqual(chunks['discount'][1], [1, 1, 0, 0])

  @parameterized.parameters(
      ('repeat_last', [1, 1, 1, 1]),
      ('overlap', [1, 0, 0, 0]),
      ('null', [1, 0, 0, 0]),
  )
  def test_one_transition(self, residual, expected):
    steps = contract.make_steps([0, 1], [1], terminal=True)
    rewards, mask = self._rewards(steps, 4, residual)
    self.assertEqual(rewards, [expected])
    self.assertEqual(mask, [[True, False, False, False]])
    self.assertEqual(self._rewards(steps, 4, 'drop')[0], [])

  @parameterized.parameters(*unroll.RESIDUALS)
  def test_edges_against_a_loop(self, residual):
    length = 4

    def check(steps, result):
      chunks, masks, firsts = _expected(steps, length, residual)
      mask, states = result.pop('mask'), result.pop('initial_state')
      contract.assert_rows(self, result, [contract.stack(c) for c in chunks])
      self.assertAllEqual(mask, np.reshape(masks, [-1, length]))
      contract.assert_rows(
          self,
          states,
          [
              chunk[0]['state']
              if first
              else contract.zero_like(chunk[0]['state'])
              for first, chunk in zip(firsts, chunks)
          ],
      )

    spec = contract.check_everywhere(
        self,
        lambda steps: unroll.unroll(steps, length, residual, state='state'),
        contract.edge_episodes(length),
        check,
    )
    self.assertEqual(
        spec['observation']['camera'],
        tf.TensorSpec([None, length, 2, 1], tf.uint8),
    )
    self.assertEqual(
        spec['initial_state']['c'][0], tf.TensorSpec([None, 1], tf.float32)
    )

  def test_fields_of_the_names_that_are_added(self):
    for name in ('mask', 'initial_state', 'next_observation'):
      steps = {**_SIX, name: _SIX['reward']}
      with self.assertRaisesRegex(
          ValueError, f'field {name!r} already.*RenameFields'
      ):
        unroll.unroll(steps, 3, state='observation')
    # Where no column of that name is added, the field stays.
    steps = {**_SIX, 'initial_state': _SIX['reward']}
    chunks = unroll.unroll(steps, 3)
    self.assertAllEqual(chunks['initial_state'], [[1, 2, 3], [4, 5, 6]])

  def test_another_name_for_the_mask(self):
    own = {**_SIX, 'mask': _SIX['reward']}
    chunks = unroll.unroll(own, 4, mask_name='is_real')
    self.assertAllEqual(chunks['mask'], [[1, 2, 3, 4], [5, 6, 6, 6]])
    self.assertAllEqual(chunks['is_real'], [[1, 1, 1, 1], [1, 1, 0, 0]])
    with self.assertRaisesRegex(ValueError, "field 'reward' already"):
      unroll.unroll(_SIX, 4, mask_name='reward')

  def test_observation_without_fields(self):
    chunks = unroll.unroll({**_SIX, 'observation': {}}, 4)
    self.assertAllEqual(chunks['reward'], [[1, 2, 3, 4], [5, 6, 6, 6]])
    self.assertEqual(chunks['next_observation'], {})

  def test_a_length_that_is_not_known_when_the_pipeline_is_built(self):
    with self.assertRaisesRegex(
        ValueError, 'unroll_length must be .*when the pipeline is built'
    ):
      tf.data.Dataset.range(1, 3).map(
          lambda length: unroll.unroll(_SIX, length)
      )
    with self.assertRaisesRegex(ValueError, 'unroll_length must be'):
      unroll.unroll(_SIX, tf.constant(3))
    chunks = unroll.unroll(_SIX, np.int64(3))
    self.assertAllEqual(chunks['reward'], [[1, 2, 3], [4, 5, 6]])

  def test_bad_arguments(self):
    for message, arguments in (
        ('unroll_length must be a positive integer', {'unroll_length': 0}),
        ('Did you mean overlap', {'residual': 'overlapp'}),
        ('Did you mean observation', {'state': 'observaton'}),
    ):
      with self.assertRaisesRegex(ValueError, message):
        unroll.unroll(_SIX, **{'unroll_length': 2, **arguments})


class BurnInTest(parameterized.TestCase, tf.test.TestCase):

  def _sequences(self, length, time_major=False):
    value = np.stack([np.arange(length), 100 + np.arange(length)])
    value = value.T if time_major else value
    return {
        'observation': {'a': tf.constant(value)},
        'action': (tf.constant(value),),
        'reward': tf.constant(value, tf.float32),
        'is_terminal': tf.constant(value == 0),
        'weight': tf.constant(value),
    }

  @parameterized.parameters(False, True)
  def test_n_step(self, time_major):
    parts = unroll.split_burn_in(
        self._sequences(6, time_major), 2, 2, time_major=time_major
    )
    row = lambda part: (part[:, 0] if time_major else part[0]).numpy().tolist()
    self.assertEqual(row(parts.burn_in_observation['a']), [0, 1, 2, 3])
    self.assertEqual(row(parts.main_observation['a']), [2, 3])
    self.assertEqual(row(parts.target_observation['a']), [4, 5])
    self.assertEqual(row(parts.action[0]), [2, 3])
    self.assertEqual(row(parts.reward), [2, 3])
    self.assertEqual(row(parts.is_terminal), [False] * 4)
    self.assertEqual(row(parts.weight), [2, 3, 4, 5])

  def test_a_longer_main_part(self):
    parts = unroll.split_burn_in(self._sequences(9), 2, 2)
    self.assertAllEqual(parts.main_observation['a'][0], [2, 3, 4, 5, 6])
    self.assertAllEqual(parts.target_observation['a'][0], [4, 5, 6, 7, 8])

  def test_without_n_step(self):
    parts = unroll.split_burn_in(self._sequences(3), 2)
    self.assertAllEqual(parts.burn_in_observation['a'], [[0, 1], [100, 101]])
    self.assertAllEqual(parts.main_observation['a'], [[2], [102]])
    self.assertAllEqual(parts.action[0], [[2], [102]])
    self.assertEqual(parts.target_observation, ())

  def test_on_chunks_of_an_episode_in_a_data_set(self):
    def split(steps):
      return unroll.split_burn_in(unroll.unroll(steps, 5, 'drop'), 1, 2)

    def check(steps, parts):
      rows = contract.transitions(steps)
      for chunk in range(len(rows) // 5):
        main = rows[5 * chunk + 1 : 5 * chunk + 3]
        contract.assert_equal(
            self,
            tf.nest.map_structure(lambda leaf: leaf[chunk], parts.action),  # pylint: disable=cell-var-from-loop
            contract.stack([row['action'] for row in main]),
        )

    spec = contract.check_everywhere(
        self, split, contract.edge_episodes(5), check
    )
    self.assertEqual(
        spec.target_observation['camera'],
        tf.TensorSpec([None, 2, 2, 1], tf.uint8),
    )
    self.assertEqual(spec.weight, ())

  def test_bad_arguments(self):
    for message, arguments in (
        ('at least 6 rows', (2, 2)),
        ('at least 6 rows', (5,)),
        ('burn_in must be an integer of 0 or more', (-1,)),
        ('burn_in must be an integer of 0 or more', (1.5,)),
        ('n_step must be a positive integer', (1, 0)),
    ):
      with self.assertRaisesRegex(ValueError, message):
        unroll.split_burn_in(self._sequences(5), *arguments)
    with self.assertRaisesRegex(ValueError, 'no field'):
      unroll.split_burn_in({'observation': {}, 'action': {}}, 1)
    with self.assertRaisesRegex(ValueError, 'action/0.* 4'):
      unroll.split_burn_in(
          {'observation': tf.zeros([1, 5]), 'action': (tf.zeros([1, 4]),)}, 1
      )
    with self.assertRaisesRegex(ValueError, 'Did you mean observatio'):
      unroll.split_burn_in({'observatio': tf.zeros([1, 5])}, 1)


if __name__ == '__main__':
  tf.test.main()
