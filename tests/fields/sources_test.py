"""Tests of sources that are derived from another field, in batches of many."""

import numpy as np
import tensorflow as tf

from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import sources
from tests import golden

_TEXTS = {
    'push': b'push',
    '': b'',
    '12345678': b'12345678',
    'a\0bc': b'a',
    'a\nb\0c\nd': b'a\nb',
    'né': 'né'.encode(),
}
# The success of the steps of an episode, and whether it is terminal.
_SUCCESSES = (
    ([0, 0, 0, 1], True),
    ([1], True),
    ([0, 0, 1, 0], True),
    ([0, 1, 0, 0], False),
    ([0], False),
    ([0, 0], False),
    ([1, 0, 0, 0, 0, 0], False),
    ([1, 0], True),
)
_MAPPING = {
    'observation': {'text': sources.TextFromCodes('a/codes')},
    'action': 'a/codes',
    **dict.fromkeys(('reward', 'discount', 'is_first', 'is_last')),
}


class DerivedSourcesTest(tf.test.TestCase):

  def test_text_of_codes_and_success_that_is_terminal(self):
    rows = [list(map(ord, text.ljust(8, '\0'))) for text in _TEXTS]
    episodes = [
        {
            'a:success': np.float32(one)[:, None],
            'a': {'codes': np.array(rows[: len(one)], np.int32)},
        }
        for one, _ in _SUCCESSES
    ]
    for form, path in (
        (golden.stacked, ('a:success',)),
        (golden.nested, 'a:success'),
        (golden.batched, 'a:success'),
    ):
      source = sources.TerminalOnSuccess(path)
      mapped = mapping_lib.map_fields(
          form(episodes), is_terminal=source, **_MAPPING
      )
      actual = [episode['steps'] for episode in mapped.as_numpy_iterator()]
      for steps, (success, terminal) in zip(actual, _SUCCESSES, strict=True):
        length = len(success)
        texts = [*_TEXTS.values()][:length]
        self.assertAllEqual(steps['observation']['text'], texts)
        expected = [False] * (length - 1) + [terminal]
        self.assertAllEqual(steps['is_terminal'], expected)

  def test_only_the_last_transition_decides_whether_rwrl_is_terminal(self):
    # As TFDS makes them: rolled by one, so that the placeholder 0 of the first
    # row is on the last step.
    limited, failed, early_zero = [1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 1, 0]
    for form in golden.stacked, golden.nested, golden.batched:
      data = form([_rwrl(one) for one in (limited, failed, early_zero, [0])])
      mapped = mapping_lib.map_fields(data, 'rlu_rwrl')
      found = [episode['steps'] for episode in mapped.as_numpy_iterator()]
      ends = [episode['is_terminal'][-1] for episode in found]
      self.assertEqual(ends, [False, True, False, False])
      for steps in found:
        self.assertFalse(steps['is_terminal'][:-1].any())
      discounts = [list(one['discount']) for one in found]
      self.assertEqual(
          discounts, [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1], [1]]
      )


def _rwrl(discounts):
  length = len(discounts)
  at = np.arange(length)
  discount = np.float32(discounts)[:, None]
  return {
      'observation': {'position': np.zeros([length, 3], np.float32)},
      'action': np.zeros([length, 1], np.float32),
      'reward': np.ones([length, 1], np.float32),
      'discount': discount,
      'is_first': at == 0,
      'is_last': at == length - 1,
      'is_terminal': discount[:, 0] == 0,
  }


if __name__ == '__main__':
  tf.test.main()
