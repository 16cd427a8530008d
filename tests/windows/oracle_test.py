"""What functions on transitions make of random episodes, against NumPy.

Each case is a function of the steps of an episode, and what it has to return: a
function of the same steps in NumPy that returns the rows one by one.
"""

import itertools

from absl.testing import parameterized
import numpy as np
import pytest
import tensorflow as tf

from rlds2reverb import windows
from rlds2reverb.episodes import windows as windows_lib
from tests import contract
from tests import golden

# Of 0, 1, 3, 4, 5, 8 and 13 transitions.
_EPISODES = contract.edge_episodes(4)
_GAMMA = 0.9


def _n_step(n):
  def combine(rows):
    reward, discount = 0.0, 1.0
    for row in rows:
      reward += discount * row['reward']
      discount *= _GAMMA * row['discount']
    transition = {
        name: rows[-1][name]
        for name in ('next_observation', 'is_last', 'is_terminal')
    }
    return {
        **rows[0],
        **transition,
        'reward': reward,
        'discount': np.float32(discount),
        'steps': np.int32(len(rows)),
        'gamma': np.float32(_GAMMA ** len(rows)),
    }

  def expected(steps):
    rows = contract.transitions(steps)
    return [combine(rows[t : t + n]) for t in range(len(rows))]

  call = lambda steps: windows.n_step_transitions(steps, n, _GAMMA).columns
  return call, expected


def _returns(lambda_):
  def call(steps):
    stacked = steps
    if isinstance(steps, tf.data.Dataset):
      stacked = steps.batch(100).get_single_element()
    values = stacked['state']['h'][:, 0]
    rows = windows.reward_to_go(steps, _GAMMA)
    return windows.advantages(rows, values, _GAMMA, lambda_).columns

  def expected(steps):
    values = steps['state']['h'][:, 0].astype(np.float64)
    to_go, advantage, target = 0.0, 0.0, values[-1]
    result = []
    for t, row in reversed(list(enumerate(contract.transitions(steps)))):
      reward, discount = row['reward'], _GAMMA * row['discount']
      to_go = reward + discount * to_go
      error = reward + discount * values[t + 1] - values[t]
      advantage = error + discount * lambda_ * advantage
      ahead = (1 - lambda_) * values[t + 1] + lambda_ * target
      target = reward + discount * ahead
      result.append(
          {
              **row,
              'reward_to_go': to_go,
              'advantage': advantage,
              'td_lambda_return': target,
          }
      )
    return result[::-1]

  return call, expected


def _unroll(length, stride, end):
  def call(steps):
    cut = windows_lib.Windows(length, stride, end)
    return windows.unroll(steps, cut, state='state')._asdict()

  def expected(steps):
    rows = contract.transitions(steps)
    after = end
    if end != 'repeat_last' and rows:
      after = {**contract.zero_like(rows[0]), 'is_last': np.bool_(True)}
    result = []
    for start in contract.window_starts(len(rows), length, stride, end):
      places = range(start, start + length)
      state = rows[start]['state']
      result.append(
          {
              'columns': contract.window(
                  rows, places, None, 'repeat' if after == end else after
              ),
              'mask': np.array([at < len(rows) for at in places]),
              'initial_state': state if start else contract.zero_like(state),
          }
      )
    return result

  return call, expected


def _stacked(num_frames, num_actions, before, fill):
  def call(steps):
    return windows.stack_and_chunk(
        steps, num_frames, num_actions, fill, before=before
    )

  def expected(steps):
    step = golden.rows_of(steps)
    observations = [one['observation'] for one in step]
    actions = [one['action'] for one in step[:-1]]
    # The last action of an episode of one step is repeated.
    shown = actions or [step[0]['action']]
    result = []
    for t, one in enumerate(step):
      frames = list(range(t - (num_frames or 1) + 1, t + 1))
      ahead = [max(frame, 0) + np.arange(num_actions or 1) for frame in frames]
      mask = np.array(ahead) < len(actions)
      one = dict(one)
      if num_frames:
        one['observation'] = contract.window(
            observations, frames, before, 'repeat'
        )
        one['observation_mask'] = np.array(frames) >= 0
        mask &= one['observation_mask'][:, None]
      if num_actions:
        chunks = [
            contract.stack(
                [
                    contract.row_at(
                        shown,
                        at if at < len(actions) else len(shown),
                        None,
                        fill,
                    )
                    for at in chunk
                ]
            )
            for chunk in ahead
        ]
        one['action'] = contract.stack(chunks) if num_frames else chunks[0]
        one['action_mask'] = mask if num_frames else mask[0]
      result.append(one)
    return result

  return call, expected


_SHIFTS = {
    'observation': ([1, -2, 0], [1, -2, 0]),
    'observation/camera': (-3, [-3]),
    'action': ('-1:2', [-1, 0, 1, 2]),
    'state': ('-2:2:3', [-2, 1]),
    'reward': (0, [0]),
    'next_observation/camera': ([1], [1]),
}


def _views(fill, repeat=1, start=0, stop=None):
  """Views of a fragment: the rows from `start` up to `stop` before the end."""
  names = {path: f'view_of_{path.split("/")[-1]}{path[0]}' for path in _SHIFTS}

  def call(steps):
    views = {
        names[path]: windows.ViewRequirement(
            path, shift, batch_repeat_value=repeat
        )
        for path, (shift, _) in _SHIFTS.items()
    }
    if stop is None and repeat == 1:
      return windows.apply_views(steps, views, fill=fill).columns
    rows = windows.transition_rows(steps)
    length = tf.shape(rows.columns['reward'], tf.int64)[0]
    first = tf.minimum(tf.constant(start, tf.int64), length)
    end = tf.maximum(length - (stop or 0), first)
    found = windows.compute_views(rows, views, fill=fill, start=first, stop=end)
    masks = {f'{name}_mask': mask for name, mask in found.mask.items()}
    return {**found.columns, **masks}

  def expected(steps):
    rows = contract.transitions(steps)
    first = min(start, len(rows))
    end = max(len(rows) - (stop or 0), first)
    result = []
    for t in range(first, end, repeat):
      row = dict(rows[t]) if stop is None and repeat == 1 else {}
      for path, (_, shifts) in _SHIFTS.items():
        field, *below = path.split('/')
        source = rows[:end]
        is_observation = field == 'observation'
        if is_observation:
          source = golden.rows_of(steps)[: end + 1]
        source = [one[field] for one in source]
        if below:
          source = [one[below[0]] for one in source]
        before = after = 'zeros' if fill == 'rllib' else fill
        if fill == 'rllib' and is_observation:
          before = 'repeat'
        shown = contract.window(source, [t + s for s in shifts], before, after)
        mask = np.array([0 <= t + s < len(source) for s in shifts])
        if len(shifts) == 1:
          shown, mask = tf.nest.map_structure(lambda x: x[0], (shown, mask))
        row[names[path]] = shown
        row[f'{names[path]}_mask'] = mask
      result.append(row)
    return result

  return call, expected


_CASES = {
    'transition_rows': (
        lambda steps: windows.transition_rows(steps).columns,
        contract.transitions,
    ),
    'three_steps': _n_step(3),
    'returns_of_one_step': _returns(0.0),
    'returns': _returns(0.8),
    'unroll_drop': _unroll(4, 1, 'drop'),
    'unroll_pad': _unroll(4, 3, 'pad'),
    'unroll_tile': _unroll(4, 3, 'tile'),
    'unroll_zero_pad': _unroll(4, 3, 'zero_pad'),
    'unroll_repeat_last': _unroll(4, 4, 'repeat_last'),
    'unroll_overlap': _unroll(4, 3, 'overlap'),
    'frames_after_a_number': _stacked(2, None, 7, 'zeros'),
    'actions_and_a_number': _stacked(None, 2, 'repeat', 5),
    'frames_and_actions': _stacked(3, 2, 'zeros', 'repeat'),
    'frames_and_actions_of_octo': _stacked(2, 3, 'repeat', 'zeros'),
    'views': _views('rllib'),
    'views_of_a_fragment': _views('repeat', start=2, stop=3),
    'views_of_every_other_row': _views(7, repeat=2, start=1),
}


class OracleTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(*enumerate(golden.FORMS.values()))
  @pytest.mark.few(1)
  def test_functions_equal_numpy(self, index, form):
    # One pipeline has every other case.
    cases = dict(itertools.islice(_CASES.items(), index, None, 2))
    contract.check_everywhere(self, cases, _EPISODES, form, tolerance=2e-6)

  @parameterized.parameters(
      (golden.nested, False, False), (golden.stacked, True, True)
  )
  def test_horizons(self, form, soft, no_done_at_end):
    data = form(_EPISODES).map(lambda episode: {**episode, 'name': 'x'})
    cut = windows.apply_horizon(
        data, 3, soft=soft, no_done_at_end=no_done_at_end
    )
    actual = list(cut.as_numpy_iterator())
    expected = []
    for steps in _EPISODES:
      last = golden.length_of(steps) - 1
      for start in range(0, max(last, 1) if soft else 1, 3):
        rows = golden.rows_of(steps)[start : start + 4]
        rows[0]['is_first'] = np.bool_(True)
        if start + 3 < last:
          rows[-1]['is_last'] = np.bool_(True)
        for t, row in enumerate(rows, start):
          if no_done_at_end:
            # Neither what leads to a terminal step nor that step is an end.
            if steps['is_terminal'][t : t + 2].any():
              row['discount'] = np.float32(1)
            row['is_terminal'] = np.bool_(False)
        expected.append(rows)
    self.assertLen(actual, len(expected))
    for episode, rows in zip(actual, expected):
      self.assertEqual(episode['name'], b'x')
      contract.assert_rows(self, episode['steps'], rows)

  @parameterized.parameters(
      ('truncate_episodes', 4, False, False),
      ('truncate_episodes', 1, True, True),
      ('complete_episodes', 5, False, True),
  )
  @pytest.mark.few(1)
  def test_fragments(self, mode, length, drop_remainder, by_agents):
    rng = np.random.default_rng(4)
    episodes = [
        {**steps, 'agents': {'count': rng.integers(0, 4, len(steps['reward']))}}
        for steps in _EPISODES
    ]
    batches, batch, total = [], [], 0
    for index, steps in enumerate(episodes):
      rows = contract.transitions(steps)
      for t, row in enumerate(rows):
        batch.append({**row, 'episode': np.int64(index), 't': np.int64(t)})
        # The start of each fragment.
        begins = len(batch) == 1 or t == 0
        batch[-1]['place'] = np.int64(0 if begins else batch[-2]['place'] + 1)
        total += row['agents']['count'] if by_agents else 1
        is_end = mode == 'truncate_episodes' or t == len(rows) - 1
        if is_end and total >= length:
          batches.append(batch)
          batch, total = [], 0
    if batch and not drop_remainder:
      batches.append(batch)

    def add_place(rows):
      place = tf.range(tf.size(rows.columns['t'], tf.int64))
      return rows._replace(columns={**rows.columns, 'place': place})

    dataset = windows.convert_rlds_to_fragments(
        golden.nested(episodes),
        length,
        mode,
        fragment_fn=add_place,
        agent_steps='agents/count' if by_agents else None,
        drop_remainder=drop_remainder,
    )
    actual = list(dataset.as_numpy_iterator())
    self.assertGreater(len(actual), 2)
    self.assertLen(actual, len(batches))
    for one, rows in zip(actual, batches):
      contract.assert_rows(self, one, rows)

  @parameterized.parameters(4, None)
  def test_chopped_sequences(self, length):
    flat = windows.FlatRows.of(golden.nested(_EPISODES))
    lengths = [len(steps['reward']) - 1 for steps in _EPISODES]
    self.assertAllEqual(flat.lengths, lengths)
    flat = flat._replace(states=flat.rows['state'])
    width = length or max(lengths)
    expected = []
    some_row = next(filter(None, map(contract.transitions, _EPISODES)))[0]
    for steps in _EPISODES:
      rows = contract.transitions(steps)
      known = rows or [contract.zero_like(some_row)]
      starts = range(0, len(rows), width)
      if length is None:  # Each episode is one sequence, also without rows.
        starts = [0]
      for start in starts:
        places = range(start, start + width)
        mask = np.array([at < len(rows) for at in places])
        first = contract.window(known, [start], None, 'zeros')['state']
        expected.append(
            {
                'rows': contract.window(known, places, None, 'zeros'),
                'initial_state': tf.nest.map_structure(
                    lambda leaf: leaf[0], first
                ),
                'seq_lens': np.int32(mask.sum()),
                'mask': mask,
            }
        )
    in_map = tf.data.Dataset.from_tensors(flat).map(
        lambda flat: windows.chop_into_sequences(flat, length)
    )
    chopped = next(in_map.as_numpy_iterator())
    contract.assert_rows(self, chopped._asdict(), expected)

  @parameterized.parameters(
      ('trajectory', 'zeros'),
      ('window', 'repeat'),
      ('trajectory', 'ragged'),
  )
  def test_slices(self, weighting, fill):
    flat = windows.FlatRows.of(golden.stacked(_EPISODES))
    drawn = windows.sample_slices(
        flat,
        (24, 4),
        (3, 0),
        strict=False,
        weighting=weighting,
        fill=fill,
        span=(2, 3),
    )
    seen = set()
    for s in range(24):
      rows = contract.transitions(_EPISODES[int(drawn.trajectory[s])])
      places = [int(drawn.start[s]) + place for place in range(4)]
      mask = [0 <= at < len(rows) for at in places]
      seen.add(tuple(mask))
      self.assertAllEqual(drawn.mask[s], mask)
      if fill == 'ragged':
        places = [at for at, is_real in zip(places, mask) if is_real]
      actual = tf.nest.map_structure(lambda leaf: leaf[s].numpy(), drawn.rows)
      contract.assert_equal(
          self, actual, contract.window(rows, places, fill, fill)
      )
    self.assertLen(seen, 6)


if __name__ == '__main__':
  tf.test.main()
