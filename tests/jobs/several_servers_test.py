"""Tests of jobs that fill several servers."""

import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
import pytest
import reverb

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import server_output
from rlds2reverb.jobs import tasks
from tests.jobs import job_testing

_NUMBERED = list(enumerate(job_testing.LENGTHS))
_SHARES = [job_testing.pairs(_NUMBERED[server::2]) for server in range(2)]

# A server that keeps its checkpoints in a folder, and starts from the newest.
_SERVER = """
import sys
import reverb
from tests.jobs import job_testing

_, root, data, port = sys.argv
server = reverb.Server(
    [
        reverb.Table(
            job_testing.TABLE,
            sampler=reverb.selectors.Fifo(),
            remover=reverb.selectors.Fifo(),
            max_size=1000,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=job_testing.signature_of(data),
        )
    ],
    int(port) or None,
    reverb.checkpointers.DefaultCheckpointer(root),
)
print(server.port, flush=True)
server.wait()
"""


def _after_first_task(action):
  """Lets something happen when the first task is done."""
  run_task = tasks.run_task
  actions = [action]

  def run(*args, **kwargs):
    receipt = run_task(*args, **kwargs)
    if actions:
      actions.pop()()
    return receipt

  return mock.patch.object(tasks, 'run_task', run)


class SeveralServersTest(job_testing.JobTestCase):

  def setUp(self):
    super().setUp()
    # How long a server that is gone is waited for.
    self.enter_context(mock.patch.object(server_output, '_TIMEOUT_SECONDS', 2))

  def _plan(self, ports, **kwargs):
    addresses = [f'localhost:{port}' for port in ports]
    return self.plan(plan_lib.SERVER, ','.join(addresses), **kwargs)

  def _check_items(self, ports):
    for port, expected in zip(ports, _SHARES):
      items = job_testing.items_in(reverb.Client(f'localhost:{port}'))
      self.assertEqual(job_testing.rewards_of(items), expected)

  @pytest.mark.long
  def test_each_gets_its_share_once(self):
    ports = [self.start_server().port for _ in range(2)]
    summary = self.convert(self._plan(ports))
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    self._check_items(ports)
    # Another plan of the same data leaves every item where it is.
    self.convert(self._plan(ports, episodes_per_task=8))
    self._check_items(ports)

  @pytest.mark.long
  def test_a_server_that_is_gone_stops_the_job_which_then_goes_on(self):
    here, gone = self.start_server(), self.start_server()
    ports = here.port, gone.port
    plan = self._plan(ports)
    with _after_first_task(gone.stop):
      with self.assertRaisesRegex(convert.JobError, f'localhost:{ports[1]}'):
        self.convert(plan, patience=0.0)
    self.start_server(ports[1])
    self.convert(plan)
    self.assertIn('was started again since', '\n'.join(self.said))
    self._check_items(ports)

  def test_two_servers_must_be_two(self):
    port = self.start_server().port
    with self.assertRaisesRegex(ValueError, 'addresses of servers must differ'):
      self.convert(self._plan([port, port]))

  @pytest.mark.long
  def test_a_server_that_is_killed_and_starts_from_its_checkpoint(self):
    roots = [self.new() for _ in range(2)]
    servers = [self._start_process(root) for root in roots]
    ports = [port for _, port in servers]
    plan = self._plan(ports)

    def checkpoint_and_kill():
      reverb.Client(f'localhost:{ports[1]}').checkpoint()
      servers[1][0].kill()
      servers[1][0].wait()

    with _after_first_task(checkpoint_and_kill):
      with self.assertRaises(convert.JobError):
        self.convert(plan, patience=0.0)
    self._start_process(roots[1], ports[1])
    summary = self.convert(plan)
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    self._check_items(ports)

  def _start_process(self, root, port=0):
    process = subprocess.Popen(
        [sys.executable, '-c', _SERVER, root, self.directory, str(port)],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    self.addCleanup(process.communicate)
    self.addCleanup(process.kill)
    return process, int(process.stdout.readline())


if __name__ == '__main__':
  absltest.main()
