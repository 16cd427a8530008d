"""Tasks on Apache Beam, on whatever runs Beam.

It needs the extra: `pip install '.[beam]'` in a clone. Only the numbers of
tasks go through a pipeline. What they do is in files of the job's folder, which
every worker must reach, so an engine may retry anything on any worker.
"""

import contextlib
import os
import threading
from typing import Any, Dict, Iterator, Sequence

from absl import logging
import apache_beam as beam
from apache_beam.options import pipeline_options
from apache_beam.runners import runner as runner_lib

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import engines
from rlds2reverb.jobs import progress as progress_lib
from rlds2reverb.jobs import quiet
from rlds2reverb.jobs import tasks as tasks_lib

# Otherwise every worker logs all that it receives and sends.
_DEFAULTS = ('--default_sdk_harness_log_level=WARNING',)
# Stands for the number of a task: the parts are joined.
_JOIN = -1
_SECONDS_PER_LOOK = 5.0


class BeamEngine(engines.Engine):
  """Does tasks as elements of a Beam pipeline, and joins in another one.

      engine = BeamEngine(['--runner=FlinkRunner', '--flink_master=host:8081'])
      convert.convert(plan, engine=engine)

  The folder of the job, the data and the output must be where every worker of
  the engine finds them under the same path, and rlds2reverb must be installed
  there.
  """

  def __init__(self, options: Sequence[str]):
    """Creates the engine.

    Args:
      options: Beam's pipeline options, as on a command line. `--runner` names
        the engine. For this machine, name `FnApiRunner`: `DirectRunner` first
        looks for an engine of another name.

    Raises:
      ValueError: if there is no such runner.
    """
    self._options = pipeline_options.PipelineOptions([*_DEFAULTS, *options])
    standard = self._options.view_as(pipeline_options.StandardOptions)
    try:
      runner_lib.create_runner(standard.runner)
    except (AttributeError, ImportError, ValueError) as e:
      names = ', '.join(standard.KNOWN_RUNNER_NAMES)
      raise ValueError(
          f'There is no runner {standard.runner}. Beam has {names}, or takes'
          ' the path of a class.'
      ) from e

  def map(self, attempt, numbers, report):
    numbers = list(numbers)
    with _watching(attempt.job, numbers, report):
      messages = self._run(attempt, numbers)
    done = attempt.job.receipts()
    for number in numbers:
      yield number, done.get(number) or tasks_lib.TaskError(
          messages.get(number, 'The pipeline has ended before it was done.')
      )

  def join(self, attempt):
    for message in self._run(attempt, [_JOIN]).values():
      raise tasks_lib.TaskError(message)

  def _run(self, attempt: Any, numbers: Sequence[int]) -> Dict[int, str]:
    """Runs a pipeline; returns the messages of failures, by their numbers."""
    failures = attempt.job.path('failures')
    files.remove_folder(failures)  # Those of an earlier start.
    pipeline = beam.Pipeline(options=self._options)
    _ = (
        pipeline
        | 'numbers' >> beam.Create(numbers)
        # Otherwise one worker would do all of them.
        | 'to workers' >> beam.Reshuffle()
        | 'episodes, trajectories, replay' >> beam.ParDo(_Do(attempt, failures))
    )
    problem = ''
    try:
      result = pipeline.run()
      try:
        state = result.wait_until_finish()
      except KeyboardInterrupt:
        result.cancel()
        raise
      if state != runner_lib.PipelineState.DONE:
        problem = f'it is {state}'
    # Every engine has error types of its own.
    except Exception as error:  # pylint: disable=broad-exception-caught
      logging.debug('The pipeline has failed:', exc_info=True)
      problem = str(error).strip().rpartition('\n')[-1]
    messages = {}
    for name in files.names_in(failures):
      if not name.startswith('.'):  # A lock.
        with files.open_text(os.path.join(failures, name)) as f:
          messages[int(name)] = f.read()
    files.remove_folder(failures)
    if problem and not messages:
      raise tasks_lib.TaskError(
          f'The Beam pipeline has failed: {problem}. The tasks that are done'
          ' are kept: start the same command again.'
      )
    return messages


class _Do(beam.DoFn):
  """Does the tasks whose numbers it gets.

  What would fail again, because of the data, leaves its message and is passed
  over. An error of a disk or a server fails the bundle, too, which the engine
  tries again. It would show little of the message, or that of another worker.
  """

  def __init__(self, attempt: Any, failures: str):
    self._attempt = attempt
    self._failures = failures

  def setup(self):
    quiet.quiet_logs()  # It may run in a process of its own.

  def process(self, number: int) -> None:
    path = os.path.join(self._failures, str(number))
    if number == _JOIN:
      outcome = self._attempt.outcome_of(self._attempt.join)
    else:
      outcome = self._attempt(number, lambda progress: None)
    if not isinstance(outcome, Exception):
      files.remove(path)
      return
    files.make_folder(self._failures)
    whole.write_text(path, str(outcome))
    if isinstance(outcome, OSError):
      raise outcome


@contextlib.contextmanager
def _watching(job, numbers, report) -> Iterator[None]:
  """Reports the receipts that appear while the body runs."""
  ended = threading.Event()

  def look():
    left = set(numbers)
    # A wrong receipt is found again at the end, and raises an error there.
    with contextlib.suppress(Exception):
      while not ended.wait(_SECONDS_PER_LOOK):
        for number in left.intersection(job.done()):
          left.remove(number)
          report(number, progress_lib.of_receipt(job.receipt(number)))

  thread = threading.Thread(target=look, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
