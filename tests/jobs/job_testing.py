"""Runs jobs on small data sets of several files, and reads their outputs."""

from collections.abc import Sequence
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from absl.testing import parameterized
import numpy as np
import reverb
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import sources
from rlds2reverb.replay import items
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import serve
from rlds2reverb.trajectories import specs
from tests.jobs import data_sets
from tests.scripts import programs

TABLE = 'experience'
LENGTHS = (3, 4, 2, 6, 5, 4, 3, 7)
KINDS = (plan_lib.CHECKPOINT, plan_lib.SERVER, plan_lib.RLDS)


def pairs(indices_and_lengths) -> list[list[float]]:
  """Returns the rewards of all pairs of frames of numbered episodes."""
  return [
      [100 * index + step, 100 * index + step + 1]
      for index, length in indices_and_lengths
      for step in range(length - 1)
  ]


RECORDED = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'recorded',
)
ALL_PAIRS = pairs(enumerate(LENGTHS))


def signature_of(directory: str) -> Any:
  """Returns the table signature for the episodes of a directory."""
  episodes = sources.open_source(sources.make_source(directory)).read()
  return tensor_spec.add_outer_dim(specs.create_trajectory_data_spec(episodes))


class JobTestCase(parameterized.TestCase, tf.test.TestCase):
  """Runs jobs in temporary folders.

  Attributes:
    directory: the directory of a data set of 8 episodes in 4 files.
  """

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls.directory = data_sets.numbered(
        os.path.join(folder, 'numbered'), LENGTHS
    )

  def new(self, name: str = 'output') -> str:
    return os.path.join(self.create_tempdir().full_path, name)

  def start_server(
      self,
      port: int | None = None,
      max_size: int = 1000,
      rate_limiter: Any = None,
      signature: Any = None,
      max_times_sampled: int = 0,
  ) -> reverb.Server:
    """Starts a server with a table for the numbered episodes."""
    server = reverb.Server(
        [
            reverb.Table(
                TABLE,
                sampler=reverb.selectors.Fifo(),
                remover=reverb.selectors.Fifo(),
                max_size=max_size,
                max_times_sampled=max_times_sampled,
                rate_limiter=rate_limiter or reverb.rate_limiters.MinSize(1),
                signature=signature or signature_of(self.directory),
            )
        ],
        port,
    )
    self.addCleanup(server.stop)
    return server

  def plan(
      self,
      kind: str = plan_lib.CHECKPOINT,
      place: str | None = None,
      *,
      episodes_per_task: int = 2,
      **kwargs: Any,
  ) -> plan_lib.Plan:
    """Returns a plan of small tasks, by default for all numbered episodes."""
    place = place or self.new()
    opened = kwargs.pop('opened', None) or [
        sources.open_source(
            sources.make_source(
                kwargs.pop('directory', self.directory),
                kwargs.pop('split', 'train'),
                bindings=kwargs.pop('bindings', ()),
            )
        )
    ]
    if kind in (plan_lib.CHECKPOINT, plan_lib.SERVER):
      kwargs.setdefault('tables', [items.TableItems(TABLE)])
    size = opened[0].num_bytes / opened[0].num_episodes
    return plan_lib.make_plan(
        opened,
        plan_lib.Output(kind, place, 'train' if kind == plan_lib.RLDS else ''),
        task_bytes=int(size * episodes_per_task) + 1,
        **kwargs,
    )

  def convert(self, plan: plan_lib.Plan, folder: Any = None, **kwargs) -> Any:
    """Runs a plan; returns the summary, and stores the output in `said`."""
    self.said = []
    folder = folder or self.job_folder(plan)
    return convert.convert(plan, folder, print_fn=self.said.append, **kwargs)

  def assert_fails(self, error: Any, message: str, *args: Any, **kwargs: Any):
    """Asserts that `convert` raises an error with a message."""
    with self.assertRaisesRegex(error, message):
      self.convert(*args, **kwargs)

  def start_convert(
      self,
      output: str,
      *flags: str,
      directory: str | None = None,
      **environment: str,
  ) -> subprocess.Popen:
    """Starts the program `convert` in a new process group."""
    process = subprocess.Popen(
        [
            *(sys.executable, '-m', 'scripts.convert'),
            f'--dataset={directory or self.directory}',
            f'--checkpoint_dir={output}',
            '--task_mb=0.0001',
            *flags,
        ],
        env=programs.environment(**environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    return process

  def assert_completes(
      self,
      process: subprocess.Popen,
      output: str,
      lengths: Sequence[int] = LENGTHS,
  ) -> None:
    """Asserts that a started program writes all items of numbered episodes."""
    _, errors = process.communicate()
    self.assertEqual(process.returncode, 0, errors)
    self.assertEqual(rewards_of(items_of(output)), pairs(enumerate(lengths)))

  def job_folder(self, plan: plan_lib.Plan) -> str:
    if plan.output.kind != plan_lib.SERVER:
      return job_lib.Job(plan).folder
    if not hasattr(self, '_jobs'):
      self._jobs = self.create_tempdir().full_path
    return os.path.join(self._jobs, plan.hash)

  def receipts_of(self, plan: plan_lib.Plan) -> dict[int, job_lib.Receipt]:
    return job_lib.Job(plan, self.job_folder(plan)).receipts()


def items_in(client: reverb.Client) -> list[Any]:
  """Returns `items_of` for a checkpoint of a server."""
  return items_of(client.checkpoint())


def items_of(directory: str) -> list[Any]:
  """Returns the key and the rewards of each item of a checkpoint, sorted.

  A server restores a copy of the checkpoint with a table that samples each item
  once.
  """
  (table,) = records.read_tables(directory).values()
  table.max_times_sampled = 1
  with tempfile.TemporaryDirectory() as folder:
    copy = os.path.join(folder, 'checkpoint')
    shutil.copytree(directory, copy)
    with records.RecordFile(os.path.join(copy, records.TABLES)) as file:
      file.write([table.SerializeToString()])
    server = serve.restore_reverb_server(copy)
    try:
      client = server.localhost_client()
      size = client.server_info()[table.table_name].current_size
      return sorted(
          (int(np.ravel(sample.info.key)[0]), sample.data.reward.tolist())
          for sample in client.sample(
              table.table_name,
              num_samples=size,
              emit_timesteps=False,
              unpack_as_table_signature=True,
          )
      )
    finally:
      server.stop()


def contents_of(directory: str) -> dict[str, bytes]:
  """Returns the bytes of all files in a folder or at a URL by file name."""
  contents = {}
  for name in tf.io.gfile.listdir(directory):
    with tf.io.gfile.GFile(os.path.join(directory, name), 'rb') as f:
      contents[name] = f.read()
  return contents


def rewards_of(items_and_keys: list[Any]) -> list[list[float]]:
  """Returns the sorted rewards of items."""
  return sorted(rewards for _, rewards in items_and_keys)
