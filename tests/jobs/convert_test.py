"""Tests of complete jobs in this process, with every kind of output."""

import errno
import itertools
import json
import os
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest
import reverb
from reverb.cc import schema_pb2
import tensorflow as tf

from rlds2reverb.datasets import loading
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import tasks
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from tests.jobs import data_sets
from tests.jobs import job_testing

_NUMBERS = list(range(len(job_testing.LENGTHS)))
# Episode 3 breaks a rule at its step 1, and episode 6 has no first step.
_BAD = {3: 'Discount must lie in [0, 1].', 6: 'An episode must begin'}
_FOLDERS = plan_lib.CHECKPOINT, plan_lib.RLDS


def _episodes(base=0.0, bad=()):
  """Returns the numbered episodes, of other rewards or with the bad ones."""
  episodes = [
      data_sets.episode(index, length)
      for index, length in enumerate(job_testing.LENGTHS)
  ]
  for step in itertools.chain(*(episode['steps'] for episode in episodes)):
    step['reward'] += np.float32(base)
  if bad:
    episodes[3]['steps'][1]['discount'] = 1.5
    episodes[6]['steps'][0]['is_first'] = False
  return episodes


class _Interrupted(BaseException):
  """Stops a job where nothing expects it."""


def _before_task(count, action):
  """Lets something happen when `count` tasks are done."""
  run_task = tasks.run_task
  calls = itertools.count()

  def run(*args):
    if next(calls) == count:
      action()
    return run_task(*args)

  return mock.patch.object(tasks, 'run_task', run)


def _stop_before(count):
  """Lets only `count` tasks be done."""
  return _before_task(count, mock.Mock(side_effect=_Interrupted))


class _ConvertTestCase(job_testing.JobTestCase):

  def _content(self, plan):
    """Returns everything that an output holds."""
    place = plan.output.place
    if plan.output.kind == plan_lib.CHECKPOINT:
      return job_testing.items_of(place)
    if plan.output.kind == plan_lib.SERVER:
      return job_testing.items_in(reverb.Client(place))
    return [
        episode['steps']['reward'].tolist()
        for episode in loading.load_episodes(place).as_numpy_iterator()
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

  def _bad(self):
    return data_sets.write(self.new('data'), _episodes(bad=_BAD))


class ConvertTest(_ConvertTestCase):

  @parameterized.parameters(*job_testing.KINDS)
  @pytest.mark.few(1)
  def test_interrupted_job_resumes_to_the_same_output(self, kind):
    plan = self.plan(kind, self._place(kind))
    self.assertLen(plan.tasks, 4)
    self.interrupt(plan, 1)
    self.interrupt(plan, 2)
    self.assertLen(self.receipts_of(plan), 3)
    # The job is done, and its process is killed while it ends.
    for name in 'write_quarantine', 'remove_parts':
      with mock.patch.object(job_lib.Job, name, side_effect=_Interrupted):
        with self.assertRaises(_Interrupted):
          self.convert(plan)
    with _stop_before(0):
      summary = self.convert(plan)
    self.assertIn('tasks: 4, done already: 4 (8 of 8 episodes)', self.said[0])
    steps = sum(job_testing.LENGTHS)
    self.assertEqual((summary['episodes'], summary['steps']), (8, steps))
    statistics = summary['statistics']
    self.assertEqual(
        statistics['length'], {'count': 8, 'sum': steps - 8, 'min': 1, 'max': 6}
    )
    self.assertEqual(statistics['return']['max'], sum(range(700, 706)))
    # All are terminal, and their last discounts are 1.
    self.assertEqual(statistics['bootstrapped_terminals'], 8)
    content = self._content(plan)
    self._check(plan)
    if plan.tables:
      # Neither the way in which the work is cut, nor the interruptions, nor
      # the kind of output changes a key.
      other = self.plan(episodes_per_task=5)
      self.assertLen(other.tasks, 2)
      here = processes.InProcessEngine()
      backwards = (
          lambda runner, numbers, on_progress: processes.InProcessEngine.map(
              here, runner, reversed(numbers), on_progress
          )
      )
      with mock.patch.object(here, 'map', backwards):
        self.convert(other, engine=here)
      self.assertEqual(self._content(other), content)
      # Items come in the order of the data.
      dates = [
          schema_pb2.PrioritizedItem.FromString(item).inserted_at
          for batch in records.read_records(other.output.place, records.ITEMS)
          for item in batch
      ]
      dates = [date.ToNanoseconds() for date in dates]
      self.assertEqual(dates, sorted(set(dates)))
      # An output that was removed is made again.
      shutil.rmtree(other.output.place)
      self.convert(other)
      self.assertIn('2 tasks are repeated', '\n'.join(self.said))
      self.assertEqual(self._content(other), content)
    self.convert(plan)
    self.assertIn('nothing to do', self.said[-1])
    self.assertEqual(
        sorted(os.listdir(self.job_folder(plan))),
        ['plan.json', 'quarantine.jsonl', 'receipts', 'summary.json'],
    )

  def test_a_dry_run_reads_no_episode_and_writes_nothing(self):
    folder = self.new('data')
    shutil.copytree(self.directory, folder)
    for path in data_sets.files_of(folder):
      with open(path, 'wb') as f:
        f.truncate(5_000_000)  # Zeros, which are no record.
    info = "StepMapping.policy_info = {'as_it_was': 'reward'}"
    plan = self.plan(directory=folder, bindings=[info])
    self.assertEqual(self.convert(plan, dry_run=True), {})
    self.assertFalse(os.path.exists(plan.output.place))
    self.assertFalse(os.path.exists(self.job_folder(plan)))
    (text,) = self.said
    for line in (
        'episodes: 8; files: 4, 20.0 MB; number of steps unknown',
        'observation: float32 (2,)',
        'policy_info/as_it_was: float32 ()',
        'table experience: items of 2 frames, every 1, at an end drop',
        f'to a new Reverb checkpoint {plan.output.place}',
        'tasks: 4, done already: 0',
    ):
      self.assertIn(line, text)

  def test_another_job_in_the_same_place_is_refused(self):
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
    message = '^Another process is writing .*output'

    def run_second():
      # A job with a separate folder still has the same output.
      for folder in None, self.new('job'):
        self.assert_fails(BlockingIOError, message, plan, folder)

    with _before_task(0, run_second):
      self.convert(plan)
    self._check(plan, range(4))

  def test_places_that_cannot_be_written_are_refused(self):
    folder, file = self.new(), self.create_tempfile(content='mine').full_path
    os.mkdir(folder)
    open(os.path.join(folder, 'mine'), 'wb').close()
    for place, error, message in (
        (folder, FileExistsError, 'not the output of this'),
        (file, FileExistsError, f'{file} is a file'),
        ('/proc/output', OSError, '/proc/output.job cannot be written'),
    ):
      self.assert_fails(error, message, self.plan(place=place))
      self.assertFalse(os.path.exists(f'{place}.job'))
    self.assertEqual(os.listdir(folder), ['mine'])
    with self.assertRaisesRegex(ValueError, r'must lie in \[0, 1\]'):
      self.convert(self.plan(), max_invalid_fraction=1.5)

  @pytest.mark.long
  def test_an_output_without_items_is_an_error(self):
    bad = _episodes()
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
            "Table 'experience' would have no items, and samplers would block"
            ' indefinitely: an item has 50 steps, and the longest episode has'
            ' 7.',
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
    plan = self.plan(directory=folder)
    path, *others = data_sets.files_of(folder)
    with open(path, 'rb') as f:
      whole = f.read()
    for other in others:
      os.rename(other, f'{other}.away')
    os.truncate(path, len(whole) - 5)
    message = rf'4 of 4 tasks (.|\n)*{path} is damaged after 1 complete(.|\n)*'
    self.assert_fails(
        convert.JobError, f'{message}{others[0]} is missing', plan
    )
    for other in others:
      os.rename(f'{other}.away', other)
    with open(path, 'wb') as f:
      f.write(whole)

    add, times = tasks.FrameCounter.add, itertools.count()

    def change(*args):
      os.utime(path, ns=(0, next(times)))
      return add(*args)

    with mock.patch.object(tasks.FrameCounter, 'add', change):
      message = rf'1 of 4 tasks(.|\n)*{path} has changed while'
      self.assert_fails(convert.JobError, message, plan)
    self.assertSameElements(self.receipts_of(plan), [1, 2, 3])
    self.convert(plan)
    self._check(plan)

    plan = self.plan(directory=folder)
    shutil.rmtree(folder)
    data_sets.numbered(folder, [3, 5, 4])
    self.assert_fails(convert.JobError, 'has changed since the plan', plan)

  @parameterized.parameters(*_FOLDERS)
  @pytest.mark.few(1)
  def test_data_rewritten_in_place_is_not_mixed(self, kind):
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    data = {'directory': folder, 'episodes_per_task': 4}
    plan = self.plan(kind, self.new(), **data)

    def write_anew(base):
      shutil.rmtree(folder)
      data_sets.write(folder, _episodes(base))

    self.interrupt(plan, 1)
    write_anew(0.5)
    again = self.plan(kind, plan.output.place, **data)
    self.assertEqual(again, plan)  # TFDS records the same of it.
    self.convert(again)
    self.assertIn('1 task is repeated: files have changed since.', self.said)
    self._check(plan, base=0.5)
    # The finished tasks do not match the current data, and the job reports it.
    write_anew(0.25)
    message = 'files of 2 of 2 tasks have changed since'
    self.assert_fails(convert.JobError, message, plan)

  def test_data_that_changes_without_a_new_size_and_time(self):
    folder = self.new('data')
    data_sets.write(folder, _episodes())
    paths = data_sets.files_of(folder)
    stats = [os.stat(path) for path in paths]

    def write_anew(base):
      shutil.rmtree(folder)
      data_sets.write(folder, _episodes(base))
      for path, stat in zip(paths, stats):
        self.assertEqual(os.stat(path).st_size, stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    plan = self.plan(directory=folder)
    self.convert(plan)
    with self.assertRaisesRegex(ValueError, 'were done without checksums'):
      self.convert(plan, compare_checksums=True)
    plan = self.plan(directory=folder)
    self.convert(plan, compare_checksums=True)
    self.convert(plan, compare_checksums=True)
    self.assertIn('nothing to do', self.said[-1])
    write_anew(0.5)
    self.convert(plan)
    self.assertIn('nothing to do', self.said[-1])
    num_tasks = len(plan.tasks)
    self.assert_fails(
        convert.JobError,
        f'files of {num_tasks} of {num_tasks} tasks have changed',
        plan,
        compare_checksums=True,
    )

  def test_bad_episodes_are_listed_and_left_out(self):
    folder = self._bad()
    plan = self.plan(directory=folder, episodes_per_task=4)
    message = (
        r'2 of 2 tasks have failed; 0 are done\.\n  task 0: .*skip.*'
        r'\n.*Discount must lie.*episode 3, .*\n  task 1: (.|\n)*episode 6, '
    )
    no_bad = {'max_invalid_fraction': 0.0}
    self.assert_fails(convert.JobError, message, plan, **no_bad)
    message = '2 episodes are invalid, but .*=0.2 allows at most 1 of 8'
    few_bad = {'max_invalid_fraction': 0.2}
    self.assert_fails(tasks.InvalidEpisodesError, message, plan, **few_bad)
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
    self._check(plan, [index for index in _NUMBERS if index not in _BAD])

    # A filter does not change the indices of episodes.
    plan = self.plan(
        directory=folder,
        episodes_per_task=5,
        bindings=[
            'transform_episodes.transforms = [@KeepEpisodes()]',
            'KeepEpisodes.min_length = 3',
        ],
    )
    summary = self.convert(plan)
    # The episodes of 3, 2 and 3 steps have fewer than 3 transitions.
    self.assertEqual(summary['filtered'], 3)
    skipped = [one['skipped'] for one in self.receipts_of(plan).values()]
    self.assertEqual([bad['episode'] for bad in sum(skipped, [])], [3])
    self._check(plan, [1, 4, 5, 7])

  @parameterized.parameters(0, 2)
  def test_a_fraction_of_less_than_one_episode_allows_none(self, num_workers):
    plan = self.plan(directory=self._bad(), episodes_per_task=4)
    engine = processes.Processes(num_workers) if num_workers else None
    message = (
        r'1 episode is invalid, but max_invalid_fraction=0\.1 allows at most 0'
        r' of 8\. To skip more, pass a larger --max_invalid_fraction, with'
        r' --invalid_episodes=skip\. .*quarantine\.jsonl lists the invalid'
    )
    self.assert_fails(
        tasks.InvalidEpisodesError,
        message,
        plan,
        max_invalid_fraction=0.1,
        engine=engine,
    )
    summary = self.convert(plan, max_invalid_fraction=0.25)
    self.assertEqual(summary['skipped'], 2)

  def test_a_fraction_allows_exactly_as_many_episodes(self):
    # In floating point, 0.58 * 50 is less than 29.
    episodes = [data_sets.episode(index, 3) for index in range(50)]
    for episode in episodes[:29]:
      episode['steps'][0]['is_first'] = False
    plan = self.plan(
        directory=data_sets.write(self.new('data'), episodes),
        episodes_per_task=50,
    )
    message = '29 episodes are invalid, .*=0.57 allows at most 28 of 50'
    self.assert_fails(
        tasks.InvalidEpisodesError, message, plan, max_invalid_fraction=0.57
    )
    summary = self.convert(plan, max_invalid_fraction=0.58)
    self.assertEqual((summary['skipped'], summary['episodes']), (29, 21))

  @parameterized.product(kind=job_testing.KINDS, num_workers=(0, 2))
  @pytest.mark.few(1)
  def test_removed_steps_are_counted(self, kind, num_workers):
    """Counts of a job that is interrupted, has bad episodes and filters."""
    # The action of step `t` of episode `i` is `i - t`.
    removed = dict.fromkeys(('DropNoOps', 'FrameSkip', 'KeepEpisodes'), 0)
    left = 0
    for index, length in enumerate(job_testing.LENGTHS):
      steps = [t for t in range(length) if t != index or t == length - 1]
      removed['DropNoOps'] += length - len(steps)
      skipped = [t for t in steps[::2] if t != length - 1] + [length - 1]
      removed['FrameSkip'] += len(steps) - len(skipped)
      if len(skipped) - 1 < 2:
        removed['KeepEpisodes'] += len(skipped)
      elif index != 3:
        left += len(skipped)
    self.assertTrue(all(removed.values()))
    plan = self.plan(
        kind,
        self._place(kind),
        directory=data_sets.write(
            self.new('data'), _episodes(bad=True), per_file=2
        ),
        bindings=[
            'transform_episodes.transforms = [@DropNoOps(), @FrameSkip(),'
            ' @KeepEpisodes()]',
            'FrameSkip.skip = 2',
            'KeepEpisodes.min_length = 2',
        ],
    )
    self.interrupt(plan, 2)
    kwargs = {}
    if num_workers:
      kwargs['engine'] = processes.Processes(num_workers)
    summary = self.convert(plan, **kwargs)
    self.assertEqual(summary['statistics']['removed_steps'], removed)
    self.assertEqual((summary['steps'], summary['skipped']), (left, 1))
    for name, count in removed.items():
      self.assertRegex(self.said[-1], rf'steps removed by {name} +{count}\n')

  @parameterized.parameters(*job_testing.KINDS)
  @pytest.mark.few(1)
  def test_repaired_episodes_are_added_to_the_output(self, kind):
    folder = self._bad()
    place = self._place(kind)
    # Into RLDS, there are tasks without a valid episode.
    count = 1 if kind == plan_lib.RLDS else 8
    plan = self.plan(kind, place, directory=folder, episodes_per_task=count)
    self.convert(plan)
    path = os.path.join(self.job_folder(plan), 'quarantine.jsonl')
    shutil.rmtree(folder)
    data_sets.numbered(folder, job_testing.LENGTHS)
    opened = [sources.open_source(sources.make_source(folder))]
    ranges = plan_lib.read_quarantine(path, opened)
    self.assertEqual(ranges, [[('train', 3, 4), ('train', 6, 7)]])
    repair = self.plan(kind, place, opened=opened, only=(path, ranges))
    # A repair may also be interrupted after its items were inserted.
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
        episodes_per_task=8,
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
    plan = self.plan(opened=opened, weights=[4.0, 2.0], episodes_per_task=1)
    self.assertEqual(plan.num_episodes, 9)
    self.assertEqual(
        [task.source for task in plan.tasks], [0, 1, 0, 0, 1, 0, 0, 1, 0]
    )
    self.convert(plan)
    self.assertIn('\n  9 episodes by their weights\n', self.said[0])
    self.assertEqual(
        job_testing.rewards_of(self._content(plan)),
        sorted(
            job_testing.pairs(enumerate(job_testing.LENGTHS[:6]))
            + job_testing.pairs(enumerate([3] * 3))
        ),
    )
    with self.assertRaisesRegex(ValueError, 'in two sources'):
      self.plan(opened=opened[:1] * 2)
    pixels = os.path.join(job_testing.RECORDED, 'cartpole_pixels')
    opened[1] = sources.open_source(sources.make_source(pixels))
    message = 'has other frames than numbered'
    self.assert_fails(ValueError, message, self.plan(opened=opened))

  def test_errors_are_classified_and_reported(self):
    job = job_lib.Job(self.plan())
    job_runner, place = tasks.JobRunner(job), job.plan.output.place
    for error, kind, message in (
        (MemoryError('8 GiB'), tasks.TaskError, 'not enough memory: 8 GiB'),
        (TypeError('Of no kind.'), tasks.TaskError, 'TypeError: Of no kind.'),
        (FileNotFoundError('x'), tasks.TaskError, 'x'),
        (OSError('No space left.'), OSError, 'No space left.'),
        (BlockingIOError('Busy.'), ConnectionError, 'Busy.'),
        (
            OSError(errno.ENOSPC, 'Full', '/elsewhere/x'),
            tasks.CommonError,
            '/elsewhere/x cannot be written: No space left on device.',
        ),
        (
            PermissionError(errno.EACCES, 'Denied', job.part(3)),
            tasks.CommonError,
            f'{job.folder} cannot be written: Permission denied.',
        ),
        # A file of the data.
        (PermissionError(errno.EACCES, 'Denied', '/data'), OSError, '/data'),
        # The name of its folder begins with the path of the output.
        (
            PermissionError(errno.EACCES, 'Denied', f'{place}_raw/x'),
            OSError,
            f"Denied: '{place}_raw/x'",
        ),
        (
            tf.errors.PermissionDeniedError(
                None, None, f'{job.folder}_raw/x; Permission denied'
            ),
            tasks.TaskError,
            f'PermissionDeniedError: {job.folder}_raw/x; Permission denied',
        ),
        # The output itself, and files in it.
        *(
            (
                PermissionError(errno.EACCES, 'Denied', path),
                tasks.CommonError,
                f'{job.folder} cannot be written: Permission denied.',
            )
            for path in (place, f'{place}/x', job.folder)
        ),
        (
            tf.errors.ResourceExhaustedError(
                None, None, f'{job.part(3)}/x; No space left on device'
            ),
            tasks.CommonError,
            f'{job.folder} cannot be written: No space left on device.',
        ),
        # Of memory.
        (
            tf.errors.ResourceExhaustedError(
                None, None, 'OOM; when allocating'
            ),
            tasks.TaskError,
            'OOM',
        ),
        (tasks.InvalidEpisodesError('2'), tasks.InvalidEpisodesError, '2'),
    ):
      actual = job_runner.run(mock.Mock(side_effect=error))
      self.assertIs(type(actual), kind)
      self.assertIn(message, str(actual))

  def test_errors_of_an_output_at_a_url(self):
    place = 'gs://bucket/out'
    job = mock.Mock(folder=f'{place}.job')
    job.plan.output.place = place
    for path, is_output in (
        (place, True),
        (f'{place}/x', True),
        (f'{job.folder}/parts/1', True),
        (f'{place}_raw/x', False),
        ('gs://bucket/other/x', False),
    ):
      error = tf.errors.PermissionDeniedError(
          None, None, f'{path}; Permission denied'
      )
      actual = tasks.find_output_problem(error, job, place)
      expected = f'{place} cannot be written: Permission denied.'
      self.assertStartsWith(actual, expected if is_output else '')
      self.assertEqual(bool(actual), is_output)


@pytest.mark.long
class ServerTest(_ConvertTestCase):

  def setUp(self):
    super().setUp()
    # The timeout for a server that does not respond.
    self.enter_context(mock.patch.object(outputs, '_SERVER_TIMEOUT_SECONDS', 2))

  def _plan(self, *servers, **kwargs):
    addresses = [f'localhost:{server.port}' for server in servers]
    return self.plan(plan_lib.SERVER, ','.join(addresses), **kwargs)

  def test_a_server_that_was_started_again_gets_everything_again(self):
    server = self.start_server()
    plan = self._plan(server)

    servers = [server]
    waits = []

    def stop():
      servers.pop().stop()

    def wait(seconds):
      waits.append(seconds)
      if len(waits) == 4:
        servers.append(self.start_server(server.port))

    self.interrupt(plan, 2)
    stop()
    servers.append(self.start_server(server.port))
    # While the job runs, too, which waits for it.
    with _before_task(3, stop), mock.patch.object(convert.time, 'sleep', wait):
      self.convert(plan)
    message = (
        f'tasks are repeated: the server at localhost:{server.port} was'
        ' started again since.'
    )
    self.assertIn(f'2 {message}', self.said)
    self.assertIn(f'3 {message}', self.said)
    self._check(plan)
    # As if the folder of the first job had been removed.
    again = self.convert(plan, folder=self.new('job'))
    self.assertEqual(again['there_before'], 26)
    self.assertIn('A server keeps existing items', self.said[-1])

  def test_removed_items_are_restored_and_stale_items_are_deleted(self):
    # A table keeps the first item of a key, so the old ones would stay.
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    server = self.start_server()
    client = server.localhost_client()
    plan = self._plan(server, directory=folder)
    self.convert(plan)
    content = job_testing.items_in(client)
    client.mutate_priorities(
        job_testing.TABLE, deletes=[key for key, _ in content[:5]]
    )
    self.convert(plan)
    message = (
        "4 tasks are repeated: table 'experience' at"
        f' {plan.output.place} has removed 5 items since.'
    )
    self.assertIn(message, self.said)
    self.assertEqual(job_testing.items_in(client), content)
    os.utime(data_sets.files_of(folder)[0], ns=(0, 0))
    self.assert_fails(convert.JobError, 'files of 1 of 4 tasks', plan)
    os.unlink(os.path.join(self.job_folder(plan), 'receipts', '00001.json'))
    self.assert_fails(ValueError, 'hold their items as the data was', plan)

  def test_unsuitable_servers_are_refused_before_the_job_starts(self):
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, 2.0)
    whole = items.TableItems(job_testing.TABLE, None)
    blocking = self._plan(
        self.start_server(rate_limiter=limiter), tables=[whole]
    )
    small = self._plan(self.start_server(max_size=5), tables=[whole])
    walker = os.path.join(job_testing.RECORDED, 'walker')
    signature = job_testing.signature_of(walker)
    other = self._plan(self.start_server(signature=signature))
    server = self.start_server()
    missing = self._plan(server, tables=[items.TableItems('other')])
    for plan, message in (
        (blocking, 'would block'),
        (small, 'too small: its max_size is 5, and there are 8 items'),
        (other, 'does not fit the data:\n  action: the table expects'),
        (missing, "no table 'other'"),
        (self._plan(server, server), 'addresses of servers must differ'),
    ):
      self.assert_fails(ValueError, message, plan)
      self.assertFalse(os.path.exists(self.job_folder(plan)))
    # The first 8 episodes of a file are read, with 16 of its 40 items.
    data = data_sets.numbered(self.new('data'), [3] * 20, per_file=20)
    plan = self._plan(self.start_server(max_size=30), directory=data)
    message = r'is too small: it has removed \d+ items'
    self.assert_fails(convert.JobError, message, plan)

  def test_each_server_receives_its_share_once(self):
    servers = self.start_server(), self.start_server()

    def check_shares():
      numbered = list(enumerate(job_testing.LENGTHS))
      for number, server in enumerate(servers):
        client = reverb.Client(f'localhost:{server.port}')
        actual = job_testing.rewards_of(job_testing.items_in(client))
        self.assertEqual(actual, job_testing.pairs(numbered[number::2]))

    summary = self.convert(self._plan(*servers))
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    check_shares()
    # Another plan of the same data does not move items between servers, and a
    # job that failed because a server stopped can be resumed.
    plan = self._plan(*servers, episodes_per_task=4)
    port = servers[1].port
    with _before_task(1, servers[1].stop):
      message = f'localhost:{port}'
      self.assert_fails(convert.JobError, message, plan, retry_timeout=0.0)
    self.start_server(port)
    self.convert(plan)
    self.assertIn('was started again since', '\n'.join(self.said))
    check_shares()


if __name__ == '__main__':
  absltest.main()
