r"""Converts RLDS data sets to a Reverb checkpoint, a Reverb server, or RLDS.

    rlds2reverb-convert --dataset=d4rl_mujoco_halfcheetah/v2-medium \
        --config=d4rl_mujoco --checkpoint_dir=/data/halfcheetah

The program prints a description of the job, and runs it. After an interruption,
the same command resumes the job, with the same output as without interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import sys

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.jobs import convert as convert_lib
  from rlds2reverb.jobs import job as job_lib
  from rlds2reverb.jobs import mixtures
  from rlds2reverb.jobs import plan as plan_lib
  from rlds2reverb.jobs import processes
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.jobs import tasks as tasks_lib

flags_lib.define_source_flags()
flags.DEFINE_string(
    'mixture',
    None,
    'The name of a mixture, or a gin file: data sets in --data_dir with their'
    ' configs and weights, instead of --dataset, --config and --weight.',
)
flags.DEFINE_string(
    'checkpoint_dir', None, 'A new directory for a Reverb checkpoint.'
)
flags.DEFINE_string(
    'server_address',
    None,
    'A running Reverb server, host:port; or several, joined by commas, which'
    ' share the episodes.',
)
flags.DEFINE_string('rlds_dir', None, 'A new directory for an RLDS data set.')
flags.DEFINE_string(
    'statistics_dir',
    None,
    'A new directory for the statistics of the fields: statistics.json.',
)
flags.DEFINE_string(
    'only_quarantined',
    None,
    'A quarantine.jsonl: only its episodes are converted, after a repair.',
)
flags.DEFINE_string(
    'runner',
    None,
    'The Apache Beam runner: FnApiRunner, FlinkRunner, SparkRunner,'
    " DataflowRunner or PortableRunner. Beam's options follow as flags, as in"
    ' --direct_num_workers=2, and it gets --num_workers. By default the job'
    ' runs without Beam.',
)
flags.DEFINE_string(
    'dask_scheduler',
    None,
    'The scheduler of a Dask cluster that runs the job: tcp://host:8786.',
)
flags_lib.define_file_format('rlds_file_format', ' in --rlds_dir')
flags_lib.define_table_flags('drop', 'pad', 'tile', 'zero_pad', 'overlap')
flags_lib.define_rule_flags('terminal_discount', 'nan')
flags.DEFINE_multi_float(
    'weight',
    None,
    'A weight for each --dataset, for a mixture: each gives episodes in'
    ' proportion to its weight, and none twice.',
)
flags.DEFINE_enum(
    'invalid_episodes',
    'raise',
    ['raise', 'skip'],
    'Whether the task of an invalid episode fails, or the episode is skipped'
    ' and listed in quarantine.jsonl.',
)
flags.DEFINE_float(
    'max_invalid_fraction',
    1.0,
    'With --invalid_episodes=skip: the job stops if more than this fraction of'
    ' all episodes is invalid.',
    lower_bound=0.0,
    upper_bound=1.0,
)
flags.DEFINE_integer(
    'num_workers',
    None,
    'The number of worker processes. By default it depends on the processors'
    ' and the size of the data.',
    lower_bound=1,
)
flags.DEFINE_float(
    'task_mb',
    None,
    'Approximate megabytes of files per task, which an interruption may make'
    ' each worker repeat. The default is 64, or half of the data if that is'
    ' less, but at least 8.',
    lower_bound=0.0,
    upper_bound=1e9,
)
flags.DEFINE_string(
    'job_dir',
    None,
    'The folder of the job, by default next to the output, with .job after its'
    ' name, or for a server in ~/.cache/rlds2reverb/jobs.',
)
flags.DEFINE_bool('dry_run', False, 'Whether to only describe the job.')
flags.DEFINE_bool(
    'compare_checksums',
    False,
    'Whether to compare the contents of input files with those of finished'
    ' tasks. By default only their sizes and modification times are compared,'
    ' which some tools preserve. Every start reads all files once more.',
)
FLAGS = flags.FLAGS


def _output() -> plan_lib.Output:
  """Returns the output that the flags describe."""
  places = {
      plan_lib.CHECKPOINT: FLAGS.checkpoint_dir,
      plan_lib.SERVER: FLAGS.server_address,
      plan_lib.RLDS: FLAGS.rlds_dir,
      plan_lib.STATISTICS: FLAGS.statistics_dir,
  }
  chosen = [kind for kind, place in places.items() if place is not None]
  if len(chosen) != 1:
    raise app.UsageError(
        'One of --checkpoint_dir, --server_address, --rlds_dir and'
        ' --statistics_dir must have a value.'
    )
  (kind,) = chosen
  if kind == plan_lib.SERVER:
    usage.refuse_ignored(['rlds_file_format'], 'without --rlds_dir')
    with usage.wrong_usage():
      return plan_lib.Output(kind, places[kind])
  if kind in (plan_lib.RLDS, plan_lib.STATISTICS):
    usage.refuse_ignored(
        [*flags_lib.TABLE_FLAGS, 'terminal_discount'], f'with --{kind}_dir'
    )
  if kind != plan_lib.RLDS:
    usage.refuse_ignored(['rlds_file_format'], 'without --rlds_dir')
    return plan_lib.Output(kind, files.user_path(places[kind]))
  return plan_lib.Output(
      kind, files.user_path(places[kind]), 'train', FLAGS.rlds_file_format
  )


def _plan(sources: list[sources_lib.Source]) -> plan_lib.Plan:
  """Returns the plan that the flags describe."""
  if FLAGS.invalid_episodes != 'skip':
    usage.refuse_ignored(
        ['max_invalid_fraction'], 'without --invalid_episodes=skip'
    )
  output = _output()
  rules = {flags_lib.rules_from_flags(source) for source in sources}
  if len(rules) > 1:
    raise ValueError(
        'The configs have different ConversionRules:'
        f' {sorted(map(str, rules))}.'
    )
  has_tables = output.kind in (plan_lib.CHECKPOINT, plan_lib.SERVER)
  tables = flags_lib.tables_from_flags() if has_tables else []
  opened = [sources_lib.open_source(source) for source in sources]
  only, weights = None, FLAGS.weight
  if FLAGS.only_quarantined is not None:
    path = files.user_path(FLAGS.only_quarantined)
    only = path, plan_lib.read_quarantine(path, opened)
  if FLAGS.mixture is not None:
    weights = list(mixtures.compute_weights(opened).values())
  return plan_lib.make_plan(
      opened,
      output,
      tables=tables,
      rules=rules.pop(),
      weights=weights,
      only=only,
      task_bytes=None if FLAGS.task_mb is None else int(FLAGS.task_mb * 1e6),
  )


def _distributed(options: Sequence[str]) -> processes.Engine | None:
  """Returns the engine that the flags select, or None for this machine."""
  if FLAGS.dask_scheduler is not None:
    usage.refuse_ignored(['runner', 'num_workers'], 'with --dask_scheduler')
  try:
    with usage.wrong_usage():
      if FLAGS.dask_scheduler is not None:
        from rlds2reverb.jobs import dask_engine

        return dask_engine.DaskEngine(FLAGS.dask_scheduler)
      if FLAGS.runner is not None:
        from rlds2reverb.jobs import beam_engine

        options = [f'--runner={FLAGS.runner}', *options]
        if FLAGS['num_workers'].present:
          options.append(f'--num_workers={FLAGS.num_workers}')
        return beam_engine.BeamEngine(options)
  except ModuleNotFoundError as e:
    needs, extra = f'--runner={FLAGS.runner} needs Apache Beam', 'beam'
    if FLAGS.dask_scheduler is not None:
      needs, extra = '--dask_scheduler needs Dask', 'dask'
    raise app.UsageError(
        f'{needs}, but {e.name} is not installed. Run'
        f" `pip install '.[{extra}]'` in a clone of rlds2reverb."
    ) from e
  return None


def _local(
    plan: plan_lib.Plan, engine: processes.Processes
) -> processes.Engine:
  """Returns the engine for a job on this machine."""
  num_bytes = sum(data_set.num_bytes for data_set in plan.data_sets)
  fastest = processes.choose_num_workers(num_bytes, len(plan.tasks))
  count = min(FLAGS.num_workers or fastest, len(plan.tasks))
  print(f'workers: {count}')
  if count == 1 and len(plan.tasks) <= processes.TASKS_PER_WORKER:
    return processes.InProcessEngine()
  engine.num_workers = count
  return engine


def main(*beam_options: str):
  # TensorFlow is imported, but has not started threads yet, so this process can
  # still be forked. The number of workers is set later.
  engine = processes.Processes(1, fork=True)
  try:
    return _convert(beam_options, engine)
  finally:
    engine.stop()


def _convert(beam_options: Sequence[str], local: processes.Processes) -> int:
  """Runs the job; returns the exit code."""
  if FLAGS.mixture is not None and FLAGS.weight is not None:
    raise app.UsageError('--mixture has weights. Remove --weight.')
  sources = flags_lib.sources_from_flags('convert', FLAGS.mixture)
  weights, count = FLAGS.weight, len(sources)
  if weights is not None and (len(weights) != count or min(weights) <= 0):
    raise app.UsageError(
        '--weight must be passed once for each --dataset, and be positive, but'
        f' is {weights} for {checks.counted(count, "data set")}.'
    )
  engine = _distributed(beam_options)
  plan = _plan(sources)
  folder = FLAGS.job_dir and files.user_path(FLAGS.job_dir)
  # `convert` checks this, too. Here another plan is a usage error, exit code 2.
  with usage.wrong_usage():
    job_lib.Job(plan, folder).check_same_plan()
  skips = FLAGS.invalid_episodes == 'skip'
  try:
    # `usage.run` has one, too. With this one, an error that C++ makes of a
    # signal is a KeyboardInterrupt here already.
    with usage.StopSignals():
      convert_lib.convert(
          plan,
          folder,
          dry_run=FLAGS.dry_run,
          max_invalid_fraction=FLAGS.max_invalid_fraction if skips else 0.0,
          allow_empty=FLAGS.allow_empty,
          compare_checksums=FLAGS.compare_checksums,
          engine=engine or _local(plan, local),
          print_fn=functools.partial(print, flush=True),
      )
  except KeyboardInterrupt:
    print(
        'Interrupted. Finished tasks are kept. Run the same command again to'
        ' resume.',
        file=sys.stderr,
    )
    return 130
  return 0


if __name__ == '__main__':
  usage.run(
      main,
      lambda: (convert_lib.JobError, tasks_lib.TaskError),
      takes_more=lambda: FLAGS.runner is not None,
  )
