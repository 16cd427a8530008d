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
    'a\nb\0c\nd': b'a\nb',
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
    ([1, 0, 0, 0, 0, 0], False),
    ([1, 0], True),
)
_MAPPING = {
    'observation': {'text': derived_sources.TextOfCodes('a/codes')},
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
      source = derived_sources.TerminalOnSuccess(path)
      mapped = mapping_lib.map_fields(
          form(episodes), is_terminal=source, **_MAPPING
      )
      found = [one['steps'] for one in mapped.as_numpy_iterator()]
      for steps, (success, terminal) in zip(found, _SUCCESSES, strict=True):
        length = len(success)
        texts = [*_TEXTS.values()][:length]
        self.assertAllEqual(steps['observation']['text'], texts)
        expected = [False] * (length - 1) + [terminal]
        self.assertAllEqual(steps['is_terminal'], expected)


if __name__ == '__main__':
  tf.test.main()
