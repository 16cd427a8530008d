"""Tests of jobs into servers, which are started again or lose items."""

import os
from unittest import mock

from absl.testing import absltest
import pytest
import reverb

from rlds2reverb.jobs import convert
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import server_output
from rlds2reverb.replay import items
from tests import recordings
from tests.jobs import data_sets
from tests.jobs import job_testing


@pytest.mark.long
class ServerTest(job_testing.JobTestCase):

  def setUp(self):
    super().setUp()
    # How long a server that is gone is waited for.
    self.enter_context(mock.patch.object(server_output, '_TIMEOUT_SECONDS', 2))

  def _plan(self, *servers, **kwargs):
    addresses = [f'localhost:{server.port}' for server in servers]
    return self.plan(plan_lib.SERVER, ','.join(addresses), **kwargs)

  def test_a_server_that_was_started_again_gets_everything_again(self):
    server = self.start_server()
    plan = self._plan(server)

    def start_again():
      servers.pop().stop()
      servers.append(self.start_server(server.port))

    servers = [server]
    self.interrupt(plan, 2)
    start_again()
    with job_testing.before_task(3, start_again):  # While the job runs, too.
      self.convert(plan)
    message = (
        f'tasks are done again: the server at localhost:{server.port} was'
        ' started again since.'
    )
    self.assertIn(f'2 {message}', self.said)
    self.assertIn(f'3 {message}', self.said)
    self.check(plan)
    # As if the folder of the first job had been removed.
    again = self.convert(plan, folder=self.new('job'))
    self.assertEqual(again['there_before'], 26)
    self.assertIn('Items whose keys a server has already stay', self.said[-1])

  def test_items_that_were_removed_come_again_and_old_ones_do_not_stay(self):
    # A table keeps the first item of a key, so the old ones would stay.
    folder = data_sets.numbered(self.new('data'), job_testing.LENGTHS)
    server = self.start_server()
    client = server.localhost_client()
    plan = self._plan(server, directory=folder, episodes_per_task=4)
    self.convert(plan)
    content = job_testing.items_in(client)
    client.mutate_priorities(
        job_testing.TABLE, deletes=[key for key, _ in content[:5]]
    )
    self.convert(plan)
    message = (
        "2 tasks are done again: table 'experience' at"
        f' {plan.output.place} has removed 5 items since.'
    )
    self.assertIn(message, self.said)
    self.assertEqual(job_testing.items_in(client), content)
    os.utime(data_sets.files_of(folder)[0], ns=(0, 0))
    self.assert_fails(convert.JobError, 'files of 1 of 2 tasks', plan)
    os.unlink(os.path.join(self.job_folder(plan), 'receipts', '00001.json'))
    self.assert_fails(ValueError, 'hold their items as the data was', plan)

  def test_what_cannot_work_is_refused_before_it_starts(self):
    limiter = reverb.rate_limiters.SampleToInsertRatio(1.0, 1, 2.0)
    whole = items.TableItems(job_testing.TABLE, None)
    blocking = self._plan(
        self.start_server(rate_limiter=limiter), tables=[whole]
    )
    small = self._plan(self.start_server(max_size=5), tables=[whole])
    walker = os.path.join(recordings.FOLDER, 'walker')
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

  def test_of_several_servers_each_gets_its_share_once(self):
    servers = self.start_server(), self.start_server()

    def check_shares():
      numbered = list(enumerate(job_testing.LENGTHS))
      for number, server in enumerate(servers):
        client = reverb.Client(f'localhost:{server.port}')
        found = job_testing.rewards_of(job_testing.items_in(client))
        self.assertEqual(found, job_testing.pairs(numbered[number::2]))

    summary = self.convert(self._plan(*servers, episodes_per_task=8))
    self.assertEqual(summary['items'], {job_testing.TABLE: 26})
    check_shares()
    # Another plan of the same data leaves every item where it is, and one that
    # is stopped by a server that goes away can go on.
    plan = self._plan(*servers, episodes_per_task=4)
    port = servers[1].port
    with job_testing.before_task(1, servers[1].stop):
      message = f'localhost:{port}'
      self.assert_fails(convert.JobError, message, plan, patience=0.0)
    self.start_server(port)
    self.convert(plan)
    self.assertIn('was started again since', '\n'.join(self.said))
    check_shares()

  def test_a_server_that_comes_back_is_waited_for(self):
    server = self.start_server()
    plan = self._plan(server)
    waits = []

    def wait(seconds):
      waits.append(seconds)
      if len(waits) == 4:
        self.start_server(server.port)

    with job_testing.before_task(1, server.stop), mock.patch.object(
        convert.time, 'sleep', wait
    ):
      self.convert(plan)
    self.check(plan)


if __name__ == '__main__':
  absltest.main()
