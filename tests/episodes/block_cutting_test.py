"""Tests of episodes, and of packs of them, cut into blocks."""

import itertools

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.episodes import block_cutting
from rlds2reverb.episodes import blocks
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import judging
from rlds2reverb.episodes import outlines
from tests import golden

_FORMS = (('stacked', golden.stacked), ('nested', golden.nested))
_FIELDS = ('observation', 'action')


def _accept(unused_episode, unused_outline, unused_lengths):
  return judging.Verdict(tf.constant(True), lambda: tf.constant('unused'))


def _refuse_odd(episode, outline, unused_lengths):
  """Refuses every second episode; its fault is its number and its length."""
  return judging.Verdict(
      episode % 2 == 0,
      lambda: tf.strings.format(
          'refused {} of {}', [episode, tf.size(outline['is_first']) - 1]
      ),
  )


def _blocks(
    rlds_data,
    fields=_FIELDS,
    *,
    inspect=_accept,
    invalid_episodes='raise',
    are_valid=None,
    find_nan=False,
    block_length=None,
    block_fn=lambda block: block,
):
  return block_cutting.episode_blocks(
      data_sets.packs_or_nested(rlds_data),
      fields,
      judging.Judge(inspect, invalid_episodes, are_valid, find_nan),
      blocks.Cut(block_length=block_length),
      block_fn=block_fn,
  )


def _changing(episode_of_reading):
  """Returns an RLDS data set of one episode, another at each reading.

  Args:
    episode_of_reading: called with the number of the reading.
  """
  readings = itertools.count()

  def read():
    yield from (
        golden.step_of(episode, step)
        for episode in [episode_of_reading(next(readings))]
        for step in range(golden.length_of(episode))
    )

  steps = tf.data.Dataset.from_generator(
      read,
      output_signature=tf.nest.map_structure(
          lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype),
          golden.stacked_spec(golden.COMPLETE),
      ),
  )
  return tf.data.Dataset.from_tensors(0).map(lambda _: {'steps': steps})


class EpisodeBlocksTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(*_FORMS)
  def test_worked_example(self, form):
    episode = golden.make_episode([1, 0.5, 0.25, 1, 0.75], terminal=True)
    found = list(
        _blocks(
            golden.with_unused_fields(form([episode])), block_length=2
        ).as_numpy_iterator()
    )
    self.assertLen(found, 3)
    for block, start, end in zip(found, (0, 2, 4), (2, 4, 5)):
      self.assertEqual(block.episode, 0)
      self.assertDTypeEqual(block.episode, np.int64)
      self.assertEqual(block.step, start)
      self.assertDTypeEqual(block.step, np.int64)
      self.assertEqual(block.fault, b'')
      self.assertCountEqual(block.steps, _FIELDS)
      for field in _FIELDS:
        self.assertAllEqual(block.steps[field], episode[field][start:end])
        self.assertDTypeEqual(block.steps[field], episode[field].dtype)
    discounts = [block.outline['discount'] for block in found]
    self.assertAllEqual(discounts[0], [1, 0.5, 0.25])
    self.assertAllEqual(discounts[1], [0.25, 1, 0.75])
    self.assertAllEqual(discounts[2], [0.75, 0])
    self.assertAllEqual(found[0].outline['is_first'], [True, False, False])
    self.assertAllEqual(found[2].outline['is_first'], [False, True])
    self.assertAllEqual(found[1].outline['is_last'], [False, False, True])
    self.assertAllEqual(found[2].outline['is_last'], [True, False])
    self.assertAllEqual(found[2].outline['is_terminal'], [True, False])

  @parameterized.named_parameters(
      (f'{name}_{length}', form, length)
      for (name, form), length in itertools.product(
          _FORMS, (1, 3, 5, 100, None)
      )
  )
  def test_block_lengths(self, form, block_length):
    lengths = [5, 1, 3, 6, 10]
    episodes = [
        golden.make_episode([1] * length, terminal=False, base=20 * index)
        for index, length in enumerate(lengths)
    ]
    found = list(
        _blocks(form(episodes), block_length=block_length).as_numpy_iterator()
    )
    most = block_length or max(lengths)
    expected = [
        (index, start, min(most, length - start))
        for index, length in enumerate(lengths)
        for start in range(0, length, most)
    ]
    self.assertEqual(
        [(b.episode, b.step, len(b.steps['action'])) for b in found], expected
    )
    self.assertAllEqual(
        np.concatenate([block.steps['action'] for block in found]),
        np.concatenate([episode['action'] for episode in episodes]),
    )

  def test_long_nested_episode(self):
    length = 10_000
    episode = golden.make_episode([1] * length, terminal=True)
    rlds_data = golden.nested([episode, golden.TRUNCATED])
    found = list(_blocks(rlds_data).as_numpy_iterator())
    self.assertEqual(
        [(block.episode, block.step) for block in found],
        [(0, 0), (0, 4096), (0, 8192), (1, 0)],
    )
    self.assertAllEqual(
        np.concatenate([block.steps['observation'] for block in found]),
        np.concatenate(
            [episode['observation'], golden.TRUNCATED['observation']]
        ),
    )
    self.assertEqual(found[2].outline['is_last'].nonzero()[0], [1807])

  def test_long_nested_episode_is_seen_whole_by_inspect(self):
    lengths = [9_000, 4_096, 3]
    rlds_data = golden.nested(
        [golden.make_episode([1] * n, terminal=True) for n in lengths]
    )
    found = _blocks(
        rlds_data,
        block_length=1_000,
        invalid_episodes='mark',
        inspect=lambda episode, outline, lengths: judging.Verdict(
            tf.constant(False),
            lambda: tf.strings.format(
                '{} {}',
                [
                    tf.size(outline['is_last']) - 1,
                    tf.argmax(outline['is_last']),
                ],
            ),
        ),
    )
    self.assertEqual(
        [block.fault.numpy() for block in found],
        [b'9000 8999', b'4096 4095', b'3 2'],
    )

  def test_nested_steps_of_one_block_are_read_once(self):
    readings = []

    def episode_of_reading(reading):
      readings.append(reading)
      return golden.COMPLETE

    self.assertLen(
        list(_blocks(_changing(episode_of_reading), block_length=5)), 1
    )
    self.assertLen(readings, 1)

  def test_default_block_length_in_use(self):
    episode = golden.make_episode([1] * 40, terminal=False)
    episode['observation'] = np.zeros([40, 256, 256], np.uint8)
    for (name, form), lengths in zip(_FORMS, ([40], [31, 9])):
      with self.subTest(name):
        self.assertEqual(
            [len(block.steps['action']) for block in _blocks(form([episode]))],
            lengths,
        )

  def test_fields_that_are_not_used_do_not_shorten_nested_blocks(self):
    episode = golden.make_episode([1] * 40, terminal=False)
    for side in (8, 256):
      episode['unused'] = np.zeros([40, side, side], np.uint8)
      (block,) = _blocks(golden.nested([episode]))
      self.assertAllEqual(block.steps['action'], episode['action'])

  @parameterized.parameters(0, -3)
  def test_block_length_not_positive(self, block_length):
    with self.assertRaisesRegex(ValueError, f'but is {block_length}'):
      _blocks(golden.stacked([golden.COMPLETE]), block_length=block_length)

  @parameterized.named_parameters(*_FORMS)
  def test_block_fn(self, form):
    dataset = _blocks(
        form([golden.COMPLETE, golden.TRUNCATED]),
        block_length=3,
        block_fn=lambda block: (block.step, block.steps['action'][0]),
    )
    self.assertEqual(
        list(dataset.as_numpy_iterator()),
        [(0, 100), (3, 103), (0, 110), (3, 113)],
    )


class InvalidEpisodesTest(tf.test.TestCase, parameterized.TestCase):

  def _episodes(self):
    return [
        golden.COMPLETE,
        golden.TRUNCATED,
        golden.SINGLE_TERMINAL,
        golden.INVALID_CASES['empty'].episode,
    ]

  @parameterized.named_parameters(*_FORMS)
  def test_raise(self, form):
    dataset = _blocks(
        form(self._episodes()), block_length=3, inspect=_refuse_odd
    )
    found, error = golden.frames_and_error(dataset)
    self.assertEqual([(b.episode, b.step) for b in found], [(0, 0), (0, 3)])
    self.assertIn('refused 1 of 4', error.message)

  @parameterized.named_parameters(*_FORMS)
  def test_skip(self, form):
    dataset = _blocks(
        form(self._episodes()),
        block_length=3,
        inspect=_refuse_odd,
        invalid_episodes='skip',
    )
    self.assertEqual(
        [(b.episode, b.step) for b in dataset.as_numpy_iterator()],
        [(0, 0), (0, 3), (2, 0)],
    )

  @parameterized.named_parameters(*_FORMS)
  def test_mark(self, form):
    dataset = _blocks(
        form(self._episodes()),
        block_length=3,
        inspect=_refuse_odd,
        invalid_episodes='mark',
    )
    self.assertEqual(
        [
            (b.episode, b.step, len(b.steps['action']), b.fault)
            for b in dataset.as_numpy_iterator()
        ],
        [
            (0, 0, 3, b''),
            (0, 3, 1, b''),
            (1, 0, 0, b'refused 1 of 4'),
            (2, 0, 1, b''),
            (3, 0, 0, b'refused 3 of 0'),
        ],
    )

  @parameterized.named_parameters(*_FORMS)
  def test_empty_episode_that_is_accepted_leaves_nothing(self, form):
    for choice in ('skip', 'mark'):
      dataset = _blocks(form(self._episodes()), invalid_episodes=choice)
      self.assertEqual(
          [int(block.episode) for block in dataset], [0, 1, 2], choice
      )


class NanFieldTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      (f'{name}_{length}', form, length)
      for (name, form), length in itertools.product(_FORMS, (2, None))
  )
  def test_seen_by_inspect(self, form, block_length):
    episode = golden.make_episode([1] * 5, terminal=False)
    episode['action'] = np.zeros([5], np.float64)
    episode['observation'][1, 1] = np.nan
    episode['action'][4] = np.nan
    dataset = _blocks(
        form([episode]),
        fields=('action', 'observation'),
        block_length=block_length,
        find_nan=True,
        invalid_episodes='mark',
        inspect=lambda episode, outline, lengths: judging.Verdict(
            tf.constant(False),
            lambda: tf.strings.format('{}', [outline[outlines.NAN_FIELD]]),
        ),
    )
    (block,) = dataset
    # Fields are numbered in the order of their paths: action, observation.
    # What follows the last step has none.
    self.assertEqual(block.fault, b'[0 2 0 0 1 0]')


class ChangedStepsTest(tf.test.TestCase, parameterized.TestCase):

  def _lengths(self, *lengths):
    """Returns an episode that has another length at each reading."""
    return _changing(
        lambda reading: golden.make_episode(
            [1] * lengths[reading], terminal=False
        )
    )

  def _assert_error(self, rlds_data):
    found, error = golden.frames_and_error(_blocks(rlds_data, block_length=2))
    self.assertIsNotNone(
        error,
        'no error, but blocks of the lengths'
        f' {[len(block.steps["action"]) for block in found]}',
    )
    self.assertIn('Nested steps must be the same', error.message)

  def test_unchanged(self):
    found = list(_blocks(self._lengths(*[6] * 9), block_length=2))
    self.assertEqual([len(block.steps['action']) for block in found], [2, 2, 2])

  def test_discount_changes(self):
    def episode_of_reading(reading):
      discount = [1, 1, 1, 1, 0.5 if reading > 1 else 1, 1]
      return golden.make_episode(discount, terminal=False)

    self._assert_error(_changing(episode_of_reading))

  def test_flag_changes(self):
    def episode_of_reading(reading):
      return golden.make_episode([1] * 6, terminal=reading > 1)

    self._assert_error(_changing(episode_of_reading))

  def test_nan_discount_is_no_change(self):
    episode = golden.make_episode([1, 1, 1, np.nan, 1], terminal=False)
    self.assertLen(list(_blocks(golden.nested([episode]), block_length=2)), 3)

  @parameterized.named_parameters(
      ('within_a_block', (6, 6, 5)),
      ('by_a_block', (6, 6, 4)),
      ('by_all_but_the_first_block', (6, 6, 2)),
  )
  def test_gets_shorter(self, lengths):
    self._assert_error(self._lengths(*lengths))

  @parameterized.parameters(2, 3, 4, 5)
  def test_is_cut_off(self, length):
    whole = golden.make_episode([1] * 6, terminal=False)

    def episode_of_reading(reading):
      if reading < 2:
        return whole
      return tf.nest.map_structure(lambda leaf: leaf[:length], whole)

    self._assert_error(_changing(episode_of_reading))

  @parameterized.named_parameters(
      ('within_a_block', (5, 5, 6)),
      ('by_a_block', (4, 4, 6)),
  )
  def test_gets_longer(self, lengths):
    self._assert_error(self._lengths(*lengths))


_EPISODES = [
    golden.make_episode([1.0] * length, terminal=False, base=base)
    for base, length in ((0, 2), (10, 3), (20, 1), (30, 2), (40, 4))
]


def _refuse_three(episode, outline, unused_lengths):
  """Refuses an episode of three steps, or of whose discount one is 0.5."""
  length = tf.size(outline['is_first']) - 1
  return judging.Verdict(
      (length != 3) & tf.reduce_all(outline['discount'] != 0.5),
      lambda: tf.strings.format('refused {} of {}', [episode, length]),
  )


def _are_valid(outline, row_splits):
  lengths = row_splits[1:] - row_splits[:-1]
  return tf.reduce_all(lengths != 3) & tf.reduce_all(outline['discount'] != 0.5)


def _blocks_of_packs(pack_size, episodes=_EPISODES, **kwargs):
  """Returns the episodes, row splits, actions and fault of every block."""
  arguments = {
      'inspect': _refuse_three,
      'are_valid': _are_valid,
      'invalid_episodes': 'skip',
      **kwargs,
  }
  dataset = _blocks(
      golden.packed(episodes, pack_size=pack_size), ('action',), **arguments
  )
  found = []
  for block in dataset:
    assert len(block.outline['is_first']) == len(block.steps['action']) + 1
    found.append(
        (
            block.episode.numpy().tolist(),
            block.row_splits.numpy().tolist(),
            block.steps['action'].numpy().tolist(),
            block.fault.numpy().decode(),
        )
    )
  return found


class PackBlocksTest(tf.test.TestCase, parameterized.TestCase):

  def test_packs_of_valid_episodes_stay_whole(self):
    valid = [_EPISODES[place] for place in (0, 2, 3, 4)]
    self.assertEqual(
        _blocks_of_packs(3, valid),
        [
            ([0, 1, 2], [0, 2, 3, 5], [100, 101, 120, 130, 131], ''),
            ([3], [0, 4], [140, 141, 142, 143], ''),
        ],
    )

  def test_an_invalid_episode_is_left_out(self):
    rest = [
        ([3, 4], [0, 2, 6], [130, 131, 140, 141, 142, 143], ''),
    ]
    for pack_size, expected in (
        (3, [([0], [0, 2], [100, 101], ''), ([2], [0, 1], [120], '')] + rest),
        (
            2,
            [
                ([0], [0, 2], [100, 101], ''),
                ([2, 3], [0, 1, 3], [120, 130, 131], ''),
                ([4], [0, 4], [140, 141, 142, 143], ''),
            ],
        ),
    ):
      with self.subTest(pack_size):
        self.assertEqual(_blocks_of_packs(pack_size), expected)

  def test_an_invalid_episode_is_marked(self):
    self.assertEqual(
        _blocks_of_packs(2, invalid_episodes='mark')[:2],
        [
            ([0], [0, 2], [100, 101], ''),
            ([1], [0, 0], [], 'refused 1 of 3'),
        ],
    )

  def test_the_episodes_before_an_invalid_one_come_out(self):
    dataset = _blocks(
        golden.packed(_EPISODES, pack_size=5),
        ('action',),
        inspect=_refuse_three,
        are_valid=_are_valid,
        invalid_episodes='raise',
    )
    iterator = iter(dataset)
    self.assertAllEqual(next(iterator).steps['action'], [100, 101])
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'refused 1 of 3'
    ):
      next(iterator)

  def test_lengths_that_differ(self):
    uneven = dict(_EPISODES[0], action=np.arange(5, dtype=np.int32))

    def inspect(episode, unused_outline, lengths):
      same = tf.reduce_all(lengths.rows == lengths.rows[0])
      return judging.Verdict(
          same, lambda: tf.strings.format('uneven {}', [episode])
      )

    self.assertEqual(
        _blocks_of_packs(
            3,
            [_EPISODES[0], uneven, _EPISODES[2]],
            inspect=inspect,
            are_valid=lambda outline, row_splits: row_splits[-1] > 0,
            invalid_episodes='mark',
        ),
        [
            ([0], [0, 2], [100, 101], ''),
            ([1], [0, 0], [], 'uneven 1'),
            ([2], [0, 1], [120], ''),
        ],
    )

  def test_nan_is_looked_for(self):
    episodes = [dict(episode) for episode in _EPISODES[:2]]
    episodes[1]['reward'] = np.float32([0, np.nan, 0])
    seen = []

    def are_valid(outline, row_splits):
      del row_splits
      seen.append(set(outline))
      return tf.reduce_all(outline['nan_field'] == 0)

    def inspect(episode, outline, unused_lengths):
      return judging.Verdict(
          tf.reduce_all(outline['nan_field'] == 0),
          lambda: tf.strings.format('NaN {}', [episode]),
      )

    dataset = _blocks(
        golden.packed(episodes),
        ('reward',),
        inspect=inspect,
        are_valid=are_valid,
        invalid_episodes='skip',
        find_nan=True,
    )
    (block,) = dataset
    self.assertAllEqual(block.episode, [0])
    self.assertNotIn('nan_field', block.outline)
    self.assertIn('nan_field', seen[0])


if __name__ == '__main__':
  tf.test.main()
