"""Does the tasks of a plan on Apache Beam."""

import contextlib
import threading
from typing import Dict, Iterable, Iterator, Sequence

from absl import logging
import apache_beam as beam
from apache_beam.options import pipeline_options
from apache_beam.runners import runner as runner_lib

from rlds2reverb.episodes import checks
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.jobs import running
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs.beam import pipeline as pipeline_lib

# Otherwise every worker logs all that it receives and sends.
_DEFAULTS = ('--default_sdk_harness_log_level=WARNING',)
_SECONDS_PER_LOOK = 5.0


class BeamRunner(running.Runner):
  """Does tasks as steps of a Beam pipeline.

      runner = BeamRunner(['--runner=FlinkRunner', '--flink_master=host:8081'])
      convert.convert(plan, runner=runner)

  The folder of the job, the data and the output must be where every worker of
  the engine finds them under the same path, and rlds2reverb must be installed
  there.

  Attributes:
    counters: what the last pipeline has counted: `episodes`, `steps`, `items`,
      `skipped` and `bytes`, of the tasks that are done. An engine that tries a
      bundle again may count it again.
  """

  def __init__(self, options: Sequence[str], other_names: Iterable[str] = ()):
    """Creates the runner.

    Args:
      options: Beam's pipeline options, as on a command line. `--runner` names
        the engine. For this machine, name `FnApiRunner`: `DirectRunner` first
        looks for an engine of another name.
      other_names: the names of the program's own options, which may be
        suggested for an option that Beam does not know.

    Raises:
      ValueError: if there is no such runner, or an option looks misspelt. Any
        other unknown option is passed to the engine.
    """
    self.counters: Dict[str, int] = {}
    self._options = pipeline_options.PipelineOptions([*_DEFAULTS, *options])
    _check_runner(self._options.view_as(pipeline_options.StandardOptions))
    every = self._options.get_all_options(retain_unknown_options=True)
    known = self._options.get_all_options().keys()
    for name in sorted(every.keys() - known):
      hint = checks.did_you_mean(name, [*known, *other_names], prefix='--')
      if hint:
        raise ValueError(f'There is no option --{name}.{hint}')

  def run_tasks(self, plan, folder, numbers, *, listener, max_skipped):
    with _watching(plan, folder, numbers, listener):
      failures = self._run(plan, folder, max_skipped)
    for number in numbers:
      receipt = receipts_lib.read_one(folder, plan.hash, number)
      if receipt is not None:
        listener.on_done(number, receipt)
      elif not failures:
        raise tasks_lib.TaskError(
            f'The pipeline has ended, but task {number} is not done. Start the'
            ' same command again.'
        )
    return failures

  def finish(self, plan, folder, spec, receipts):
    self._run(plan, folder, plan.num_episodes)

  def _run(
      self, plan: plan_lib.Plan, folder: str, max_skipped: int
  ) -> Dict[int, str]:
    """Runs the pipeline; returns the messages of the tasks that have failed.

    Raises:
      TaskError: if anything besides a task has failed.
    """
    pipeline_lib.take_failures(folder)  # Drops messages of an earlier start.
    pipeline = beam.Pipeline(options=self._options)
    pipeline_lib.build(pipeline, plan, folder, max_skipped)
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
      self.counters = _counters(result)
    # Every engine has error types of its own.
    except Exception as error:  # pylint: disable=broad-exception-caught
      logging.debug('The pipeline has failed:', exc_info=True)
      problem = str(error).strip().rpartition('\n')[-1]
    failures = pipeline_lib.take_failures(folder)
    of_tasks = {
        int(name.removeprefix('task ')): message
        for name, message in failures.items()
        if name.startswith('task ')
    }
    if problem and not of_tasks:
      problem = '; '.join(failures.values()) or problem
      raise tasks_lib.TaskError(
          f'The Beam pipeline has failed: {problem}. The tasks that are done'
          ' are kept: start the same command again.'
      )
    return of_tasks


@contextlib.contextmanager
def _watching(plan, folder, numbers, listener) -> Iterator[None]:
  """Tells a listener of new receipts while the pipeline runs."""
  left = set(numbers)
  ended = threading.Event()

  def look():
    # A wrong receipt is found again at the end, and raises an error there.
    with contextlib.suppress(Exception):
      while not ended.wait(_SECONDS_PER_LOOK):
        for number in left.intersection(receipts_lib.numbers(folder)):
          receipt = receipts_lib.read_one(folder, plan.hash, number)
          if receipt is not None:
            left.remove(number)
            listener.on_done(number, receipt)

  thread = threading.Thread(target=look, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()


def _check_runner(options: pipeline_options.StandardOptions) -> None:
  """Raises a ValueError if there is no runner of the name that is given."""
  try:
    runner_lib.create_runner(options.runner)
  except (AttributeError, ImportError, ValueError) as e:
    names = options.KNOWN_RUNNER_NAMES
    raise ValueError(
        f'There is no runner {options.runner}.'
        f'{checks.did_you_mean(options.runner, names)} Beam has'
        f' {", ".join(names)}, or takes the path of a class.'
    ) from e


def _counters(result: runner_lib.PipelineResult) -> Dict[str, int]:
  of_ours = beam.metrics.MetricsFilter().with_namespace(pipeline_lib.METRICS)
  counters: Dict[str, int] = {}
  for found in result.metrics().query(of_ours)['counters']:
    name = found.key.metric.name
    # Some engines have no number where nothing was counted.
    counters[name] = counters.get(name, 0) + (found.result or 0)
  return counters
