"""Tests of whole jobs, in this process, into every kind of output."""

import itertools
import os
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
from reverb.cc import schema_pb2

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import counts
from rlds2reverb.jobs import engines
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import tasks
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from tests import recordings
from tests.jobs import data_sets
from tests.jobs import job_testing


class ConvertTest(job_testing.JobTestCase):

  @parameterized.parameters(plan_lib.CHECKPOINT, plan_lib.RLDS)
  @pytest.mark.few(1)
  def test_a_job_that_is_interrupted_ends_like_one_that_is_not(self, kind):
    plan = self.plan(kind, episodes_per_task=4)
    self.assertLen(plan.tasks, 2)
    self.interrupt(plan, 1)
    self.assertLen(self.receipts_of(plan), 1)
    # It is done, and killed while it ends.
    self.interrupt(plan, 'remove_parts')
    with job_testing.stop_before(0):
      summary = self.convert(plan)
    self.assertIn('tasks: 2, done already: 2 (8 of 8 episodes)', self.said[0])
    steps = sum(job_testing.LENGTHS)
    self.assertEqual((summary['episodes'], summary['steps']), (8, steps))
    statistics = summary['statistics']
    self.assertEqual(
        statistics['length'], {'count': 8, 'sum': steps - 8, 'min': 1, 'max': 6}
    )
    self.assertEqual(statistics['return']['max'], sum(range(700, 706)))
    # All are terminal, and their last discounts are 1.
    self.assertEqual(statistics['bootstrapped_terminals'], 8)
    self.check(plan)
    self.assertEqual(
        sorted(os.listdir(self.job_folder(plan))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )
    # An output that was removed is made again. Neither the order of the tasks
    # nor the way in which the work is cut nor interruptions change a key.
    content = self.content(plan)
    shutil.rmtree(plan.output.place)
    here = engines.InProcessEngine()
    backwards = lambda attempt, numbers, report: engines.InProcessEngine.map(
        here, attempt, reversed(numbers), report
    )
    with mock.patch.object(here, 'map', backwards):
      self.convert(plan, engine=here)
    self.assertIn('2 tasks are done again', '\n'.join(self.said))
    self.assertEqual(self.content(plan), content)
    if plan.tables:
      other = self.plan(episodes_per_task=8)
      self.assertLen(other.tasks, 1)
      self.convert(other)
      self.assertEqual(self.content(other), content)
      # Items come in the order of the data.
      dates = [
          schema_pb2.PrioritizedItem.FromString(item).inserted_at
          for batch in records.read(plan.output.place, records.ITEMS)
          for item in batch
      ]
      dates = [date.ToNanoseconds() for date in dates]
      self.assertEqual(dates, sorted(set(dates)))

  def test_a_dry_run_reads_no_episode_and_writes_nothing(self):
    folder = self.new('data')
    shutil.copytree(self.directory, folder)
    for path in data_sets.files_of(folder):
      with open(path, 'wb') as f:
        f.truncate(5_000_000)  # Zeros, which are no record.
    plan = self.plan(directory=folder)
    self.assertEqual(self.convert(plan, dry_run=True), {})
    self.assertFalse(os.path.exists(plan.output.place))
    self.assertFalse(os.path.exists(self.job_folder(plan)))
    (text,) = self.said
    for line in (
        'episodes: 8; files: 4, 20.0 MB; how many steps is not known',
        'observation: float32 (2,)',
        'table experience: items of 2 frames, every 1, at an end drop',
        f'to a new Reverb checkpoint {plan.output.place}',
        'tasks: 4, done already: 0',
    ):
      self.assertIn(line, text)

  def test_another_plan_in_the_same_place_is_refused(self):
    place = self.new()
    plan = self.plan(plan_lib.CHECKPOINT, place, split='train[:4]')
    other = self.plan(
        plan_lib.CHECKPOINT,
        place,
        split='train[:4]',
        tables=[items.TableItems(job_testing.TABLE, windows_lib.Windows(3))],
    )
    # Not where nothing was done.
    self.interrupt(other, 0)
    self.interrupt(plan, 1)
    message = 'another plan:\n  tables/0/windows/length: 2 before, 3 now[.]\n'
    self.assert_fails(ValueError, message, other)
    self.convert(plan)
    self.check(plan, range(4))

  def test_places_that_cannot_be_written_are_refused(self):
    folder, file = self.new(), self.create_tempfile(content='mine').full_path
    os.mkdir(folder)
    open(os.path.join(folder, 'mine'), 'wb').close()
    for kind, place, error, message in (
        (plan_lib.CHECKPOINT, folder, FileExistsError, 'not the output of'),
        (plan_lib.RLDS, folder, FileExistsError, 'not the output of'),
        (plan_lib.STATISTICS, folder, FileExistsError, 'not the output of'),
        (plan_lib.CHECKPOINT, file, FileExistsError, f'{file} is a file'),
        (plan_lib.RLDS, '/proc/output', OSError, '/proc/output.job cannot be'),
        (plan_lib.RLDS, self.directory, FileExistsError, 'not the output of'),
    ):
      self.assert_fails(error, message, self.plan(kind, place))
      self.assertFalse(os.path.exists(f'{place}.job'))
    self.assertEqual(os.listdir(folder), ['mine'])
    with self.assertRaisesRegex(ValueError, r'must lie in \[0, 1\]'):
      self.convert(self.plan(), max_invalid_fraction=1.5)

  def test_a_second_job_is_refused(self):
    plan = self.plan(episodes_per_task=8)
    message = '^Another process is writing .*output'

    def run_second():
      # With a folder of its own, too, it has the same output.
      for folder in None, self.new('job'):
        self.assert_fails(BlockingIOError, message, plan, folder)

    with job_testing.before_task(0, run_second):
      self.convert(plan)
    self.check(plan)
    self.convert(plan)
    self.assertIn('nothing to do', self.said[-1])

  @pytest.mark.long
  def test_an_output_without_items_is_an_error(self):
    bad = data_sets.episodes_of(job_testing.LENGTHS)
    for episode in bad:
      episode['steps'][0]['is_first'] = False
    bad = data_sets.write(self.new('bad'), bad)
    wide = items.TableItems(job_testing.TABLE, windows_lib.Windows(50))
    whole = items.TableItems(
        job_testing.TABLE,
        None,
        max_sequence_length=1,
        bypass_longer_episodes=True,
    )
    pairs = items.TableItems(job_testing.TABLE)
    for directory, table, message in (
        (
            self.directory,
            wide,
            "Table 'experience' would have no items, and samplers would wait"
            ' for ever: an item has 50 steps, and the longest episode has 7.',
        ),
        (self.directory, whole, 'has 1 or fewer steps, and the longest .* 7'),
        (bad, pairs, 'no valid episode.* lists 8 invalid episodes'),
    ):
      plan = self.plan(directory=directory, tables=[table], episodes_per_task=8)
      for _ in range(2):
        self.assert_fails(convert.JobError, message, plan)
      self.assertFalse(os.path.exists(plan.output.place))
    self.convert(plan, allow_empty=True)
    (table,) = records.read_tables(plan.output.place).values()
    self.assertEqual(records.num_items(table), 0)
    rlds = self.plan(plan_lib.RLDS, self.new(), directory=bad)
    self.assert_fails(convert.JobError, 'there is no valid episode', rlds)
    with self.assertRaisesRegex(ValueError, 'no valid episodes to write'):
      self.convert(rlds, allow_empty=True)

  def test_data_that_has_changed_or_is_damaged(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    plan = self.plan(directory=folder, episodes_per_task=4)
    path, _, *others = data_sets.files_of(folder)
    with open(path, 'rb') as f:
      whole = f.read()
    for other in others:
      os.rename(other, f'{other}.away')
    os.truncate(path, len(whole) - 5)
    message = (
        rf'2 of 2 tasks (.|\n)*{path} is damaged after 1 whole(.|\n)*'
        rf'No such file.*{others[0]}'
    )
    self.assert_fails(convert.JobError, message, plan)
    for other in others:
      os.rename(f'{other}.away', other)
    with open(path, 'wb') as f:
      f.write(whole)

    add, times = counts.FrameCounter.add, itertools.count()

    def change(*args):
      os.utime(path, ns=(0, next(times)))
      return add(*args)

    with mock.patch.object(counts.FrameCounter, 'add', change):
      message = rf'1 of 2 tasks(.|\n)*{path}.* has changed while'
      self.assert_fails(convert.JobError, message, plan)
    self.assertSameElements(self.receipts_of(plan), [1])
    self.convert(plan)
    self.check(plan)

  def test_data_that_was_written_anew_in_place_is_not_mixed(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    data = {'directory': folder, 'episodes_per_task': 4}
    plan = self.plan(**data)

    def write_anew(base):
      episodes = data_sets.episodes_of(job_testing.LENGTHS)
      for step in itertools.chain(*(one['steps'] for one in episodes)):
        step['reward'] += np.float32(base)
      shutil.rmtree(folder)
      data_sets.write(folder, episodes)

    self.interrupt(plan, 1)
    write_anew(0.5)
    again = self.plan(place=plan.output.place, **data)
    self.assertEqual(again, plan)  # TFDS records the same of it.
    self.convert(again)
    self.assertIn('1 task is done again: files have changed since.', self.said)
    self.check(plan, base=0.5)
    # What is finished is not what there is now, and the job says so.
    write_anew(0.25)
    message = 'files of 2 of 2 tasks have changed since'
    self.assert_fails(convert.JobError, message, plan)

  @pytest.mark.long
  def test_a_mixture_by_weights(self):
    other = data_sets.numbered(self.new('other'), [3] * 3)
    opened = [
        sources.open_source(sources.make_source(directory))
        for directory in (self.directory, other)
    ]
    plan = self.plan(opened=opened, weights=[4.0, 2.0], episodes_per_task=1)
    self.assertEqual(plan.num_episodes, 9)
    self.assertEqual(
        [task.source for task in plan.tasks], [0, 1, 0, 0, 1, 0, 0, 1, 0]
    )
    plan = self.plan(opened=opened, weights=[4.0, 2.0], episodes_per_task=4)
    self.convert(plan)
    self.assertIn('\n  9 episodes by their weights\n', self.said[0])
    self.assertEqual(
        job_testing.rewards_of(self.content(plan)),
        sorted(
            job_testing.pairs(enumerate(job_testing.LENGTHS[:6]))
            + job_testing.pairs(enumerate([3] * 3))
        ),
    )
    with self.assertRaisesRegex(ValueError, 'in two sources'):
      self.plan(opened=opened[:1] * 2)
    pixels = os.path.join(recordings.FOLDER, 'cartpole_pixels')
    opened[1] = sources.open_source(sources.make_source(pixels))
    message = 'has other frames than numbered'
    self.assert_fails(ValueError, message, self.plan(opened=opened))

  def test_what_becomes_of_errors(self):
    attempt = tasks.Attempt(mock.Mock())
    for error, kind, message in (
        (MemoryError('8 GiB'), tasks.TaskError, 'not enough memory: 8 GiB'),
        (TypeError('Of no kind.'), tasks.TaskError, 'TypeError: Of no kind.'),
        (FileNotFoundError('x'), tasks.TaskError, 'x'),
        (OSError('No space left.'), OSError, 'No space left.'),
        (BlockingIOError('Busy.'), ConnectionError, 'Busy.'),
        (tasks.InvalidEpisodesError('2'), tasks.InvalidEpisodesError, '2'),
    ):
      found = attempt.outcome_of(mock.Mock(side_effect=error))
      self.assertIs(type(found), kind)
      self.assertIn(message, str(found))


if __name__ == '__main__':
  absltest.main()
