"""Tests of episodes of one token a step."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb import tokens
from tests import contract
from tests import testing
from tests.tokens import tokenizers

_PROMPT, _RESPONSE = np.array([7, 8, 9]), np.array([4, 5])


def _both_ways(**kwargs):
  """Returns the episode as made eagerly, and as made in `map`, in numpy."""
  eager = tokens.make_token_episode(_PROMPT, _RESPONSE, **kwargs)
  data = tf.data.Dataset.from_tensors((_PROMPT, _RESPONSE)).map(
      lambda prompt, response: tokens.make_token_episode(
          prompt, response, **kwargs
      )
  )
  return (
      tf.nest.map_structure(lambda leaf: leaf.numpy(), eager),
      next(data.as_numpy_iterator()),
  )


class MakeTest(parameterized.TestCase, tf.test.TestCase):

  def test_all_tokens(self):
    for episode in _both_ways(
        score=2.0,
        penalty=[0.125, -0.25],
        max_length=6,
        pad_id=-1,
    ):
      contract.assert_equal(
          self,
          episode,
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
                      'attention_mask': np.array(
                          [
                              [1, 1, 1, 0, 0, 0],
                              [1, 1, 1, 1, 0, 0],
                              [1, 1, 1, 1, 1, 0],
                          ],
                          bool,
                      ),
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

  def test_only_the_new_token(self):
    for episode in _both_ways(score=2.0, observation='new', is_terminal=False):
      steps = episode['steps']
      self.assertAllEqual(steps['observation']['token'], [9, 4, 5])
      self.assertAllEqual(steps['observation']['position'], [2, 3, 4])
      self.assertAllEqual(steps['reward'], [0, 2, 0])
      self.assertAllEqual(steps['discount'], [1, 1, 1])
      self.assertFalse(steps['is_terminal'].any())
      self.assertAllEqual(episode['prompt_ids'], _PROMPT)

  @parameterized.parameters(
      ({'response': np.zeros([0], int)}, 'A response must have a token'),
      ({'penalty': [0.1]}, 'a penalty for each token'),
      ({'max_length': 4}, 'more tokens than max_length'),
      ({'prompt': np.zeros([0], int), 'observation': 'new'}, 'A prompt must'),
  )
  def test_bad_data(self, arguments, message):
    arguments = {'prompt': _PROMPT, 'response': _RESPONSE, **arguments}
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      tokens.make_token_episode(**arguments)
    # The length of a response is not known before.
    data = tf.data.Dataset.from_generator(
        lambda: [arguments['response']],
        output_signature=tf.TensorSpec([None], tf.int64),
    ).map(
        lambda response: tokens.make_token_episode(
            **{**arguments, 'response': response}
        )
    )
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      list(data)

  def test_bad_arguments(self):
    for arguments, message in (
        ((_PROMPT, _RESPONSE.astype(np.int32)), 'int64, but the response is'),
        ((_PROMPT, np.float32([1])), 'must be the ids'),
        ((_PROMPT[None], _RESPONSE), 'must be the ids'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        tokens.make_token_episode(*arguments)
    data = tf.data.Dataset.from_tensors([0.5])
    with self.assertRaisesRegex(ValueError, r'has \(1,\) for \(2,\)'):
      data.map(
          lambda ratio: tokens.make_token_episode(
              _PROMPT, _RESPONSE, penalty=ratio
          )
      )
    with self.assertRaisesRegex(ValueError, 'observation must be one of'):
      tokens.make_token_episode(_PROMPT, _RESPONSE, observation='news')


def _without(texts, field):
  return texts.map(
      lambda text: {name: text[name] for name in text if name != field}
  )


class TextsTest(parameterized.TestCase, tf.test.TestCase):

  def setUp(self):
    super().setUp()
    self.texts = tf.data.Dataset.from_generator(
        lambda: (
            {
                'prompt': prompt,
                'response': response,
                'score': score,
                'log_ratio': np.ones(len(response.split())),
                'id': number,
            }
            for number, (prompt, response, score) in enumerate(
                [
                    ('is it so', 'yes', 1.0),
                    ('is this a cat', 'not so .', -1.0),
                    ('so', 'yes it is', 0.5),
                ]
            )
        ),
        output_signature={
            'prompt': tf.TensorSpec([], tf.string),
            'response': tf.TensorSpec([], tf.string),
            'score': tf.TensorSpec([], tf.float32),
            'log_ratio': tf.TensorSpec([None], tf.float64),
            'id': tf.TensorSpec([], tf.int64),
        },
    )

  @parameterized.parameters(1, 2, 64)
  def test_episodes(self, texts_at_once):
    data = tokens.convert_texts_to_episodes(
        self.texts,
        tokenizers.by_words,
        max_length=8,
        texts_at_once=texts_at_once,
    )
    episodes = list(data.as_numpy_iterator())
    self.assertEqual([episode['id'] for episode in episodes], [0, 1, 2])
    self.assertEqual(episodes[1]['response'], b'not so .')
    self.assertNotIn('score', episodes[0])
    steps = episodes[1]['steps']
    self.assertAllEqual(steps['action'], [5, 6, 0, 0])
    self.assertAllClose(steps['reward'], [-0.1, -0.1, -1.1, 0])
    self.assertAllEqual(
        steps['observation']['input_ids'][2], [3, 7, 1, 2, 5, 6, 0, 0]
    )
    self.assertEqual(
        steps['observation']['attention_mask'].sum(1).tolist(), [4, 5, 6, 7]
    )

  def test_into_reverb_and_out(self):
    data = tokens.convert_texts_to_episodes(
        _without(self.texts, 'log_ratio'), tokenizers.by_words, max_length=8
    )
    spec = rlds2reverb.create_trajectory_data_spec(data)
    with testing.reverb_server(spec) as client:
      written = rlds2reverb.write_rlds_to_reverb(
          data, client, [rlds2reverb.TableItems(testing.TABLE)]
      )
      self.assertEqual(written[testing.TABLE].new, 1 + 3 + 3)
      items = testing.drain(client)
    self.assertEqual([item[0].action for item in items], [8, 5, 6, 0, 8, 4, 3])
    self.assertAllClose(
        [item[0].reward for item in items], [1, 0, 0, -1, 0, 0, 0.5]
    )
    self.assertAllEqual(
        items[1][1].observation['input_ids'], [3, 7, 1, 2, 5, 0, 0, 0]
    )

  def test_bad_texts(self):
    for change, message in (
        (
            lambda text: {'prompt': text['prompt'], 'reponse': text['id']},
            "no field 'response'.*reponse",
        ),
        (
            lambda text: {**text, 'response': text['id']},
            'one string an element',
        ),
        (
            lambda text: {**text, 'prompt_ids': text['id']},
            "field 'prompt_ids' already",
        ),
        (lambda text: {**text, 'response': ''}, 'A response must have a token'),
    ):
      with self.assertRaisesRegex(
          (ValueError, tf.errors.InvalidArgumentError), message
      ):
        texts = self.texts.map(change)
        list(tokens.convert_texts_to_episodes(texts, tokenizers.by_words))


if __name__ == '__main__':
  tf.test.main()
