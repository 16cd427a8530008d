"""Tests of invalid episodes, which are listed, left out and repaired."""

import json
import os
import shutil

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import tasks
from tests.jobs import data_sets
from tests.jobs import job_testing

# Episode 3 breaks a rule at its step 1, and episode 6 has no first step.
_BAD = {3: 'Discount must lie in [0, 1].', 6: 'An episode must begin'}


class QuarantineTest(job_testing.JobTestCase):

  def _place(self, kind):
    if kind == plan_lib.SERVER:
      return f'localhost:{self.start_server().port}'
    return self.new()

  def _bad(self):
    """Writes the numbered episodes, of which two are bad."""
    episodes = data_sets.episodes_of(job_testing.LENGTHS)
    episodes[3]['steps'][1]['discount'] = 1.5
    episodes[6]['steps'][0]['is_first'] = False
    return data_sets.write(self.new('data'), episodes)

  def test_bad_episodes_are_listed_and_left_out(self):
    folder = self._bad()
    plan = self.plan(directory=folder)  # Of two episodes a task.
    message = (
        r'2 of 4 tasks have failed; 2 are done\.\n  task 1: .*skip.*'
        r'\n.*Discount must lie.*episode 3, .*\n  task 3: (.|\n)*episode 6, '
    )
    for fraction, error, message in (
        (0.0, convert.JobError, message),
        (0.2, tasks.InvalidEpisodesError, '2 episodes are invalid, and 1 of 8'),
    ):
      self.assert_fails(error, message, plan, max_invalid_fraction=fraction)
    self.assertFalse(os.path.exists(plan.output.place))
    summary = self.convert(plan, max_invalid_fraction=0.25)
    path = os.path.join(self.job_folder(plan), 'quarantine.jsonl')
    with open(path, encoding='utf-8') as f:
      lines = list(map(json.loads, f))
    self.assertEqual([line['episode'] for line in lines], list(_BAD))
    for line, sentence in zip(lines, _BAD.values()):
      self.assertStartsWith(line['rule'], sentence)
      self.assertStartsWith(line['message'], line['rule'])
      self.assertIn(f'episode {line["episode"]},', line['message'])
      file = data_sets.files_of(folder)[line['episode'] // 2]
      self.assertEqual((line['file'], line['split']), (file, 'train'))
    self.assertEqual([line['step'] for line in lines], [1, 0])
    self.assertIn('discount=1.5', lines[0]['values'])
    self.assertEqual((summary['skipped'], summary['episodes']), (2, 6))
    self.check(plan, [0, 1, 2, 4, 5, 7])

    # A filter leaves their indices as they are.
    plan = self.plan(
        directory=folder,
        episodes_per_task=8,
        bindings=[
            'transform_episodes.transforms = [@KeepEpisodes()]',
            'KeepEpisodes.min_length = 3',
        ],
    )
    summary = self.convert(plan)
    # Those of 3, 2 and 3 steps have fewer than 3 transitions.
    self.assertEqual(summary['filtered'], 3)
    (receipt,) = self.receipts_of(plan).values()
    self.assertEqual([bad['episode'] for bad in receipt['skipped']], [3])
    self.check(plan, [1, 4, 5, 7])

  @parameterized.parameters(*job_testing.KINDS)
  @pytest.mark.few(1)
  def test_repaired_episodes_come_as_if_they_had_been_right(self, kind):
    folder = self._bad()
    place = self._place(kind)
    plan = self.plan(kind, place, directory=folder, episodes_per_task=4)
    self.convert(plan)
    path = os.path.join(self.job_folder(plan), 'quarantine.jsonl')
    shutil.rmtree(folder)
    data_sets.numbered(folder, job_testing.LENGTHS)
    opened = [sources.open_source(sources.make_source(folder))]
    ranges = ranges_lib.of_quarantine(path, opened)
    self.assertEqual(ranges, [[('train', 3, 4), ('train', 6, 7)]])
    repair = self.plan(kind, place, opened=opened, only=(path, ranges))
    # A repair, too, may be interrupted when its items are there.
    self.interrupt(repair, 'write_quarantine')
    with job_testing.stop_before(0):
      self.convert(repair)
    at_once = self.plan(
        plan_lib.RLDS if kind == plan_lib.RLDS else plan_lib.CHECKPOINT,
        directory=folder,
        episodes_per_task=8,
    )
    self.convert(at_once)
    self.assertCountEqual(self.content(repair), self.content(at_once))


if __name__ == '__main__':
  absltest.main()
