"""Tests of plans: how the work is cut, stored and compared."""

import json
import os
import pickle
import tempfile

from absl.testing import absltest

from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import job
from rlds2reverb.jobs import plan
from rlds2reverb.jobs import sources
from rlds2reverb.replay import items
from rlds2reverb.trajectories import options as options_lib
from tests.jobs import data_sets

_TABLE = items.TableItems('experience')
_OUTPUT = plan.Output(plan.CHECKPOINT, '/data/output')


class PlanTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    # Files of 3, 3 and 2 episodes, of the same length.
    cls.directory = data_sets.numbered(
        os.path.join(folder, 'data'), [4] * 8, per_file=3
    )
    cls.other = data_sets.numbered(
        os.path.join(folder, 'other'), [4] * 5, per_file=5
    )

  def _make(self, episodes_per_task, directories=None, split='train', **kwargs):
    opened = [
        sources.open_source(sources.make_source(directory, split))
        for directory in directories or [self.directory]
    ]
    size = opened[0].num_bytes / opened[0].num_episodes
    kwargs.setdefault('tables', [_TABLE])
    kwargs.setdefault('output', _OUTPUT)
    return plan.make_plan(
        opened, task_bytes=int(size * episodes_per_task) + 1, **kwargs
    )

  def test_episodes_are_divided_into_tasks(self):
    both = [self.directory, self.other]
    apart = 'train[5:]+train[1:3]'
    for size, directories, split, expected in (
        (2, None, 'train', [['0:1'], ['1:3'], ['3:4'], ['4:6'], ['6:8']]),
        (6, None, 'train', [['0:6'], ['6:8']]),
        (100, None, 'train', [['0:8']]),
        (100, None, apart, [['5:8', '1:3']]),
        (100, both, 'train', [['0:8'], ['0:5']]),
    ):
      new_plan = self._make(size, directories, split)
      self.assertEqual(
          [list(map(str, task.ranges)) for task in new_plan.tasks],
          [[f'train[{each}]' for each in task] for task in expected],
      )
      sources_of = {task.source for task in new_plan.tasks}
      self.assertLen(sources_of, len(directories or [0]))

  def test_weight_that_rounds_to_no_episode_logs_warning(self):
    both = [self.directory, self.other]
    # The 5 episodes of weight 1 allow 0.4 of the 8 episodes of weight 0.08.
    with self.assertLogs(level='WARNING') as logged:
      new_plan = self._make(100, both, weights=[0.08, 1.0])
    self.assertEqual({task.source for task in new_plan.tasks}, {1})
    self.assertEqual(new_plan.num_episodes, 5)
    self.assertIn('gets none of its 8 episodes', logged.output[0])
    self.assertIn('a share of 0.4 episodes', logged.output[0])
    self.assertIn('The 5 episodes of', logged.output[0])
    with self.assertNoLogs(level='WARNING'):
      self._make(100, both, weights=[0.2, 1.0])

  def test_json_and_differences(self):
    new_plan = self._make(2)
    again = plan.from_json(json.loads(new_plan.to_json()))
    self.assertEqual((again, again.hash), (new_plan, new_plan.hash))
    self.assertEqual(again.table_items, [_TABLE])
    other = self._make(2, rules=options_lib.ConversionRules(nan='invalid'))
    self.assertEqual(other.conversion_rules.nan, 'invalid')
    for changed, expected in (
        (again, []),
        (other, ["rules/nan: 'report' before, 'invalid' now"]),
        (self._make(8), ['number of tasks (--task_mb): 5 before, 1 now']),
    ):
      self.assertEqual(job.find_differences(new_plan, changed), expected)

  def test_a_worker_reads_the_plan_from_the_folder(self):
    planned_job = job.Job(self._make(2), self.create_tempdir().full_path)
    with self.assertRaisesRegex(ValueError, 'does not find the plan in'):
      pickle.loads(pickle.dumps(planned_job))
    planned_job.begin()
    moved = pickle.loads(pickle.dumps(planned_job))
    self.assertEqual(
        (moved.plan, moved.folder), (planned_job.plan, planned_job.folder)
    )
    complete = {
        'input_state': None,
        **dict.fromkeys(('episodes', 'steps', 'num_bytes', 'filtered'), 0),
        'seconds': 0.5,
        **dict.fromkeys(('statistics', 'items', 'output'), {}),
        'skipped': [],
    }
    for task, hash_ in (
        (0, planned_job.hash),
        (12, planned_job.hash),
        (3, 'another'),
    ):
      moved.write_receipt({'task': task, 'plan': hash_, **complete})
    self.assertSameElements(moved.receipts(), [0, 12])
    moved.remove_receipt(0)
    self.assertSameElements(moved.receipts(), [12])

  def test_identity_depends_on_the_data_only(self):
    new_plan = self._make(2)
    other = self._make(
        3,
        split='train[2:]',
        output=plan.Output(plan.SERVER, 'localhost:1'),
        tables=[items.TableItems('experience', windows_lib.Windows(5))],
    )
    self.assertNotEqual(other.hash, new_plan.hash)
    self.assertEqual(
        other.identity(other.tasks[0]), new_plan.identity(new_plan.tasks[0])
    )
    other = self._make(2, [self.other])
    self.assertNotEqual(
        other.identity(other.tasks[0]), new_plan.identity(new_plan.tasks[0])
    )

  def test_invalid_plans_raise(self):
    crossing = items.TableItems('t', windows_lib.Windows(2, end='cross'))
    for message, arguments in (
        ('cross episodes', {'tables': [crossing]}),
        ('one stream', {'rules': options_lib.ConversionRules('tf_agents')}),
        ('needs a table', {'tables': []}),
        ('has no tables', {'output': plan.Output(plan.RLDS, '/out', 'train')}),
        ('is a function', {'tables': [items.TableItems('t', priority=len)]}),
        ('a weight for each of the 1', {'weights': [1.0, 2.0]}),
        ('above 0', {'weights': [0.0]}),
    ):
      with self.subTest(message):
        with self.assertRaisesRegex(ValueError, message):
          self._make(2, **arguments)


if __name__ == '__main__':
  absltest.main()
