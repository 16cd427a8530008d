"""Tests of whole jobs, in this process, into every kind of output."""

import itertools
import json
import os
import shutil
import subprocess
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import reverb

from rlds2reverb.datasets import loading
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import engines
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import server_output
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import task_episodes
from rlds2reverb.jobs import tasks
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from tests.jobs import data_sets
from tests.jobs import job_testing

_NUMBERS = list(range(len(job_testing.LENGTHS)))
# Episode 3 breaks a rule at its step 1, and episode 6 has no first step.
_BAD = {3: 'Discount must lie in [0, 1].', 6: 'An episode must begin'}


def _numbered_episodes():
  return [
      data_sets.episode(index, length)
      for index, length in enumerate(job_testing.LENGTHS)
  ]


def _bad_episodes():
  episodes = _numbered_episodes()
  episodes[3]['steps'][1]['discount'] = 1.5
  episodes[6]['steps'][0]['is_first'] = False
  return episodes


def _names(folder):
  return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


class _Interrupted(BaseException):
  """Stops a job where nothing expects it."""


def _before_task(count, action):
  """Lets something happen when `count` tasks are done."""
  run_task = tasks.run_task
  calls = []

  def run(*args):
    calls.append(args)
    if len(calls) == count + 1:
      action()
    return run_task(*args)

  return mock.patch.object(tasks, 'run_task', run)


def _stop_before(count):
  """Lets only `count` tasks be done."""
  return _before_task(count, mock.Mock(side_effect=_Interrupted))


class _ConvertTestCase(job_testing.JobTestCase):

  def _content(self, plan):
    """Returns everything that an output holds."""
    if plan.output.kind == plan_lib.CHECKPOINT:
      return job_testing.items_of(plan.output.place)
    if plan.output.kind == plan_lib.SERVER:
      return job_testing.items_in(reverb.Client(plan.output.place))
    return [
        episode['steps']['reward'].tolist()
        for episode in loading.load_episodes(
            plan.output.place
        ).as_numpy_iterator()
    ]

  def interrupt(self, plan, count):
    """Does `count` tasks of a plan."""
    with _stop_before(count), self.assertRaises(_Interrupted):
      self.convert(plan)

  def _check(self, plan, indices=_NUMBERS, base=0.0):
    """Checks that an output has these numbered episodes and no others."""
    numbered = [(index, job_testing.LENGTHS[index]) for index in indices]
    expected = job_testing.pairs(numbered)
    content = self._content(plan)
    if plan.tables:
      content = job_testing.rewards_of(content)
    else:
      expected = [[100 * i + t for t in range(n)] for i, n in numbered]
    self.assertEqual(
        content, [[each + base for each in row] for row in expected]
    )

  def _place(self, kind):
    if kind == plan_lib.SERVER:
      return f'localhost:{self.start_server().port}'
    return self.new()


class ConvertTest(_ConvertTestCase):

  @parameterized.parameters(*job_testing.KINDS)
  @pytest.mark.long
  def test_a_job_that_is_interrupted_ends_like_one_that_is_not(self, kind):
    plan = self.plan(kind, self._place(kind))
    self.assertLen(plan.tasks, 4)
    self.interrupt(plan, 1)
    self.interrupt(plan, 2)
    self.assertLen(self.receipts_of(plan), 3)
    summary = self.convert(plan)
    self.assertIn('tasks: 4, done already: 3 (6 of 8 episodes)', self.said[0])
    self.assertEqual(summary['episodes'], 8)
    self.assertEqual(summary['steps'], sum(job_testing.LENGTHS))
    lengths = summary['statistics']['length']
    self.assertEqual(
        (lengths['min'], lengths['max'], lengths['sum']),
        (1, 6, sum(job_testing.LENGTHS) - 8),
    )
    returns = summary['statistics']['return']
    self.assertEqual(returns['min'], 0 + 1)
    self.assertEqual(returns['max'], sum(range(700, 706)))

    # All are terminal, and their last discounts are 1.
    self.assertEqual(summary['statistics']['bootstrapped_terminals'], 8)

    content = self._content(plan)
    self._check(plan)
    if plan.tables:
      # Neither the way in which the work is cut, nor the interruptions, nor
      # the kind of output changes a key.
      other = self.plan(episodes_per_task=5)
      self.assertLen(other.tasks, 2)
      self.convert(other)
      self.assertEqual(self._content(other), content)

    # A finished job does nothing.
    with _stop_before(0):
      self.assertEqual(self.convert(plan), summary)
    self.assertIn('nothing to do', self.said[-1])
    self.assertEqual(self._content(plan), content)
    self.assertEqual(
        sorted(os.listdir(self.job_folder(plan))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )

  def test_the_order_of_items_is_that_of_the_data(self):
    plan = self.plan(episodes_per_task=4)
    self.assertLen(plan.tasks, 2)
    here = engines.Here()
    backwards = lambda attempt, numbers, report: engines.Here.map(
        here, attempt, reversed(numbers), report
    )
    with mock.patch.object(here, 'map', backwards):
      self.convert(plan, engine=here)
    dates = [
        item.inserted_at.ToNanoseconds()
        for item in job_testing.item_records(plan.output.place)
    ]
    self.assertEqual(dates, sorted(set(dates)))

  @parameterized.parameters(plan_lib.CHECKPOINT, plan_lib.RLDS)
  @pytest.mark.long
  def test_an_end_at_any_moment_of_finishing(self, kind):
    plan = self.plan(kind, self.new(), episodes_per_task=4)
    for target, name in (
        (job_lib.Job, 'write_quarantine'),
        (job_lib.Job, 'remove_parts'),
    ):
      with mock.patch.object(target, name, side_effect=_Interrupted):
        with self.assertRaises(_Interrupted):
          self.convert(plan)
    with _stop_before(0):
      self.convert(plan)
    self.assertLen(self._content(plan), {'rlds': 8}.get(kind, 26))
    self.assertNotIn('parts', os.listdir(self.job_folder(plan)))
    # An output that was removed is made again.
    shutil.rmtree(plan.output.place)
    self.convert(plan)
    self.assertIn('2 tasks are done again', '\n'.join(self.said))
    self.assertLen(self._content(plan), {'rlds': 8}.get(kind, 26))

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
        'episodes: 8; files: 4, 20.0 MB',
        'observation: float32 (2,)',
        'table experience: items of 2 frames, every 1, at an end drop',
        f'to a new Reverb checkpoint {plan.output.place}',
        'tasks: 4, done already: 0',
    ):
      self.assertIn(line, text)

  def test_another_plan_in_the_same_place_is_refused(self):
    place = self.new()
    self.convert(self.plan(plan_lib.CHECKPOINT, place, split='train[:2]'))
    other = self.plan(
        plan_lib.CHECKPOINT,
        place,
        split='train[:2]',
        tables=[items.TableItems(job_testing.TABLE, windows_lib.Windows(3))],
    )
    self.assert_fails(
        ValueError,
        'another plan:\n  tables/0/windows/length: 2 before, 3 now[.]\n',
        other,
    )

  def test_a_job_that_was_killed_before_it_did_anything(self):
    place = self.new()
    plan = self.plan(plan_lib.CHECKPOINT, place, split='train[:2]')
    with mock.patch.object(job_lib.Job, 'remove'):
      self.interrupt(plan, 0)
    self.assertEqual(job_lib._read_plan(self.job_folder(plan)), plan)
    other = self.plan(plan_lib.CHECKPOINT, place, split='train[2:4]')
    self.interrupt(other, 0)
    self.assertFalse(os.path.exists(self.job_folder(plan)))
    self.convert(other)
    self.assertLen(self._content(other), 6)

  def test_items_that_a_server_has_already_are_said(self):
    server = self.start_server()
    plan = self.plan(
        plan_lib.SERVER, f'localhost:{server.port}', episodes_per_task=8
    )
    self.assertEqual(self.convert(plan)['there_before'], 0)
    # As if the folder of the first job had been removed.
    again = self.convert(plan, folder=self.new('job'))
    self.assertEqual(again['there_before'], 26)
    self.assertIn('Items whose keys a server has already stay', self.said[-1])

  def test_places_that_cannot_be_written_are_refused(self):
    folder, file = self.new(), self.create_tempfile(content='mine').full_path
    os.mkdir(folder)
    open(os.path.join(folder, 'mine'), 'wb').close()
    for kind in plan_lib.CHECKPOINT, plan_lib.RLDS, plan_lib.STATISTICS:
      for place, error, message in (
          (folder, FileExistsError, 'not the output of this'),
          (file, FileExistsError, f'{file} is a file'),
          ('/proc/output', OSError, '/proc/output.job cannot be written'),
          (self.directory, ValueError, 'The episodes are read from'),
      ):
        self.assert_fails(error, message, self.plan(kind, place))
        self.assertFalse(os.path.exists(f'{place}.job'))
    self.assertEqual(os.listdir(folder), ['mine'])

  def test_a_second_job_on_one_output_is_refused(self):
    plan = self.plan(episodes_per_task=8)
    map_here = engines.Here.map
    refused = []

    def run_second(*args, **kwargs):
      # With a folder of its own, too, it has the same output.
      for folder in None, self.new('job'):
        self.assert_fails(
            BlockingIOError,
            '^Another process is writing .*output',
            plan,
            folder,
        )
        refused.append(folder)
      return map_here(*args, **kwargs)

    with mock.patch.object(engines.Here, 'map', run_second):
      self.convert(plan)
    self.assertLen(refused, 2)
    self.assertFalse(os.path.exists(refused[1]))

  def test_a_full_disk_is_refused(self):
    for kind, times in (
        (plan_lib.CHECKPOINT, 2),  # The parts, and the result.
        (plan_lib.RLDS, 1),  # The files of the parts become the result's.
        (plan_lib.STATISTICS, 0),
    ):
      with self.subTest(kind):
        plan = self.plan(kind, self.new(), episodes_per_task=8)
        size = plan.data_sets[0].num_bytes * times
        usage = shutil.disk_usage('/')._replace(free=size - 10)
        with mock.patch.object(shutil, 'disk_usage', return_value=usage):
          if not times:
            self.convert(plan)
            continue
          self.assert_fails(OSError, 'needs about .* are free', plan)
        self.assertFalse(os.path.exists(self.job_folder(plan)))

  @pytest.mark.long
  def test_a_disk_that_is_full_when_the_parts_are_joined(self):
    # A disk of its own needs rights that not every machine gives.
    disk = self.new('disk')
    os.mkdir(disk)
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=40k', 'tmpfs', disk],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
      self.skipTest('No disk can be mounted here.')
    self.addCleanup(subprocess.run, ['umount', disk], check=True)
    data = data_sets.numbered(self.new('data'), [1000] * 2)
    place = os.path.join(disk, 'output')
    plan = self.plan(plan_lib.CHECKPOINT, place, directory=data)
    job = self.new('job')
    with mock.patch.object(outputs.FolderOutput, 'check_space'):
      self.assert_fails(
          OSError,
          f'{place} could not be written, because its disk is full: the result'
          r' takes about 0.1 MB, and 0.0 MB are free. All tasks are done, and'
          f' kept in {job}',
          plan,
          job,
      )
      subprocess.run(['mount', '-o', 'remount,size=4m', disk], check=True)
      with _stop_before(0):
        self.convert(plan, job)
    self.assertLen(self._content(plan), 2 * 999)

  @pytest.mark.long
  def test_an_output_without_items_is_an_error(self):
    bad = _numbered_episodes()
    for episode in bad:
      episode['steps'][0]['is_first'] = False
    bad = data_sets.write(self.new('bad'), bad)
    for directory, table, message in (
        (
            self.directory,
            items.TableItems(job_testing.TABLE, windows_lib.Windows(50)),
            "Table 'experience' would have no items, and samplers would wait"
            ' for ever: an item has 50 steps, and the longest episode has 7.',
        ),
        (
            self.directory,
            items.TableItems(
                job_testing.TABLE,
                None,
                max_sequence_length=1,
                bypass_longer_episodes=True,
            ),
            'whole episode of 1 steps at most, .* the longest has 7',
        ),
        (
            bad,
            items.TableItems(job_testing.TABLE),
            'no valid episode.* lists 8 invalid episodes',
        ),
    ):
      with self.subTest(message):
        plan = self.plan(
            directory=directory,
            tables=[table],
            episodes_per_task=8,
        )
        for _ in range(2):
          self.assert_fails(convert.JobError, message, plan)
        self.assertFalse(os.path.exists(plan.output.place))
        # The corrected command finds no other plan.
        self.assertEqual(
            _names(self.job_folder(plan)),
            ['quarantine.jsonl'] if directory is bad else [],
        )
        self.convert(
            self.plan(plan_lib.CHECKPOINT, plan.output.place), dry_run=True
        )
    self.convert(plan, allow_empty=True)
    # Its output is there, so the job stays.
    self.assert_fails(convert.JobError, 'no valid episode', plan)
    self.convert(plan, allow_empty=True)
    (table,) = records.read_tables(plan.output.place).values()
    self.assertEqual(records.num_items(table), 0)
    rlds = self.plan(plan_lib.RLDS, self.new(), directory=bad)
    self.assert_fails(convert.JobError, 'there is no valid episode', rlds)

  @pytest.mark.long
  def test_a_damaged_file_is_named_and_the_others_are_done(self):
    folder = self.new('data')
    shutil.copytree(self.directory, folder)
    path = data_sets.files_of(folder)[1]
    with open(path, 'rb') as f:
      whole = f.read()
    os.truncate(path, len(whole) - 5)
    plan = self.plan(directory=folder)
    self.assert_fails(
        convert.JobError,
        rf'1 of 4 tasks have failed(.|\n)*{path} is damaged after 1 whole',
        plan,
    )
    self.assertSameElements(self.receipts_of(plan), [0, 2, 3])
    with open(path, 'wb') as f:
      f.write(whole)
    self.convert(plan)
    self._check(plan)

  def test_data_that_has_changed_is_refused(self):
    folder = self.new('data')
    data_sets.numbered(folder, [3, 4])
    plan = self.plan(directory=folder)
    shutil.rmtree(folder)
    data_sets.numbered(folder, [3, 5, 4])
    self.assert_fails(convert.JobError, 'has changed since the plan', plan)
    # Nothing was done, so a new plan can start.
    again = self.plan(plan_lib.CHECKPOINT, plan.output.place, directory=folder)
    self.convert(again)
    self.assertLen(job_testing.rewards_of(self._content(again)), 2 + 4 + 3)

  def _write_anew(self, folder, base):
    """Writes the numbered episodes in place, with other rewards."""
    episodes = _numbered_episodes()
    for episode in episodes:
      for step in episode['steps']:
        step['reward'] += np.float32(base)
    shutil.rmtree(folder)
    data_sets.write(folder, episodes)

  @parameterized.parameters(plan_lib.CHECKPOINT, plan_lib.RLDS)
  def test_data_that_was_written_anew_in_place_is_not_mixed(self, kind):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    data = {'directory': folder, 'episodes_per_task': 4}
    plan = self.plan(kind, self.new(), **data)
    self.interrupt(plan, 1)
    self._write_anew(folder, 0.5)
    again = self.plan(kind, plan.output.place, **data)
    self.assertEqual(again, plan)  # TFDS records the same of it.
    self.convert(again)
    self.assertIn('1 task is done again: files have changed since.', self.said)
    self._check(plan, base=0.5)

    # What is finished is not what there is now, and the job says so.
    self._write_anew(folder, 0.25)
    self.assert_fails(
        convert.JobError, 'files of 2 of 2 tasks have changed since', plan
    )

  def test_data_that_changes_while_it_is_read(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    plan = self.plan(directory=folder, episodes_per_task=4)
    path = data_sets.files_of(folder)[1]
    add = task_episodes.Measures.add
    times = itertools.count()

    def change(*args):
      os.utime(path, ns=(0, next(times)))
      return add(*args)

    with mock.patch.object(task_episodes.Measures, 'add', change):
      self.assert_fails(
          convert.JobError,
          rf'1 of 2 tasks(.|\n)*{path} has changed while',
          plan,
      )
    self.convert(plan)
    self._check(plan)

  def test_a_job_without_its_files_names_them_and_leaves_nothing(self):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    plan = self.plan(directory=folder)
    for path in data_sets.files_of(folder):
      os.unlink(path)
    self.assert_fails(
        convert.JobError, rf'; 0 are done(.|\n)*{path} is missing', plan
    )
    self.assertFalse(os.path.exists(self.job_folder(plan)))

  @parameterized.parameters(plan_lib.CHECKPOINT, plan_lib.RLDS)
  def test_the_quarantine_lists_exactly_the_bad_episodes(self, kind):
    folder = data_sets.write(self.new('data'), _bad_episodes())
    plan = self.plan(kind, self.new(), directory=folder, episodes_per_task=4)
    summary = self.convert(plan)
    path = os.path.join(self.job_folder(plan), 'quarantine.jsonl')
    with open(path, encoding='utf-8') as f:
      lines = list(map(json.loads, f))
    self.assertEqual([line['episode'] for line in lines], list(_BAD))
    for line, sentence in zip(lines, _BAD.values()):
      self.assertStartsWith(line['rule'], sentence)
      self.assertStartsWith(line['message'], line['rule'])
      self.assertIn(f'episode {line["episode"]},', line['message'])
      self.assertEqual(
          line['file'], data_sets.files_of(folder)[line['episode'] // 2]
      )
      self.assertEqual(line['split'], 'train')
    self.assertEqual([line['step'] for line in lines], [1, 0])
    self.assertIn('discount=1.5', lines[0]['values'])
    self.assertEqual(summary['skipped'], 2)
    self.assertEqual(summary['episodes'], 6)
    self._check(plan, [index for index in _NUMBERS if index not in _BAD])

  @pytest.mark.long
  def test_a_filter_leaves_the_indices_of_bad_episodes_as_they_are(self):
    folder = data_sets.write(self.new('data'), _bad_episodes())
    plan = self.plan(
        directory=folder,
        episodes_per_task=5,
        bindings=[
            'transform_episodes.transforms = [@KeepEpisodes()]',
            'KeepEpisodes.min_length = 3',
        ],
    )
    summary = self.convert(plan)
    # Those of 3, 2 and 3 steps have fewer than 3 transitions.
    self.assertEqual(summary['filtered'], 3)
    skipped = [one['skipped'] for one in self.receipts_of(plan).values()]
    self.assertEqual([bad['episode'] for bad in sum(skipped, [])], [3])
    self._check(plan, [1, 4, 5, 7])  # 3 is invalid.

  @pytest.mark.long
  def test_too_many_bad_episodes_stop_the_job(self):
    folder = data_sets.write(self.new('data'), _bad_episodes())
    plan = self.plan(directory=folder, episodes_per_task=4)
    self.assert_fails(
        tasks.InvalidEpisodesError,
        '2 episodes are invalid, and 1 of 8',
        plan,
        max_invalid_fraction=0.2,
    )
    self.assertFalse(os.path.exists(plan.output.place))
    self.convert(plan, max_invalid_fraction=0.25)
    self.assertTrue(os.path.exists(plan.output.place))

  @parameterized.parameters(1, 2)
  @pytest.mark.long
  def test_bad_episodes_keep_no_other_task_from_being_done(self, num_workers):
    folder = data_sets.write(self.new('data'), _bad_episodes())
    plan = self.plan(directory=folder, episodes_per_task=1)
    self.assert_fails(
        convert.JobError,
        r'2 of 8 tasks have failed; 6 are done\.\n  task 3: .*skip.*'
        r'\n.*Discount must lie.*episode 3, .*\n  task 6: (.|\n)*episode 6, ',
        plan,
        max_invalid_fraction=0.0,
        engine=processes.Processes(2) if num_workers > 1 else None,
    )
    self.assertFalse(os.path.exists(plan.output.place))

  @parameterized.parameters(*job_testing.KINDS)
  @pytest.mark.long
  def test_repaired_episodes_come_as_if_they_had_been_right(self, kind):
    folder = data_sets.write(self.new('data'), _bad_episodes())
    place = self._place(kind)
    plan = self.plan(kind, place, directory=folder)
    self.convert(plan)
    path = os.path.join(self.job_folder(plan), 'quarantine.jsonl')
    shutil.rmtree(folder)
    data_sets.numbered(folder, job_testing.LENGTHS)
    opened = [sources.open_source(sources.make_source(folder))]
    ranges = ranges_lib.of_quarantine(path, opened)
    self.assertEqual(ranges, [[('train', 3, 4), ('train', 6, 7)]])
    repair = self.plan(kind, place, opened=opened, only=(path, ranges))
    # A repair, too, may be interrupted when its items are there.
    with mock.patch.object(
        job_lib.Job, 'write_quarantine', side_effect=_Interrupted
    ), self.assertRaises(_Interrupted):
      self.convert(repair)
    self.convert(repair)
    with _stop_before(0):
      self.convert(repair)
    self.assertIn('nothing to do', self.said[-1])
    at_once = self.plan(
        plan_lib.RLDS if kind == plan_lib.RLDS else plan_lib.CHECKPOINT,
        self.new(),
        directory=folder,
    )
    self.convert(at_once)
    self.assertCountEqual(self._content(repair), self._content(at_once))

  @pytest.mark.long
  def test_a_mixture_by_weights(self):
    other = data_sets.numbered(self.new('other'), [3] * 3)
    opened = [
        sources.open_source(sources.make_source(directory))
        for directory in (self.directory, other)
    ]
    plan = self.plan(
        opened=opened,
        weights=[4.0, 2.0],
        episodes_per_task=1,
    )
    self.assertEqual(plan.num_episodes, 9)
    self.assertEqual(
        [task.source for task in plan.tasks], [0, 1, 0, 0, 1, 0, 0, 1, 0]
    )
    self.convert(plan)
    self.assertEqual(
        job_testing.rewards_of(self._content(plan)),
        sorted(
            job_testing.pairs(enumerate(job_testing.LENGTHS[:6]))
            + job_testing.pairs(enumerate([3] * 3))
        ),
    )
    with self.assertRaisesRegex(ValueError, 'in two sources'):
      self.plan(opened=opened[:1] * 2)


@pytest.mark.long
class ServerTest(_ConvertTestCase):

  def setUp(self):
    super().setUp()
    # How long a server that is gone is waited for.
    self.enter_context(mock.patch.object(server_output, '_TIMEOUT_SECONDS', 2))

  def _plan(self, *servers, **kwargs):
    addresses = [f'localhost:{server.port}' for server in servers]
    return self.plan(plan_lib.SERVER, ','.join(addresses), **kwargs)

  def test_a_server_that_was_started_again_gets_everything_again(self):
    server = self.start_server()
    plan = self._plan(server)
    self.interrupt(plan, 2)
    port = server.port
    server.stop()
    server = self.start_server(port)
    self.convert(plan)
    self.assertIn(
        f'2 tasks are done again: the server at localhost:{port} was started'
        ' again since.',
        self.said,
    )
    self._check(plan)
    # A job that was finished is no longer, if the server lost its items.
    server.stop()
    server = self.start_server(port)
    self.convert(plan)
    self.assertIn('4 tasks are done again', '\n'.join(self.said))
    self._check(plan)

  def test_a_server_that_is_started_again_while_the_job_runs(self):
    server = self.start_server()
    plan = self._plan(server)

    def start_again():
      server.stop()
      self.start_server(server.port)

    with _before_task(2, start_again):
      self.convert(plan)
    self.assertIn('2 tasks are done again', '\n'.join(self.said))
    self._check(plan)

  def test_data_that_was_written_anew_is_refused(self):
    # A table keeps the first item of a key, so the old ones would stay.
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    plan = self._plan(self.start_server(), directory=folder)
    self.convert(plan)
    os.utime(data_sets.files_of(folder)[0], ns=(0, 0))
    self.assert_fails(convert.JobError, 'files of 1 of 4 tasks', plan)
    os.unlink(os.path.join(self.job_folder(plan), 'receipts', '00001.json'))
    self.assert_fails(ValueError, 'hold their items as the data was', plan)

  def test_items_that_were_removed_come_again(self):
    server = self.start_server()
    client = server.localhost_client()
    plan = self._plan(server)
    self.convert(plan)
    content = job_testing.items_in(client)
    client.mutate_priorities(
        job_testing.TABLE, deletes=[key for key, _ in content[:5]]
    )
    self.convert(plan)
    self.assertIn(
        "4 tasks are done again: table 'experience' at"
        f' {plan.output.place} has removed 5 items since.',
        self.said,
    )
    self.assertEqual(job_testing.items_in(client), content)

  def test_a_table_that_is_too_small_is_noticed(self):
    # The first 8 episodes of a file are read, with 16 of its 40 items.
    data = data_sets.numbered(self.new('data'), [3] * 20, per_file=20)
    plan = self._plan(self.start_server(max_size=30), directory=data)
    self.assert_fails(
        convert.JobError, r'is too small: it has removed \d+ items', plan
    )

  def test_what_cannot_work_is_refused_before_it_starts(self):
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, 2.0)
    blocking = self._plan(self.start_server(rate_limiter=limiter))
    whole = items.TableItems(job_testing.TABLE, None)
    small = self._plan(self.start_server(max_size=5), tables=[whole])
    other = self._plan(
        self.start_server(
            signature=job_testing.signature_of(
                os.path.join(job_testing.RECORDED, 'walker')
            )
        )
    )
    missing = self._plan(
        self.start_server(), tables=[items.TableItems('other')]
    )
    for plan, message in (
        (blocking, 'would block'),
        (small, 'too small: its max_size is 5, and there are 8 items'),
        (other, 'does not fit the data:\n  action: the table expects'),
        (missing, "no table 'other'"),
    ):
      with self.subTest(message):
        self.assert_fails(ValueError, message, plan)
        self.assertFalse(os.path.exists(self.job_folder(plan)))

  def _check_shares(self, *servers):
    numbered = list(enumerate(job_testing.LENGTHS))
    for number, server in enumerate(servers):
      found = job_testing.items_in(reverb.Client(f'localhost:{server.port}'))
      self.assertEqual(
          job_testing.rewards_of(found), job_testing.pairs(numbered[number::2])
      )

  def test_of_several_servers_each_gets_its_share_once(self):
    servers = self.start_server(), self.start_server()
    summary = self.convert(self._plan(*servers))
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    self._check_shares(*servers)
    # Another plan of the same data leaves every item where it is.
    self.convert(self._plan(*servers, episodes_per_task=8))
    self._check_shares(*servers)

  def test_a_server_that_is_gone_stops_the_job_which_then_goes_on(self):
    servers = self.start_server(), self.start_server()
    plan = self._plan(*servers)
    port = servers[1].port
    with _before_task(1, servers[1].stop):
      self.assert_fails(
          convert.JobError, f'localhost:{port}', plan, patience=0.0
      )
    self.start_server(port)
    self.convert(plan)
    self.assertIn('was started again since', '\n'.join(self.said))
    self._check_shares(*servers)

  def test_two_servers_must_be_two(self):
    plan = self._plan(*[self.start_server()] * 2)
    self.assert_fails(ValueError, 'addresses of servers must differ', plan)


if __name__ == '__main__':
  absltest.main()
