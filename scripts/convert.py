r"""Converts RLDS data sets to a Reverb checkpoint, a Reverb server, or RLDS.

    rlds2reverb-convert --dataset=d4rl_mujoco_halfcheetah/v2-medium \
        --config=d4rl_mujoco --checkpoint_dir=/data/halfcheetah

The program says what it will do, and does it. If it is interrupted, the same
command goes on, and ends with the same items as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Callable, Iterator, List, Optional, Sequence

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import memory
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.jobs import convert as convert_lib
  from rlds2reverb.jobs import engines
  from rlds2reverb.jobs import job as job_lib
  from rlds2reverb.jobs import plan as plan_lib
  from rlds2reverb.jobs import processes
  from rlds2reverb.jobs import ranges as ranges_lib
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.jobs import tasks as tasks_lib
  from rlds2reverb.trajectories import rules as rules_lib

flags_lib.define_source_flags()
_WEIGHT = flags.DEFINE_multi_float(
    'weight',
    None,
    'One for each --dataset, for a mixture: of each as many episodes as its'
    ' weight says, and no episode twice.',
)
_MIXTURE = flags.DEFINE_string(
    'mixture',
    None,
    'A mixture by its name, or a gin file: its data sets in --data_dir, with'
    ' their configs and weights, in the place of --dataset, --config and'
    ' --weight.',
)
_CHECKPOINT_DIR = flags.DEFINE_string(
    'checkpoint_dir', None, 'A new directory, for a Reverb checkpoint.'
)
_SERVER_ADDRESS = flags.DEFINE_string(
    'server_address',
    None,
    'A running Reverb server, host:port; or several, joined by commas, each of'
    ' which gets its share of the episodes.',
)
_RLDS_DIR = flags.DEFINE_string(
    'rlds_dir', None, 'A new directory, for an RLDS data set.'
)
_STATISTICS_DIR = flags.DEFINE_string(
    'statistics_dir',
    None,
    'A new directory, for the statistics of the fields: statistics.json.',
)
flags_lib.define_table_flags('drop', 'pad', 'tile', 'zero_pad', 'overlap')
_TERMINAL_DISCOUNT = flags.DEFINE_enum(
    'terminal_discount',
    None,
    ['step', 'transition'],
    'Where the discount of a terminal episode is 0; the default is step, and'
    ' trainers need transition.',
)
_NAN = flags.DEFINE_enum(
    'nan',
    None,
    ['report', 'invalid'],
    'Whether NaN makes an episode invalid; the default is report, which does'
    ' not.',
)
_INVALID_EPISODES = flags.DEFINE_enum(
    'invalid_episodes',
    'raise',
    ['raise', 'skip'],
    'Whether the task of an invalid episode fails, or the episode is left out'
    ' and listed in quarantine.jsonl.',
)
_MAX_INVALID_FRACTION = flags.DEFINE_float(
    'max_invalid_fraction',
    1.0,
    'With --invalid_episodes=skip: the job stops if more than this part of all'
    ' episodes is invalid.',
    lower_bound=0.0,
    upper_bound=1.0,
)
_ONLY_QUARANTINED = flags.DEFINE_string(
    'only_quarantined',
    None,
    'A quarantine.jsonl whose episodes alone are converted, after a repair.',
)
_NUM_WORKERS = flags.DEFINE_integer(
    'num_workers',
    None,
    'Processes that work at once. By default as many as the processors and the'
    ' size of the data are worth.',
    lower_bound=1,
)
_RUNNER = flags.DEFINE_string(
    'runner',
    None,
    'What runs the job on Apache Beam: FnApiRunner, FlinkRunner, SparkRunner,'
    " DataflowRunner, PortableRunner. Beam's own options follow as flags, as in"
    ' --direct_num_workers=2; so does --num_workers. By default the job runs'
    ' without Beam.',
)
_DASK_SCHEDULER = flags.DEFINE_string(
    'dask_scheduler',
    None,
    'The scheduler of a Dask cluster whose workers run the job:'
    ' tcp://host:8786.',
)
_TASK_MB = flags.DEFINE_float(
    'task_mb',
    None,
    'About how many megabytes of files a task reads: what is lost, at most, of'
    ' each worker when the job is interrupted. The default is 64, or half of'
    ' the data if that is less, but at least 8.',
    lower_bound=0.0,
    upper_bound=1e9,
)
_JOB_DIR = flags.DEFINE_string(
    'job_dir',
    None,
    'Where the job is kept; by default beside the output, with .job after its'
    ' name, or for a server in ~/.cache/rlds2reverb/jobs.',
)
_DRY_RUN = flags.DEFINE_bool(
    'dry_run', False, 'Say what would be done, and stop.'
)


# How many workers are prepared before it is known how many are of use. If there
# are more, they start later.
_MOST_FORKED = 16


def _output() -> plan_lib.Output:
  outputs = [
      (plan_lib.CHECKPOINT, _CHECKPOINT_DIR.value),
      (plan_lib.SERVER, _SERVER_ADDRESS.value),
      (plan_lib.RLDS, _RLDS_DIR.value),
      (plan_lib.STATISTICS, _STATISTICS_DIR.value),
  ]
  outputs = [(kind, place) for kind, place in outputs if place is not None]
  if len(outputs) != 1:
    raise app.UsageError(
        'One of --checkpoint_dir, --server_address, --rlds_dir and'
        ' --statistics_dir must have a value.'
    )
  ((kind, place),) = outputs
  if kind == plan_lib.SERVER:
    with usage.wrong_usage():
      return plan_lib.Output(kind, place)
  if kind in (plan_lib.RLDS, plan_lib.STATISTICS):
    usage.refuse_ignored(
        [*flags_lib.TABLE_FLAGS, 'terminal_discount'], f'with --{kind}_dir'
    )
  place = files.user_path(place)
  split = 'train' if kind == plan_lib.RLDS else ''
  return plan_lib.Output(kind, place, split)


def _rules(source: sources_lib.Source) -> rules_lib.ConversionRules:
  """Returns the rules of a config, changed by the flags that are there."""
  with usage.wrong_usage():
    return sources_lib.rules_of(
        source, terminal_discount=_TERMINAL_DISCOUNT.value, nan=_NAN.value
    )


def _check_weights(count: int) -> None:
  weights = _WEIGHT.value
  if len(weights) != count or min(weights) <= 0:
    raise app.UsageError(
        '--weight must be there once for each --dataset, with a positive'
        f' number, but has {weights} for {count}.'
    )


def _sources() -> List[sources_lib.Source]:
  if _MIXTURE.value is not None and _WEIGHT.value is not None:
    raise app.UsageError('--mixture has weights. Leave out --weight.')
  sources = flags_lib.sources_from_flags('convert', _MIXTURE.value)
  if _WEIGHT.value is not None:
    _check_weights(len(sources))
  return sources


def _planner(
    sources: List[sources_lib.Source],
) -> Callable[[Optional[float]], plan_lib.Plan]:
  """Returns a function that makes the plan, given the megabytes of a task."""
  if _INVALID_EPISODES.value != 'skip':
    usage.refuse_ignored(
        ['max_invalid_fraction'], 'without --invalid_episodes=skip'
    )
  output = _output()
  rules = {_rules(source) for source in sources}
  if len(rules) > 1:
    raise ValueError(
        'The configs have different ConversionRules:'
        f' {sorted(map(str, rules))}.'
    )
  tables = []
  if output.kind in (plan_lib.CHECKPOINT, plan_lib.SERVER):
    tables = flags_lib.tables_from_flags()
  opened = [sources_lib.open_source(source) for source in sources]
  only = None
  if _ONLY_QUARANTINED.value is not None:
    path = files.user_path(_ONLY_QUARANTINED.value)
    only = path, ranges_lib.of_quarantine(path, opened)
  weights = _WEIGHT.value
  if _MIXTURE.value is not None:
    weights = list(sources_lib.weights_of(opened).values())
  (rule,) = rules
  return lambda task_mb: plan_lib.make_plan(
      opened,
      output,
      tables=tables,
      rules=rule,
      weights=weights,
      only=only,
      task_bytes=None if task_mb is None else int(task_mb * 1e6),
  )


def _distributed(options: Sequence[str]) -> Optional[engines.Engine]:
  """Returns what runs the job on other machines, if the flags ask for that."""
  if _DASK_SCHEDULER.value is not None:
    usage.refuse_ignored(['runner', 'num_workers'], 'with --dask_scheduler')
    with _needing('dask_scheduler', 'Dask', 'dask'):
      from rlds2reverb.jobs import dask_engine  # pylint: disable=g-import-not-at-top
    with usage.wrong_usage():
      return dask_engine.DaskEngine(_DASK_SCHEDULER.value)
  if _RUNNER.value is None:
    return None
  with _needing(f'runner={_RUNNER.value}', 'Apache Beam', 'beam'):
    from rlds2reverb.jobs import beam_engine  # pylint: disable=g-import-not-at-top
  options = [f'--runner={_RUNNER.value}', *options]
  if flags.FLAGS['num_workers'].present:
    options.append(f'--num_workers={_NUM_WORKERS.value}')
  with usage.wrong_usage():
    engine = beam_engine.BeamEngine(options)
  for name in engine.unknown:
    print(f'--{name} is no flag of this program or of Beam; it goes to Beam.')
  return engine


@contextlib.contextmanager
def _needing(flag: str, package: str, extra: str) -> Iterator[None]:
  """Says what to install if a module is missing."""
  try:
    yield
  except ModuleNotFoundError as e:
    raise app.UsageError(
        f'--{flag} needs {package}, and there is no {e.name}. Run'
        f" `pip install '.[{extra}]'` in a clone of rlds2reverb."
    ) from e


def _say_few_tasks(
    num_workers: int, planner: Callable[[Optional[float]], plan_lib.Plan]
) -> None:
  """Says that some workers have nothing to do, and what would change that."""
  plan = planner(_TASK_MB.value)
  megabytes = sum(data.num_bytes for data in plan.data_sets) / 1e6
  # A few tasks for each worker, so that all of them end at about the same time.
  task_mb = f'{megabytes / num_workers / 4:.1g}'
  more = len(planner(float(task_mb)).tasks)
  advice = 'the data cannot be divided further'
  if more > len(plan.tasks):
    advice = f'--task_mb={task_mb} makes {more}'
  tasks = checks.counted(len(plan.tasks), 'task')
  print(f'{tasks} for {num_workers} workers; {advice}')


def _local(
    plan: plan_lib.Plan,
    planner: Callable[[Optional[float]], plan_lib.Plan],
    engine: processes.Processes,
) -> engines.Engine:
  """Returns what runs the job on this machine."""
  count, reason = processes.choose_num_workers(plan)
  if _NUM_WORKERS.value is None:
    print(f'workers: {count}; {reason}')
  else:
    count = _NUM_WORKERS.value
    if count > len(plan.tasks):
      _say_few_tasks(count, planner)
  # This process needs no start. But its memory grows with its tasks, and if it
  # were killed for the lack of some, nothing could say so.
  is_short = len(plan.tasks) <= processes.TASKS_PER_PROCESS
  if count == 1 and is_short and not memory.limits():
    return engines.Here()
  engine.num_workers = min(count, len(plan.tasks))
  return engine


def main(*beam_options: str):
  # TensorFlow is imported, and its threads are not started yet.
  count = _NUM_WORKERS.value or len(os.sched_getaffinity(0))
  engine = processes.Processes(min(count, _MOST_FORKED), fork=True)
  try:
    return _convert(beam_options, engine)
  finally:
    engine.stop()


def _convert(beam_options: Sequence[str], local: processes.Processes) -> int:
  """Does the job; returns the exit code."""
  sources = _sources()
  engine = _distributed(beam_options)
  planner = _planner(sources)
  plan = planner(_TASK_MB.value)
  folder = _JOB_DIR.value and files.user_path(_JOB_DIR.value)
  with usage.wrong_usage():
    job_lib.Job(plan, folder).check_same_plan()
  skips = _INVALID_EPISODES.value == 'skip'
  memory.keep_flat()  # All that stays is loaded now.
  try:
    with usage.StopSignals():
      convert_lib.convert(
          plan,
          folder,
          dry_run=_DRY_RUN.value,
          max_invalid_fraction=_MAX_INVALID_FRACTION.value if skips else 0.0,
          allow_empty=flags.FLAGS.allow_empty,
          engine=engine or _local(plan, planner, local),
      )
  except KeyboardInterrupt:
    print(
        'Interrupted. The tasks that are done are kept: the same command goes'
        ' on.',
        file=sys.stderr,
    )
    return 130
  return 0


if __name__ == '__main__':
  usage.run(
      main,
      lambda: (convert_lib.JobError, tasks_lib.TaskError),
      takes_more=lambda: _RUNNER.value is not None,
  )
