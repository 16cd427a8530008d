"""Tests of sources that are derived from another field, in batches of many."""

import numpy as np
import tensorflow as tf

from rlds2reverb.fields import derived_sources
from rlds2reverb.fields import mapping as mapping_lib
from tests import golden

_TEXTS = {
    'push': b'push',
    '': b'',
    '12345678': b'12345678',
    'a\0bc': b'a',
    'a\nb\0c': b'a\nb',
    'né': 'né'.encode('utf-8'),
}
# The success of the steps of an episode, and whether it is terminal.
_SUCCESSES = (
    ([0, 0, 0, 1], True),
    ([1], True),
    ([0, 0, 1, 0], True),
    ([0, 1, 0, 0], False),
    ([0], False),
    ([0, 0], False),
    ([1, 0], True),
)
_FILLED = dict.fromkeys(('reward', 'discount', 'is_first', 'is_last'))


def _map(episodes, **sources):
  mapping = {**_FILLED, 'observation': 'x', 'action': 'x', 'is_terminal': None}
  for form in golden.stacked, golden.nested, golden.batched:
    mapped = mapping_lib.map_fields(form(episodes), **{**mapping, **sources})
    yield [one['steps'] for one in mapped.as_numpy_iterator()]


class DerivedSourcesTest(tf.test.TestCase):

  def test_text_of_codes(self):
    rows = [list(map(ord, text.ljust(8, '\0'))) for text in _TEXTS]
    codes = np.array(rows, np.int32)
    source = {'text': derived_sources.TextOfCodes('a/codes')}
    steps = {'x': codes[:, 0], 'a': {'codes': codes}}
    for found in _map([steps, steps], observation=source):
      for one in found:
        self.assertAllEqual(one['observation']['text'], [*_TEXTS.values()])

  def test_success_at_the_end_is_terminal(self):
    episodes = [
        {'x': np.arange(len(one)), 'a:success': np.float32(one)[:, None]}
        for one, _ in _SUCCESSES
    ]
    for path in 'a:success', ('a:success',):
      source = derived_sources.TerminalOnSuccess(path)
      for found in _map(episodes, is_terminal=source):
        self.assertLen(found, len(_SUCCESSES))
        for steps, (success, terminal) in zip(found, _SUCCESSES):
          expected = [False] * (len(success) - 1) + [terminal]
          self.assertAllEqual(steps['is_terminal'], expected)


if __name__ == '__main__':
  tf.test.main()
