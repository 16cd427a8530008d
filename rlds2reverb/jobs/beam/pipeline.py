"""The Beam pipeline of a conversion.

Only the numbers of tasks go through it. What they do is in files of the job's
folder, which every worker must reach, as it is in a local run:

    RLDS on disk                      the numbers of the tasks
    episodes, trajectories, replay    a part of the output, and a receipt
    checkpoint, level 1, 2, ...       16 parts to a larger one
    checkpoint                        the larger parts to the whole output

A task that has its receipt is not done again, and a step that is done twice
leaves the same result, so an engine may retry anything on any worker.
"""

import contextlib
import os
from typing import Dict, Iterable, Iterator, Optional, Tuple

import apache_beam as beam

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.jobs import tasks as tasks_lib

# The namespace of the counters of a pipeline.
METRICS = 'rlds2reverb'
_FAILURES = 'failures'
_MESSAGE = '.txt'
_TASKS_PER_ELEMENT = 1000
# The names of the last steps in a pipeline.
_WHOLE_OUTPUT = {
    plan_lib.CHECKPOINT: 'Reverb checkpoint',
    plan_lib.RLDS: 'RLDS on disk again',
    plan_lib.STATISTICS: 'statistics',
}

# The range of tasks that are done: the first, and the one after the last.
_Done = Tuple[int, int]


def build(
    root: beam.Pipeline, plan: plan_lib.Plan, folder: str, max_skipped: int
) -> None:
  """Adds the steps of a conversion to a pipeline.

  Args:
    root: the pipeline.
    plan: the plan, which is in the folder too.
    folder: the folder of the job.
    max_skipped: how many episodes may be invalid for the output to be made.
  """
  count = len(plan.tasks)
  done = (
      root
      # With so few elements, the graph of a pipeline is small for any plan.
      | 'RLDS on disk' >> beam.Create(range(0, count, _TASKS_PER_ELEMENT))
      | 'tasks'
      >> beam.FlatMap(
          lambda first: range(first, min(first + _TASKS_PER_ELEMENT, count))
      )
      # Otherwise one worker would do all tasks of an element.
      | 'to workers' >> beam.Reshuffle()
      | 'episodes, trajectories, replay' >> beam.ParDo(_DoTask(folder))
  )
  name = _WHOLE_OUTPUT.get(plan.output.kind)
  if name is None:
    return  # The servers have the items already.
  for level, groups in enumerate(tasks_lib.output_of(plan).merges(), 1):
    size = len(groups[0])
    done = (
        done
        | f'groups of level {level}'
        >> beam.Map(lambda done, size=size: (done[0] // size, done))
        | f'whole groups of level {level}' >> beam.GroupByKey()
        | f'{name}, level {level}' >> beam.ParDo(_Merge(folder, size))
    )
  _ = (
      done
      | 'one group' >> beam.Map(lambda done: (0, done))
      | 'whole group' >> beam.GroupByKey()
      | name >> beam.ParDo(_Finish(folder, max_skipped))
  )


def take_failures(folder: str) -> Dict[str, str]:
  """Returns the messages of steps that failed for good, and removes them.

  Args:
    folder: the folder of the job.

  Returns:
    The messages, by the names of the steps, such as `task 5`.
  """
  place = os.path.join(folder, _FAILURES)
  messages = {}
  for name in files.names_in(place):
    if name.endswith(_MESSAGE):
      with files.open_text(os.path.join(place, name)) as f:
        messages[name.removesuffix(_MESSAGE)] = f.read()
  files.remove_folder(place)
  return messages


class _Step(beam.DoFn):
  """A step that knows the job.

  When it fails, it leaves a message in the job's folder, because the error that
  an engine shows at the end says little, or comes from another worker.
  """

  def __init__(self, folder: str):
    self._folder = folder
    self._plan: Optional[plan_lib.Plan] = None
    self._output: Optional[outputs.JobOutput] = None

  def setup(self):
    # The step may run in a process of its own.
    quiet.quiet_logs()
    self._plan = plan_lib.read(self._folder)
    self._output = tasks_lib.output_of(self._plan)

  @contextlib.contextmanager
  def _reporting(self, name: str) -> Iterator[None]:
    """Keeps the message of an error until a retry succeeds."""
    path = os.path.join(self._folder, _FAILURES, f'{name}{_MESSAGE}')
    try:
      yield
    except Exception as error:
      files.make_folder(os.path.dirname(path))
      whole.write_text(path, str(error))
      raise
    files.remove(path)


class _DoTask(_Step):
  """Does a task, unless it has a receipt already.

  A task that would fail again, because of its data, leaves its message and is
  passed over. Any other error fails the bundle, which the engine tries again.
  """

  def process(self, number: int) -> Iterable[_Done]:
    receipt = receipts_lib.read_one(self._folder, self._plan.hash, number)
    if receipt is None:
      try:
        with self._reporting(f'task {number}'):
          receipt = self._do(number)
      except (tasks_lib.TaskError, ValueError):
        return
    for name, count in (
        ('episodes', receipt.episodes),
        ('steps', receipt.steps),
        ('items', sum(receipt.items.values())),
        ('skipped', len(receipt.skipped)),
        ('bytes', receipt.num_bytes),
    ):
      beam.metrics.Metrics.counter(METRICS, name).inc(count)
    yield number, number + 1

  def _do(self, number):
    try:
      return tasks_lib.run_task(self._plan, number, self._folder)
    except tasks_lib.TaskError:
      raise  # Its message names the place already.
    except Exception as error:
      where = tasks_lib.name_of(self._plan, number)
      kind = ValueError if isinstance(error, ValueError) else RuntimeError
      raise kind(f'{where}: {error}') from error


class _Merge(_Step):
  """Joins the parts of a group of tasks, if all of them are done."""

  def __init__(self, folder: str, size: int):
    """Creates the step; `size` is the number of tasks of a group."""
    super().__init__(folder)
    self._size = size

  def process(self, numbered: Tuple[int, Iterable[_Done]]) -> Iterable[_Done]:
    index, done = numbered
    numbers = range(len(self._plan.tasks))[
        index * self._size : (index + 1) * self._size
    ]
    if _count(done) < len(numbers):
      return
    with self._reporting(f'merging the tasks {numbers[0]} to {numbers[-1]}'):
      self._output.merge(self._folder, numbers)
    yield numbers.start, numbers.stop


class _Finish(_Step):
  """Makes the whole output, if all tasks are done and few episodes invalid."""

  def __init__(self, folder: str, max_skipped: int):
    super().__init__(folder)
    self._max_skipped = max_skipped

  def process(self, grouped: Tuple[int, Iterable[_Done]]) -> None:
    _, done = grouped
    if _count(done) < len(self._plan.tasks):
      return
    with self._reporting('the whole output'):
      receipts = receipts_lib.read(self._folder, self._plan.hash)
      skipped = sum(len(receipt.skipped) for receipt in receipts.values())
      if skipped > self._max_skipped or self._output.is_finished(
          self._folder, receipts
      ):
        return
      source = self._plan.sources[self._plan.tasks[0].source]
      spec = sources_lib.open_source(source).frame_spec()
      self._output.finish(self._folder, spec, receipts)


def _count(done: Iterable[_Done]) -> int:
  """Returns how many tasks are done, given ranges that may occur twice."""
  return sum(end - begin for begin, end in set(done))
