"""Running Reverb servers as the output of a job: one or several.

Keys are a function of what an item is, so a task that is done twice leaves its
items once. Items can still get lost: a server may be started again, or remove
items. A receipt therefore says which run of each server took the items, and how
many items each table had removed by then.
"""

from typing import Any, Dict

from rlds2reverb.jobs import outputs
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import specs

_TIMEOUT_SECONDS = 30


class ServerOutput(outputs.JobOutput):
  """Inserts the items of every task into the tables of the servers."""

  @property
  def _addresses(self):
    return self.plan.output.addresses

  def check(self, spec, receipts):
    if len(set(self._addresses)) < len(self._addresses):
      raise ValueError(
          f'The addresses of servers must differ, but they are {self.place!r}.'
      )
    lines = []
    for address in self._addresses:
      lines.append(f'to the Reverb server at {address}')
      infos = self._infos(address)
      for table in self.plan.table_items:
        # If all episodes are valid, and no filter leaves some out.
        is_whole = table.windows is None and not table.max_sequence_length
        of_each = is_whole or table.pads_episodes
        fewest = self.plan.num_episodes if of_each else 1
        info = infos[table.table_name]
        _check_table(address, info, spec, fewest // len(self._addresses))
        lines.append(
            f'  table {info.name!r} holds {info.current_size} of at most'
            f' {info.max_size} items'
        )
    return lines

  def is_finished(self, receipts):
    return len(receipts) == len(self.plan.tasks) and not self.lost(receipts, ())

  def lost(self, receipts, changed):
    lost = {}
    for address in self._addresses if receipts else ():
      now, infos = self._state(address), self._infos(address)
      for number, receipt in receipts.items():
        before = receipt['output'][address]
        if before['state'] != now['state']:
          lost[number] = f'the server at {address} was started again since'
          continue
        for name, info in infos.items():
          removed = _check_not_full(address, info, before['removed'][name])
          if removed > 0 and not info.max_times_sampled:
            lost[number] = (
                f'table {name!r} at {address} has removed {removed} items since'
            )
    stale = set(changed) - lost.keys()
    if stale:
      # New items would have the keys of the old ones, which a table keeps.
      raise ValueError(
          f'The data has changed since {len(stale)} tasks of this job were'
          f' done, and the tables at {self.place} hold their items as the data'
          ' was then. Remove these items or start the server again, and remove'
          f' the job, {self.job.folder}.'
      )
    return lost

  def write(self, number, episodes):
    # The state is asked for before the items are written. If the server starts
    # again meanwhile, its state differs later, and the task is done again.
    output = {address: self._state(address) for address in self._addresses}
    _, counts = insert.insert(
        episodes.frames(), self._addresses, timeout=_TIMEOUT_SECONDS
    )
    items = {table['table_name']: 0 for table in self.plan.tables}
    for (address, before), of_server in zip(output.items(), counts):
      for name, info in self._infos(address).items():
        _check_not_full(address, info, before['removed'][name])
        items[name] += sum(of_server[name])
      before['new'] = {name: of_server[name].new for name in items}
    return items, output

  def join(self, receipts):
    """Does nothing: the servers have the items already."""

  def _infos(self, address: str) -> Dict[str, Any]:
    return tables_lib.table_infos(
        address,
        [table['table_name'] for table in self.plan.tables],
        _TIMEOUT_SECONDS,
    )

  def _state(self, address: str) -> Dict[str, Any]:
    """Returns which run of a server there is, and what was removed in it."""
    return {
        'state': tables_lib.state_of(address, _TIMEOUT_SECONDS),
        'removed': {
            name: _removed(info) for name, info in self._infos(address).items()
        },
    }


def _removed(info) -> int:
  """Returns how many items a table has removed in this run of its server."""
  return tables_lib.inserted(info) - info.current_size


def _check_table(address: str, info, spec, fewest: int) -> None:
  """Raises a ValueError if a table cannot take `fewest` items of a spec."""
  try:
    specs.check_signature(info.signature, spec)
  except specs.SpecMismatchError as e:
    raise ValueError(
        f'The signature of table {info.name!r} at {address} does not fit the'
        ' data:\n  ' + '\n  '.join(e.differences)
    ) from e
  tables_lib.check_not_blocking(info, fewest)
  if fewest > info.max_size:
    raise ValueError(
        f'Table {info.name!r} at {address} is too small: its max_size is'
        f' {info.max_size}, and there are {fewest} items or more. Create the'
        ' table with a larger max_size.'
    )


def _check_not_full(address: str, info, removed_before: int) -> int:
  """Returns how many items a table has removed since there were so many.

  Raises:
    ValueError: if it made room by removing items.
  """
  removed = _removed(info) - removed_before
  if removed > 0 and info.current_size == info.max_size:
    raise ValueError(
        f'Table {info.name!r} at {address} is too small: it has removed'
        f' {removed} items to make room for others, as its max_size is'
        f' {info.max_size}. Create the table with a larger max_size, and start'
        ' the job again.'
    )
  return removed
