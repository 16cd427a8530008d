"""Tests of episodes of one token per step, and of the KL coefficient."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb import tokens
from tests import contract
from tests import reverb_testing
from tests.tokens import tokenizers

_PROMPT, _RESPONSE = np.array([7, 8, 9]), np.array([4, 5])
_TEXTS = (
    ('is it so', 'yes', 1.0),
    ('is this a cat', 'not so .', -1.0),
    ('so', 'yes it is', 0.5),
)


def _make(prompt=_PROMPT, response=_RESPONSE, **kwargs):
  return tokens.make_token_episode(prompt, response, **kwargs)


def _mapped(response=_RESPONSE, **kwargs):
  """Returns an episode that was made with a response of unknown length."""
  data = tf.data.Dataset.from_generator(
      lambda: [response], output_signature=tf.TensorSpec([None], tf.int64)
  )
  return next(iter(data.map(lambda one: _make(response=one, **kwargs))))


class MakeTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.parameters(_make, _mapped)
  def test_observation_of_all_tokens(self, make):
    episode = make(score=2.0, penalty=[0.125, -0.25], max_length=6, pad_id=-1)
    contract.assert_equal(
        self,
        tf.nest.map_structure(lambda leaf: leaf.numpy(), episode),
        {
            'prompt_ids': _PROMPT,
            'steps': {
                'observation': {
                    'input_ids': np.array(
                        [
                            [7, 8, 9, -1, -1, -1],
                            [7, 8, 9, 4, -1, -1],
                            [7, 8, 9, 4, 5, -1],
                        ]
                    ),
                    'attention_mask': np.tri(3, 6, 2, dtype=bool),
                },
                'action': np.array([4, 5, -1]),
                'reward': np.float32([-0.125, 2.25, 0]),
                'penalty': np.float32([-0.125, 0.25, 0]),
                'discount': np.float32([1, 0, 0]),
                'is_first': np.array([True, False, False]),
                'is_last': np.array([False, False, True]),
                'is_terminal': np.array([False, False, True]),
            },
        },
    )

  @parameterized.parameters(_make, _mapped)
  def test_observation_of_the_new_token_only(self, make):
    episode = make(score=2.0, observation='new', is_terminal=False)
    steps = episode['steps']
    self.assertAllEqual(steps['observation']['token'], [9, 4, 5])
    self.assertAllEqual(steps['observation']['position'], [2, 3, 4])
    self.assertAllEqual(steps['reward'], [0, 2, 0])
    self.assertAllEqual(steps['discount'], [1, 1, 1])
    self.assertAllEqual(steps['is_terminal'], [False] * 3)
    self.assertAllEqual(episode['prompt_ids'], _PROMPT)

  @parameterized.parameters(
      (
          {'response': np.zeros([0], int)},
          'A response must have at least one token',
      ),
      ({'penalty': [0.1]}, 'one penalty per token'),
      ({'max_length': 4}, 'more tokens than max_length'),
      ({'max_length': 0}, 'max_length must be a positive'),
      ({'prompt': np.zeros([0], int), 'observation': 'new'}, 'A prompt must'),
      ({'response': np.int32([4])}, 'int64 and the response is'),
      ({'prompt': _PROMPT[None]}, 'vector of integer token ids'),
      ({'observation': 'news'}, 'observation must be one of'),
  )
  def test_bad_arguments(self, arguments, message):
    errors = (ValueError, tf.errors.InvalidArgumentError)
    with self.assertRaisesRegex(errors, message):
      _make(**arguments)
    if arguments.get('response', _RESPONSE).dtype == np.int64:
      with self.assertRaisesRegex(errors, message):
        _mapped(**arguments)


class TextsTest(tf.test.TestCase):

  def setUp(self):
    super().setUp()
    texts = dict(zip(('prompt', 'response', 'score'), zip(*_TEXTS)))
    texts['id'] = [0, 1, 2]
    texts = {name: list(column) for name, column in texts.items()}

    def add_ratio(text):
      count = tf.size(tf.strings.split(text['response']))
      return {**text, 'log_ratio': tf.ones([count], tf.float64)}

    self.texts = tf.data.Dataset.from_tensor_slices(texts).map(add_ratio)

  def test_episodes(self):
    data = tokens.convert_texts_to_episodes(
        self.texts, tokenizers.by_words, max_length=8, batch_size=2
    )
    episodes = list(data.as_numpy_iterator())
    self.assertEqual([episode['id'] for episode in episodes], [0, 1, 2])
    self.assertEqual(episodes[1]['response'], b'not so .')
    self.assertNotIn('score', episodes[0])
    steps = episodes[1]['steps']
    self.assertAllEqual(steps['action'], [5, 6, 0, 0])
    self.assertAllClose(steps['reward'], [-0.1, -0.1, -1.1, 0])
    seen = steps['observation']
    self.assertAllEqual(seen['input_ids'][2], [3, 7, 1, 2, 5, 6, 0, 0])
    self.assertEqual(seen['attention_mask'].sum(1).tolist(), [4, 5, 6, 7])

  def test_into_reverb_and_out(self):
    data = tokens.convert_texts_to_episodes(
        self.texts, tokenizers.by_words, kl_coefficient=0, max_length=8
    )
    spec = rlds2reverb.create_trajectory_data_spec(data)
    with reverb_testing.reverb_server(spec) as client:
      written = rlds2reverb.write_rlds_to_reverb(
          data, client, [rlds2reverb.TableItems(reverb_testing.TABLE)]
      )
      self.assertEqual(written[reverb_testing.TABLE].new, 1 + 3 + 3)
      items = [item[0] for item in reverb_testing.drain(client)]
    self.assertEqual([item.action for item in items], [8, 5, 6, 0, 8, 4, 3])
    rewards = [item.reward for item in items]
    self.assertAllClose(rewards, [1, 0, 0, -1, 0, 0, 0.5])
    seen = items[1].observation['input_ids']
    self.assertAllEqual(seen, [3, 7, 1, 2, 0, 0, 0, 0])

  def test_bad_texts(self):
    for changes, message in (
        (lambda text: {'response': text['id']}, 'one string per field'),
        (
            lambda text: {'prompt_ids': text['id']},
            "not have a field 'prompt_ids'",
        ),
        (lambda _: {'response': ''}, 'A response must have at least one token'),
    ):
      change = lambda text, changes=changes: {**text, **changes(text)}
      with self.assertRaisesRegex(
          (ValueError, tf.errors.InvalidArgumentError), message
      ):
        texts = self.texts.map(change)
        list(tokens.convert_texts_to_episodes(texts, tokenizers.by_words))


# What AdaptiveKLController(init_kl_coef=0.2, target=6.0, horizon=100) has after
# each of these updates, in TorchRL 0.14.1 (torch 2.13.0).
_UPDATES = (
    ([-1.2, -1.4], 0.2003333419561386),
    ([-3.0], 0.2007340043783188),
    ([0.0, 0.0, 0.0, 0.0], 0.1991281360387802),
    ([-1.21, -1.25], 0.19924557209014893),
)


def _adapt(kl, coefficient=0.1, target=1.0, horizon=1.0):
  return tokens.update_kl_coefficient(
      coefficient, kl, target=target, horizon=horizon
  )


class KlCoefficientTest(tf.test.TestCase):

  def test_kl_coefficient_equals_torchrl(self):
    coefficient = 0.2
    for penalties, expected in _UPDATES:
      kl = tf.constant([-penalty / coefficient for penalty in penalties])
      for adapt in _adapt, tf.function(_adapt):
        actual = adapt(kl, coefficient, 6.0, 100.0)
        self.assertAllClose(actual, expected, rtol=1e-6)
      coefficient = float(actual)

  def test_bad_arguments(self):
    for call, message in (
        (lambda: _adapt([1.0], target=0.0), 'must be positive'),
        (lambda: _adapt([1.0], horizon=-1), 'must be positive'),
        (lambda: _adapt(1.0), 'one number per observation'),
        (lambda: _adapt([]), 'at least one observation'),
        (lambda: _adapt([np.inf]), 'must be finite'),
        (lambda: _adapt([1.0], np.nan), 'must be finite'),
    ):
      with self.assertRaisesRegex(
          (ValueError, tf.errors.InvalidArgumentError), message
      ):
        call()


if __name__ == '__main__':
  tf.test.main()
