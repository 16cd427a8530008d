"""Tests of chopped sequences and of rollout fragments."""

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb.transforms import fields
from rlds2reverb.windows import flat_rows
from rlds2reverb.windows import fragments
from rlds2reverb.windows import returns
from rlds2reverb.windows import transitions
from tests import contract
from tests import golden
from tests.agents import episodes as agent_episodes


def _ts(dataset):
  return [batch['t'].tolist() for batch in dataset.as_numpy_iterator()]


class ChopTest(tf.test.TestCase):

  def test_contract(self):
    chopped = fragments.chop_into_sequences(
        flat_rows.FlatRows.of(
            tf.range(1, 8),
            episode_ids=[1, 1, 5, 5, 5, 5, 5],
            states=tf.range(10, 17),
        ),
        3,
    )
    self.assertAllEqual(chopped.rows, [[1, 2, 0], [3, 4, 5], [6, 7, 0]])
    self.assertAllEqual(chopped.seq_lens, [2, 3, 2])
    self.assertEqual(chopped.seq_lens.dtype, tf.int32)
    self.assertAllEqual(chopped.initial_state, [10, 12, 15])
    self.assertAllEqual(chopped.mask, [[1, 1, 0], [1, 1, 1], [1, 1, 0]])

  def test_dynamic_max(self):
    for ids, expected in (
        ([1, 1, 5], [[1, 2], [3, 0]]),
        ([1, 2, 3], [[1], [2], [3]]),
    ):
      self.assertAllEqual(
          fragments.chop_into_sequences(
              flat_rows.FlatRows.of(tf.range(1, 4), episode_ids=ids),
              9,
              dynamic_max=True,
          ).rows,
          expected,
      )

  def test_two_columns_of_ids(self):
    chopped = fragments.chop_into_sequences(
        flat_rows.FlatRows.of(
            tf.range(1, 6), episode_ids=[[1, 1], [1, 2], [1, 2], [2, 2], [2, 2]]
        ),
        9,
        dynamic_max=True,
    )
    self.assertAllEqual(chopped.rows, [[1, 0], [2, 3], [4, 5]])

  def test_edges_against_a_loop(self):
    length = 4
    episodes = contract.edge_episodes(length)
    transitions = [contract.transitions(steps) for steps in episodes]
    rows = [row for group in transitions for row in group]
    ids = [
        f'e{index}' for index, group in enumerate(transitions) for _ in group
    ]
    expected, seq_lens, states = [], [], []
    for group in transitions:
      for start in range(0, len(group), length):
        chunk = group[start : start + length]
        seq_lens.append(len(chunk))
        states.append(chunk[0]['state'])
        zero = contract.zero_like(chunk[0])
        expected.append(contract.stack(chunk + (length - len(chunk)) * [zero]))
    chop = lambda rows: fragments.chop_into_sequences(
        flat_rows.FlatRows.of(rows, episode_ids=ids, states=rows['state']),
        length,
    )
    in_map = tf.data.Dataset.from_tensors(contract.stack(rows)).map(chop)
    spec = in_map.element_spec
    camera = spec.rows['observation']['camera']
    self.assertEqual(camera.shape[1:], [length, 2, 1])
    self.assertEqual(camera.dtype, tf.uint8)
    for chopped in (
        chop(tf.nest.map_structure(tf.constant, contract.stack(rows))),
        in_map.get_single_element(),
    ):
      chopped = tf.nest.map_structure(lambda leaf: leaf.numpy(), chopped)
      contract.assert_rows(self, chopped.rows, expected)
      contract.assert_rows(self, chopped.initial_state, states)
      self.assertAllEqual(chopped.seq_lens, seq_lens)
      self.assertAllEqual(chopped.mask.sum(axis=1), seq_lens)

  def test_where_episodes_end(self):
    expected = fragments.chop_into_sequences(
        flat_rows.FlatRows.of(
            tf.range(1, 8), episode_ids=[1, 1, 5, 5, 5, 5, 5]
        ),
        3,
    )
    for ends in (
        {'lengths': [2, 0, 5]},
        {'is_last': [False, True, False, False, False, False, True]},
        {'is_last': [False, True, False, False, False, False, False]},
    ):
      tf.nest.map_structure(
          self.assertAllEqual,
          fragments.chop_into_sequences(
              flat_rows.FlatRows.of(tf.range(1, 8), **ends), 3
          ),
          expected,
      )

  def test_the_rows_of_one_episode(self):
    rows = transitions.transition_rows(contract.A)
    chopped = fragments.chop_into_sequences(
        flat_rows.FlatRows.of(rows, states=rows.columns['observation']), 3
    )
    self.assertAllEqual(chopped.rows['reward'], [[1, 2, 3], [4, 5, 0]])
    self.assertAllEqual(chopped.initial_state, [0, 3])
    # Of one episode, too, ids may say where sequences begin.
    chopped = fragments.chop_into_sequences(
        flat_rows.FlatRows.of(rows, episode_ids=[1, 2, 2, 2, 2]),
        3,
        time_major=True,
    )
    self.assertAllEqual(
        chopped.rows['reward'], [[1, 2, 5], [0, 3, 0], [0, 4, 0]]
    )
    self.assertAllEqual(chopped.mask, [[1, 1, 1], [0, 1, 0], [0, 1, 0]])

  def test_no_rows(self):
    for dynamic_max in (False, True):
      chopped = fragments.chop_into_sequences(
          flat_rows.FlatRows.of(tf.zeros([0, 2]), episode_ids=tf.zeros([0])),
          3,
          dynamic_max=dynamic_max,
      )
      self.assertEqual(chopped.rows.shape[0], 0)
      self.assertEqual(chopped.seq_lens.shape, [0])

  def test_arrays_and_lists_in_the_place_of_tensors(self):
    ids = [1, 1, 5, 5, 5, 5, 5]
    for convert in (np.array, list, lambda column: column):

      def chop(convert=convert):
        return fragments.chop_into_sequences(
            flat_rows.FlatRows.of(
                {'a': convert(range(1, 8)), 'b': (convert(['x'] * 7),)},
                episode_ids=convert(ids),
                states=(convert(range(10, 17)), np.zeros([7, 2])),
            ),
            3,
        )

      in_map = tf.data.Dataset.range(1).map(lambda _, chop=chop: chop())
      for chopped in (chop(), in_map.get_single_element()):
        self.assertAllEqual(
            chopped.rows['a'], [[1, 2, 0], [3, 4, 5], [6, 7, 0]]
        )
        self.assertAllEqual(
            chopped.rows['b'][0],
            [[b'x', b'x', b''], [b'x', b'x', b'x'], [b'x', b'x', b'']],
        )
        self.assertAllEqual(chopped.initial_state[0], [10, 12, 15])
        self.assertEqual(chopped.initial_state[1].shape, [3, 2])
    self.assertAllEqual(
        fragments.chop_into_sequences(
            flat_rows.FlatRows.of(range(1, 4), episode_ids=(1, 1, 2)), 2
        ).rows,
        [[1, 2], [3, 0]],
    )
    # Lists of other than numbers and strings are parts of the nest.
    chopped = fragments.chop_into_sequences(
        flat_rows.FlatRows.of(
            [[1, 2, 3], np.zeros([3])], episode_ids=[1, 1, 2]
        ),
        2,
    )
    self.assertAllEqual(chopped.rows[0], [[1, 2], [3, 0]])
    self.assertAllEqual(chopped.rows[1], [[0, 0], [0, 0]])

  def test_ids_and_rows_of_different_lengths(self):
    rows = tf.range(5)
    for message, ids, states in (
        ('episode_ids has 3, rows has 5', [1, 1, 2], ()),
        ('episode_ids has 6, rows has 5', [1] * 6, ()),
        (
            'episode_ids has 5, rows has 5, states/h has 4',
            [1] * 5,
            {'h': tf.zeros([4, 2])},
        ),
    ):
      with self.assertRaisesRegex(ValueError, message):
        fragments.chop_into_sequences(
            flat_rows.FlatRows.of(rows, episode_ids=ids, states=states), 2
        )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int32),
        ]
    )
    def chop(rows, ids, states):
      return fragments.chop_into_sequences(
          flat_rows.FlatRows.of(rows, episode_ids=ids, states=states),
          2,
      )

    self.assertAllEqual(
        chop(rows, [1, 1, 2, 2, 2], rows).rows, [[0, 1], [2, 3], [4, 0]]
    )
    for num_ids, num_states in ((3, 5), (6, 5), (5, 4)):
      with self.assertRaisesRegex(
          tf.errors.InvalidArgumentError,
          f'(?s)episode_ids.*{num_ids}.*rows.*5.*states.*{num_states}',
      ):
        chop(rows, tf.ones([num_ids], tf.int32), tf.range(num_states))

  def test_bad_arguments(self):
    with self.assertRaisesRegex(ValueError, 'max_length must be a positive'):
      fragments.chop_into_sequences(
          flat_rows.FlatRows.of(tf.range(3), episode_ids=[1, 1, 1]), 0
      )
    with self.assertRaisesRegex(ValueError, 'one or two dimensions'):
      fragments.chop_into_sequences(
          flat_rows.FlatRows.of(tf.range(3), episode_ids=1), 2
      )


class FragmentsTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*golden.FORMS)
  def test_truncate_episodes(self, form):
    dataset = fragments.convert_rlds_to_fragments(
        golden.FORMS[form]([contract.B] * 4), 4
    )
    self.assertEqual(_ts(dataset), [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]])
    self.assertEqual(
        [batch['episode'].tolist() for batch in dataset.as_numpy_iterator()],
        [[0, 0, 0, 1], [1, 1, 2, 2], [2, 3, 3, 3]],
    )

  @pytest.mark.long
  def test_a_fragment_function_never_sees_two_episodes(self):
    def tell(rows):
      # Zero where the function begins anew.
      place = tf.range(tf.size(rows.columns['t']))
      return rows._replace(columns={**rows.columns, 'place': place})

    data = golden.stacked([contract.B] * 4)
    for mode, expected in (
        ('truncate_episodes', [[0, 1, 2, 0], [0, 1, 0, 1], [0, 0, 1, 2]]),
        ('complete_episodes', [[0, 1, 2, 0, 1, 2]] * 2),
    ):
      dataset = fragments.convert_rlds_to_fragments(
          data, 4, mode, fragment_fn=tell
      )
      self.assertEqual(
          [batch['place'].tolist() for batch in dataset.as_numpy_iterator()],
          expected,
      )

  @parameterized.product(
      mode=fragments.BATCH_MODES, drop_remainder=[False, True], length=[1, 4]
  )
  @pytest.mark.few(3)
  def test_edges_against_a_loop(self, mode, drop_remainder, length):
    episodes = contract.edge_episodes(4)
    batches, batch = [], []
    for index, steps in enumerate(episodes):
      rows = contract.transitions(steps)
      for t, row in enumerate(rows):
        batch.append({**row, 'episode': np.int64(index), 't': np.int64(t)})
        may_end = mode == 'truncate_episodes' or t == len(rows) - 1
        if may_end and len(batch) >= length:
          batches.append(batch)
          batch = []
    if batch and not drop_remainder:
      batches.append(batch)
    dataset = fragments.convert_rlds_to_fragments(
        golden.stacked(episodes), length, mode, drop_remainder=drop_remainder
    )
    found = list(dataset.as_numpy_iterator())
    self.assertLen(found, len(batches))
    for one, rows in zip(found, batches):
      contract.assert_rows(self, one, rows)
    self.assertEqual(
        dataset.element_spec['observation']['camera'],
        tf.TensorSpec([None, 2, 1], tf.uint8),
    )

  @parameterized.parameters(*fragments.BATCH_MODES)
  def test_agent_steps_against_a_loop(self, mode):
    rng = np.random.default_rng(4)
    episodes = []
    for count in (3, 1, 0, 9, 6):
      steps = contract.random_steps(rng, count)
      steps['agents'] = {'count': rng.integers(0, 4, count + 1)}
      episodes.append(steps)
    batches, batch, total = [], [], 0
    for steps in episodes:
      for t in range(golden.length_of(steps) - 1):
        batch.append(t)
        total += steps['agents']['count'][t]
        may_end = (
            mode == 'truncate_episodes' or t == golden.length_of(steps) - 2
        )
        if may_end and total >= 5:
          batches.append(batch)
          batch, total = [], 0
    if batch:
      batches.append(batch)
    self.assertGreater(len(batches), 2)
    dataset = fragments.convert_rlds_to_fragments(
        golden.stacked(episodes), 5, mode, agent_steps='agents/count'
    )
    self.assertEqual(_ts(dataset), batches)

  @parameterized.parameters(golden.stacked, golden.nested)
  def test_agent_steps_by_presence(self, form):
    # In the four transitions of each episode 1, 2, 1 and 1 agents act: an agent
    # does not act at its last step. RLlib 2.60.0 counts the same.
    data = form([agent_episodes.COME_AND_GO] * 2)
    self.assertEqual(
        _ts(
            fragments.convert_rlds_to_fragments(
                data, 4, count_steps_by='agent_steps'
            )
        ),
        [[0, 1, 2], [3, 0, 1], [2, 3]],
    )
    self.assertEqual(
        _ts(
            fragments.convert_rlds_to_fragments(
                data, 4, count_steps_by='env_steps'
            )
        ),
        [[0, 1, 2, 3], [0, 1, 2, 3]],
    )

  def test_what_agent_steps_are_counted_by(self):
    data = golden.stacked([contract.A])
    with self.assertRaisesRegex(ValueError, 'counted by is_present'):
      fragments.convert_rlds_to_fragments(data, 4, count_steps_by='agent_steps')
    with self.assertRaisesRegex(ValueError, 'count_steps_by must be one of'):
      fragments.convert_rlds_to_fragments(data, 4, count_steps_by='agents')
    with self.assertRaisesRegex(ValueError, 'does not count them'):
      fragments.convert_rlds_to_fragments(
          data, 4, count_steps_by='env_steps', agent_steps='action'
      )
    rows = golden.stacked([agent_episodes.COME_AND_GO]).map(
        lambda episode: transitions.transition_rows(episode['steps'])
    )
    with self.assertRaisesRegex(ValueError, 'TransitionRows do not say'):
      fragments.convert_rlds_to_fragments(rows, 4, count_steps_by='agent_steps')

  @parameterized.parameters('t', 'episode', 'next_observation')
  def test_fields_of_the_names_that_are_added(self, name):
    data = golden.stacked([{**contract.A, name: contract.A['reward']}])
    with self.assertRaisesRegex(
        ValueError, f'field {name!r} already.*RenameFields'
    ):
      fragments.convert_rlds_to_fragments(data, 3)
    renamed = data.map(fields.RenameFields({name: 'own'}))
    batch = next(iter(fragments.convert_rlds_to_fragments(renamed, 3)))
    self.assertAllEqual(batch['own'], [1, 2, 3])

  def test_rows_that_saw_their_whole_episode(self):
    data = golden.nested([contract.B, contract.A])
    rows = data.map(
        lambda episode: returns.n_step_transitions(episode['steps'], 3, 0.5)
    )
    batches = list(fragments.convert_rlds_to_fragments(rows, 4))
    self.assertAllEqual(
        [batch['reward'] for batch in batches],
        [[27.5, 35, 30, 2.75], [4.5, 6.25, 6.5, 5]],
    )
    self.assertAllEqual(batches[0]['t'], [0, 1, 2, 0])

  def test_returns_of_each_fragment(self):
    dataset = fragments.convert_rlds_to_fragments(
        golden.stacked([contract.B] * 2),
        4,
        fragment_fn=lambda rows: returns.reward_to_go(rows, 0.5),
    )
    self.assertEqual(
        [b['reward_to_go'].tolist() for b in dataset.as_numpy_iterator()],
        [[27.5, 35, 30, 10], [35, 30]],
    )

  def test_other_kinds_of_elements_and_of_results(self):
    data = golden.stacked([contract.B])
    with self.assertRaisesRegex(ValueError, 'must return TransitionRows'):
      fragments.convert_rlds_to_fragments(
          data, 2, fragment_fn=lambda rows: rows.columns
      )
    batches = fragments.convert_rlds_to_fragments(data, 2)
    with self.assertRaisesRegex(ValueError, "a dict with 'steps', but is"):
      fragments.convert_rlds_to_fragments(batches, 2)

  def test_other_names(self):
    data = golden.stacked([{**contract.B, 't': contract.B['reward']}])
    batch = next(
        iter(fragments.convert_rlds_to_fragments(data, 3, names={'t': 'step'}))
    )
    self.assertAllEqual(batch['t'], [10, 20, 30])
    self.assertAllEqual(batch['step'], [0, 1, 2])

  def test_no_episodes(self):
    data = golden.stacked([], golden.stacked_spec(contract.A))
    self.assertEmpty(list(fragments.convert_rlds_to_fragments(data, 3)))

  def test_bad_arguments(self):
    data = golden.stacked([contract.A])
    for message, arguments in (
        ('fragment_length must be a positive', (0,)),
        ('Did you mean truncate_episodes', (2, 'truncate_episode')),
    ):
      with self.assertRaisesRegex(ValueError, message):
        fragments.convert_rlds_to_fragments(data, *arguments)
    with self.assertRaisesRegex(ValueError, 'Did you mean action'):
      fragments.convert_rlds_to_fragments(data, 2, agent_steps='actoin')


class WholeEpisodesTest(tf.test.TestCase):

  def test_against_a_loop(self):
    episodes = [
        steps
        for steps in contract.edge_episodes(3)
        if golden.length_of(steps) > 1
    ]
    rows = flat_rows.FlatRows.of(golden.stacked(episodes))
    lengths = [golden.length_of(steps) - 1 for steps in episodes]
    chopped = fragments.chop_into_sequences(rows)
    zero = contract.zero_like(contract.transitions(episodes[-1])[0])
    expected = []
    for steps in episodes:
      transitions = contract.transitions(steps)
      missing = max(lengths) - len(transitions)
      expected.append(contract.stack(transitions + [zero] * missing))
    contract.assert_rows(
        self,
        tf.nest.map_structure(lambda leaf: leaf.numpy(), chopped.rows),
        expected,
    )
    self.assertAllEqual(chopped.seq_lens, lengths)
    self.assertAllEqual(
        chopped.mask, np.arange(max(lengths)) < np.array(lengths)[:, np.newaxis]
    )

  def test_lengths_of_rows_that_are_known_only_later(self):
    pad = tf.function(
        lambda rows, lengths: fragments.chop_into_sequences(
            flat_rows.FlatRows.of(rows, lengths=lengths)
        ),
        input_signature=[
            {'a': tf.TensorSpec([None]), 'b': tf.TensorSpec([None, 2])},
            tf.TensorSpec([None], tf.int64),
        ],
    )
    padded = pad({'a': tf.ones([2]), 'b': tf.ones([2, 2])}, [1, 1])
    self.assertAllEqual(padded.rows['b'], np.ones([2, 1, 2]))
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, r'(?s)rows/a.*3.*rows/b.*2'
    ):
      pad({'a': tf.ones([3]), 'b': tf.ones([2, 2])}, [1, 1])


if __name__ == '__main__':
  tf.test.main()
