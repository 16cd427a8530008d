"""Tests of the program that checks every episode, on the files of a user."""

import json

from absl.testing import absltest
import numpy as np
import pytest

from tests.jobs import data_sets
from tests.scripts import in_process


class ValidateTest(absltest.TestCase):

  @pytest.mark.long
  def test_exit_codes_and_output(self):
    folder = self.create_tempdir().full_path
    data_sets.numbered(f'{folder}/good', [3, 4])
    bad = [data_sets.episode(index, 4) for index in range(3)]
    bad[1]['steps'][2]['discount'] = np.float32(1.5)
    bad[2]['steps'][3]['is_last'] = False
    data_sets.write(f'{folder}/bad', bad)
    good, both, as_json = in_process.run(
        'validate',
        [
            ['--dataset=good'],
            ['--dataset=bad', '--dataset=good', '--limit=2'],
            ['--dataset=bad', '--json'],
        ],
        BUILD_WORKING_DIRECTORY=folder,
    )
    self.assertEqual(good.code, 0, good.stderr)
    self.assertEndsWith(
        good.stdout, 'split train: 2 episodes, 0 invalid, 0 problems\n'
    )

    self.assertEqual(both.code, 1, both.stderr)
    lines = both.stdout.splitlines()
    self.assertEqual(
        lines[0],
        'train episode 1, step 2: Discount must lie in [0, 1]. is_first=0,'
        ' is_last=0, is_terminal=0, discount=1.5',
    )
    self.assertStartsWith(lines[1], 'train episode 2, step 3: Terminal step')
    self.assertEqual(lines[2], 'and 1 more; --limit lists more of them.')
    self.assertEndsWith(lines[3], '3 episodes, 2 invalid, 3 problems')
    self.assertEndsWith(lines[4], '2 episodes, 0 invalid, 0 problems')

    self.assertEqual(as_json.code, 1)
    actual = json.loads(as_json.stdout)
    self.assertEqual(
        [
            (problem['episode'], problem['step'])
            for problem in actual['problems']
        ],
        [(1, 2), (2, 3), (2, 3)],
    )


if __name__ == '__main__':
  absltest.main()
