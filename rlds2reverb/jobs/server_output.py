"""A running Reverb server as the output of a job.

Keys are a function of what an item is, so a task that is done twice leaves its
items once. What a server holds can still get lost: it may be started again, or
remove items. So a receipt keeps which run of the server took the items, and how
many items each table had removed by then.
"""

from typing import Any, Dict, List

import reverb

from rlds2reverb.jobs import estimates
from rlds2reverb.jobs import outputs
from rlds2reverb.replay.server import bulk
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import specs

_TIMEOUT_SECONDS = 30


class ServerOutput(outputs.Output):
  """Inserts the items of every task into the tables of a server."""

  def check(self, folder, spec, receipts) -> List[str]:
    infos = self._infos()
    for table in self.plan.table_items:
      _check_table(
          infos[table.table_name],
          spec,
          estimates.fewest_items(self.plan, table),
      )
    return [f'to the Reverb server at {self.plan.output.place}'] + [
        f'  table {name!r} holds {info.current_size} of at most'
        f' {info.max_size} items'
        for name, info in infos.items()
    ]

  def is_finished(self, folder, receipts):
    return len(receipts) == len(self.plan.tasks) and not self.lost('', receipts)

  def lost(self, folder, receipts):
    if not receipts:
      return {}
    address = self.plan.output.place
    state = tables_lib.state_of(address, _TIMEOUT_SECONDS)
    infos = self._infos()
    lost = {}
    for number, receipt in receipts.items():
      if receipt.output['state'] != state:
        lost[number] = f'the server at {address} was started again since'
        continue
      for name, info in infos.items():
        _check_not_full(info, receipt.output['removed'][name])
        removed = _removed(info) - receipt.output['removed'][name]
        if removed > 0 and not info.max_times_sampled:
          lost[number] = f'table {name!r} has removed {removed} items since'
    return lost

  def write(self, number, folder, frames, episodes):
    client = reverb.Client(self.plan.output.place)
    # Asked before: if the server is started again meanwhile, this is not its
    # state at the end, and the task is done again.
    state = tables_lib.state_of(self.plan.output.place, _TIMEOUT_SECONDS)
    removed = {name: _removed(info) for name, info in self._infos().items()}
    _, counts = bulk.insert(
        frames, client, identity=episodes.identity, timeout=_TIMEOUT_SECONDS
    )
    for name, info in self._infos().items():
      _check_not_full(info, removed[name])
    return outputs.Written(
        {name: sum(count) for name, count in counts.items()},
        {
            'state': state,
            'removed': removed,
            'new': {name: count.new for name, count in counts.items()},
        },
    )

  def finish(self, folder, spec, receipts, on_bytes):
    """Does nothing: the items are where they belong."""

  def _infos(self) -> Dict[str, Any]:
    return tables_lib.table_infos(
        reverb.Client(self.plan.output.place),
        [table.table_name for table in self.plan.table_items],
        _TIMEOUT_SECONDS,
    )


def _removed(info) -> int:
  """Returns how many items a table has removed in this run of its server."""
  return tables_lib.inserted(info) - info.current_size


def _check_table(info, spec, fewest: int) -> None:
  """Raises a ValueError if a table cannot take the items.

  Args:
    info: the table.
    spec: the spec of a frame.
    fewest: how many items there are at least.
  """
  try:
    specs.check_signature(info.signature, spec)
  except specs.SpecMismatchError as e:
    raise ValueError(
        f'The signature of table {info.name!r} does not fit the data:\n  '
        + '\n  '.join(e.differences)
    ) from e
  tables_lib.check_not_blocking(info, fewest)
  if fewest > info.max_size:
    raise ValueError(
        f'Table {info.name!r} is too small: its max_size is {info.max_size},'
        f' and there are {fewest} items or more. Create the table with a larger'
        ' max_size.'
    )


def _check_not_full(info, removed_before: int) -> None:
  """Raises a ValueError if a table made room by removing items."""
  removed = _removed(info) - removed_before
  if removed > 0 and info.current_size == info.max_size:
    raise ValueError(
        f'Table {info.name!r} is too small: it has removed {removed} items to'
        f' make room for others, as its max_size is {info.max_size}. Create the'
        ' table with a larger max_size, and start the job again.'
    )
