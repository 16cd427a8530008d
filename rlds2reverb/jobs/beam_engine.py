"""An engine for Apache Beam, with any runner.

It needs the extra `beam`: `pip install '.[beam]'` in a clone. Only task numbers
go through a pipeline. The job's folder describes the tasks, and every worker
must reach it, so a runner may retry any task on any worker.

    this process -- pipeline process -- workers, if the runner starts them here

The pipeline runs in a separate process group, because Beam's local runners
cannot be stopped: they wait indefinitely for a worker process that was killed,
and have threads that delay the end of the program. The pipeline process kills
its group when this process exits or closes the pipe between them.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NoReturn

from absl import logging
import apache_beam as beam
from apache_beam.options import pipeline_options
from apache_beam.runners import runner as runner_lib

from rlds2reverb.datasets import files
from rlds2reverb.jobs import processes
from rlds2reverb.jobs import tasks as tasks_lib
from rlds2reverb.jobs import usage

# Otherwise every worker logs all messages.
_DEFAULTS = ('--default_sdk_harness_log_level=WARNING',)
# Replaces the number of a task, to join the outputs of all tasks.
_JOIN = -1
_POLL_SECONDS = 5.0
# Imports print unless they are silenced first.
_PIPELINE_PROGRAM = """
from absl import logging
from rlds2reverb.jobs import usage
logging.use_absl_handler()
usage.quiet_logs()
from rlds2reverb.jobs import beam_engine
beam_engine.run_pipeline()
"""
# Time limit for canceling a pipeline on other machines.
_SECONDS_TO_CANCEL = 5.0
# The name of the threads in which `FnApiRunner` waits for its workers.
_WORKER_THREAD = 'run_worker'
# Time limit for `FnApiRunner` to return after its first worker has exited.
_SECONDS_TO_RETURN = 20.0


class BeamEngine(processes.Engine):
  """Runs tasks as elements of a Beam pipeline, and joins in another one.

      engine = BeamEngine(['--runner=FlinkRunner', '--flink_master=host:8081'])
      convert.convert(plan, engine=engine)

  All workers need rlds2reverb, and access to the folder of the job, the data
  and the output under the same paths.
  """

  def __init__(self, options: Sequence[str]):
    """Creates the engine.

    Args:
      options: Beam's pipeline options, as on a command line, with `--runner`.
        For this machine, use `FnApiRunner`: `DirectRunner` first tries others.

    Raises:
      ValueError: if the runner does not exist.
    """
    self._options = [*_DEFAULTS, *options]
    self._process: subprocess.Popen | None = None
    standard = pipeline_options.PipelineOptions(self._options).view_as(
        pipeline_options.StandardOptions
    )
    try:
      runner_lib.create_runner(standard.runner)
    except (AttributeError, ImportError, ValueError) as e:
      names = ', '.join(standard.KNOWN_RUNNER_NAMES)
      raise ValueError(
          f'There is no runner {standard.runner}. Beam has {names}, or takes'
          ' the path of a class.'
      ) from e

  def map(self, job_runner, numbers, on_progress):
    numbers = list(numbers)
    with _watching(job_runner.job, numbers, on_progress):
      messages = self._run(job_runner, numbers)
    receipts = job_runner.job.receipts()
    for number in numbers:
      yield number, receipts.get(number) or tasks_lib.TaskError(
          messages.get(number, 'The pipeline has ended before it was done.')
      )

  def stop(self):
    self._end_process()

  def join(self, job_runner):
    for message in self._run(job_runner, [_JOIN]).values():
      raise tasks_lib.TaskError(message)

  def _run(self, job_runner: Any, numbers: Sequence[int]) -> dict[int, str]:
    """Runs a pipeline; returns the messages of failed tasks, by number."""
    failures = job_runner.job.path('failures')
    files.remove_folder(failures)  # Of an earlier run.
    problem = self._run_process((self._options, job_runner, failures, numbers))
    messages = {}
    for name in files.names_in(failures):
      if not name.startswith('.'):  # Not a lock.
        with files.open_text(os.path.join(failures, name)) as f:
          messages[int(name)] = f.read()
    files.remove_folder(failures)
    if problem and not messages:
      raise tasks_lib.TaskError(
          f'The Beam pipeline has failed: {problem}. The tasks that are done'
          ' are kept: start the same command again.'
      )
    return messages

  def _run_process(self, arguments: Any) -> str:
    """Runs a pipeline process; returns why it failed, or an empty string."""
    self._process = subprocess.Popen(
        [sys.executable, '-c', _PIPELINE_PROGRAM],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert self._process.stdin and self._process.stdout
    try:
      with contextlib.suppress(BrokenPipeError):
        pickle.dump(arguments, self._process.stdin)
        self._process.stdin.flush()
      with self._process.stdout as stream:
        message = stream.read()
    finally:
      code = self._end_process()
    try:
      return json.loads(message)
    except ValueError:
      return f'its process has ended with exit code {code}'

  def _end_process(self) -> int | None:
    """Ends the pipeline process and its workers; returns its exit code."""
    process, self._process = self._process, None
    if process is None:
      return None
    # `StopSignals` interrupts this thread repeatedly.
    thread = threading.Thread(target=_end_group, args=(process,))
    thread.start()
    thread.join()
    return process.returncode


def _end_group(process: Any) -> None:
  """Ends a pipeline process and its process group, within six seconds."""
  with contextlib.suppress(BrokenPipeError):
    process.stdin.close()
  # Ends the process immediately if it does not watch its stdin yet.
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGTERM)
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_SECONDS_TO_CANCEL + 1)
  # The workers are in the group even if the pipeline process is dead.
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()


def run_pipeline() -> NoReturn:
  """Runs the pipeline that stdin describes, as the pipeline process.

  Writes the reason of a failure to stdout, as JSON.
  """
  signal.signal(signal.SIGTERM, lambda *_: None)  # See `end_with_parent`.
  report = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)  # Beam and the tasks may print.
  results: list[Any] = []
  lock = threading.Lock()

  def end(problem: str) -> NoReturn:
    with lock:  # Until the end of this process.
      try:
        json.dump(problem, report)
        report.flush()
      finally:  # Also if the parent has exited.
        os.killpg(0, signal.SIGKILL)
      raise AssertionError('This process has been killed.')

  def end_with_parent():
    sys.stdin.buffer.read()
    canceling = threading.Thread(
        target=lambda: [result.cancel() for result in results], daemon=True
    )
    canceling.start()
    canceling.join(_SECONDS_TO_CANCEL)
    end('it was stopped')

  def end_with_worker(args):
    logging.debug('A thread of Beam has failed: %s', args)
    if getattr(args.thread, 'name', '') == _WORKER_THREAD:
      end(f'a worker has exited ({args.exc_value})')

  options, job_runner, failures, numbers = pickle.load(sys.stdin.buffer)
  threading.excepthook = end_with_worker
  for target in end_with_parent, lambda: _wait_for_missing_worker(end):
    threading.Thread(target=target, daemon=True).start()
  end(_run(options, job_runner, failures, numbers, results))


def _run(
    options: Sequence[str],
    job_runner: Any,
    failures: str,
    numbers: Sequence[int],
    results: list[Any],
) -> str:
  """Runs a pipeline, and adds its result to `results` while it runs.

  Returns:
    The reason of a failure, or an empty string.
  """
  pipeline = beam.Pipeline(options=pipeline_options.PipelineOptions(options))
  _ = (
      pipeline
      | 'numbers' >> beam.Create(numbers)
      # Otherwise one worker would run all tasks.
      | 'to workers' >> beam.Reshuffle()
      | 'episodes, trajectories, replay'
      >> beam.ParDo(_Do(job_runner, failures))
  )
  try:
    results.append(pipeline.run())
    state = results[0].wait_until_finish()
    results.clear()
    return '' if state == runner_lib.PipelineState.DONE else f'it is {state}'
  # Every runner has its own error types.
  except Exception as error:
    logging.debug('The pipeline has failed:', exc_info=True)
    last_line = str(error).strip().rpartition('\n')[-1]
    return last_line.rstrip('.') or type(error).__name__


def _wait_for_missing_worker(end: Any) -> None:
  """Calls `end` if a worker has exited long before the pipeline."""
  workers, missing_since = set(), None
  while True:
    time.sleep(1)
    running = {t for t in threading.enumerate() if t.name == _WORKER_THREAD}
    workers |= running
    if workers - running:
      missing_since = missing_since or time.monotonic()
      if time.monotonic() - missing_since > _SECONDS_TO_RETURN:
        end('a worker has exited')


class _Do(beam.DoFn):
  """Runs tasks by their numbers.

  A failed task writes a file with its message, as runners truncate messages or
  show another worker's. A disk or server error also fails the bundle, as some
  runners retry bundles.
  """

  def __init__(self, job_runner: Any, failures: str):
    self._job_runner = job_runner
    self._failures = failures

  def setup(self):
    usage.quiet_logs()  # Workers may be separate processes.

  def process(self, number: int) -> None:
    path = os.path.join(self._failures, str(number))
    if number == _JOIN:
      outcome = self._job_runner.run(self._job_runner.join)
    else:
      outcome = self._job_runner(number, lambda progress: None)
    if not isinstance(outcome, Exception):
      files.remove(path)
      return
    files.make_folder(self._failures)
    files.write_text(path, str(outcome))
    if isinstance(outcome, OSError):
      raise outcome


@contextlib.contextmanager
def _watching(job, numbers, on_progress) -> Iterator[None]:
  """Reports new receipts while the body runs."""
  ended = threading.Event()

  def poll():
    unfinished = set(numbers)
    # A damaged receipt raises an error when all are read at the end.
    with contextlib.suppress(Exception):
      while not ended.wait(_POLL_SECONDS):
        for number in unfinished.intersection(job.list_done()):
          unfinished.remove(number)
          on_progress(number, tasks_lib.get_progress(job.receipt(number)))

  thread = threading.Thread(target=poll, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
