"""The outputs of jobs: Reverb checkpoints, Reverb servers and statistics.

`rlds_output` has RLDS data sets.
"""

import abc
from collections.abc import Mapping
from collections.abc import Sequence
import os
from typing import Any

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write
from rlds2reverb.replay.server import insert
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import results
from rlds2reverb.store import damage
from rlds2reverb.trajectories import specs

STATISTICS_FILE = 'statistics.json'
_SKETCH = 'sketch.npz'

# Insertion times of items increase with the number of the task, whenever it
# runs. A task has fewer items than there are nanoseconds between two tasks.
_FIRST_INSERTION = 1_500_000_000 * 10**9
_NANOSECONDS_PER_TASK = 1 << 40

_SERVER_TIMEOUT_SECONDS = 30

Receipts = Mapping[int, job_lib.Receipt]
# The number of items of a task by table, and JSON values for its receipt.
Written = tuple[dict[str, int], dict[str, Any]]


class JobOutput(abc.ABC):
  """The output of a job.

  Attributes:
    job: the job.
    plan: its plan.
    place: the path or addresses of the output.
  """

  def __init__(self, job: job_lib.Job):
    self.job = job
    self.plan = job.plan
    self.place = job.plan.output.place

  @abc.abstractmethod
  def check(self, spec: Any, receipts: Receipts) -> list[str]:
    """Checks that the output can be written.

    Args:
      spec: the spec of a frame, a `Trajectory`.
      receipts: the receipts of finished tasks.

    Returns:
      Lines that describe the output to the user.

    Raises:
      OSError: if something else is at its path.
      ValueError: if the data does not fit.
    """

  @abc.abstractmethod
  def is_finished(self, receipts: Receipts) -> bool:
    """Returns whether the output is complete."""

  @abc.abstractmethod
  def find_lost(
      self, receipts: Receipts, changed: Sequence[int]
  ) -> dict[int, str]:
    """Returns finished tasks that have to be repeated, with the reason.

    It is called before and after the tasks, while `is_finished` is false.

    Args:
      receipts: the receipts of finished tasks.
      changed: the finished tasks whose input files have changed since.

    Raises:
      ValueError: if the output of changed data cannot be replaced.
    """

  @abc.abstractmethod
  def write(self, number: int, episodes: Any) -> Written:
    """Writes the output of a task, in the process that runs it.

    Args:
      number: the number of the task.
      episodes: its `tasks.TaskEpisodes`.
    """

  @abc.abstractmethod
  def join(self, receipts: Receipts) -> None:
    """Joins the outputs of all tasks."""


class FolderOutput(JobOutput):
  """An output folder that is joined from one folder per task.

  The part of task 7 is `parts/00000007`.

  Attributes:
    kind: the name of the kind of output, for messages.
    marker: the file that is written last, when the output is complete.
    part_marker: the file that is written last into a part.
  """

  kind: str
  marker: str
  part_marker: str

  def check(self, spec, receipts):
    if files.exists(self.place) and not files.is_folder(self.place):
      raise FileExistsError(
          f'{self.place} is a file, where a folder has to be. Choose another'
          ' path.'
      )
    if self.is_finished(receipts):
      return [f'to the {self.kind} {self.place}']
    if self.appends:
      return [f'into the existing {self.kind} {self.place}']
    is_unfinished = files.is_unfinished(self.place, self.marker)
    if files.names_in(self.place) and not is_unfinished:
      raise FileExistsError(
          f'{self.place} is not empty, and not the output of this job. Choose'
          ' another directory, or remove it.'
      )
    return [f'to a new {self.kind} {self.place}']

  @property
  def appends(self) -> bool:
    """Whether repaired episodes are added to an existing output."""
    return self.plan.only_listed_in is not None and self._is_complete()

  def _is_complete(self) -> bool:
    return files.exists(os.path.join(self.place, self.marker))

  def is_finished(self, receipts):
    if len(receipts) < len(self.plan.tasks):
      return False
    if self.appends:  # Parts are removed after they are added.
      return not self.job.list_parts(self.part_marker)
    return self._is_complete()

  def find_lost(self, receipts, changed):
    missing = receipts.keys() - self.job.list_parts(self.part_marker)
    reason = f'their output in {self.job.folder} no longer exists'
    return {
        **dict.fromkeys(changed, 'files have changed since'),
        **dict.fromkeys(missing, reason),
    }

  def prepare_part(self, number: int) -> str:
    """Returns the folder for the part of a task.

    An existing local part is replaced when the new one is complete. A remote
    one is removed here.
    """
    path = self.job.part(number)
    if files.is_url(path):
      files.remove_folder(path)
    return path


class CheckpointOutput(FolderOutput):
  """A Reverb checkpoint."""

  kind = 'Reverb checkpoint'
  marker = records.DONE
  part_marker = records.DONE

  def write(self, number, episodes):
    items = write.write_checkpoint(
        episodes.frames(),
        self.prepare_part(number),
        inserted_at=_FIRST_INSERTION + number * _NANOSECONDS_PER_TASK,
        replace=True,
    )
    return items, {}

  def join(self, receipts):
    parts = [self.job.part(number) for number in sorted(receipts)]
    if not self.appends:
      merge.join_checkpoints(parts, self.place)
      return
    # Adding the same items again changes nothing, so this may be interrupted
    # and repeated.
    merge.merge_reverb_checkpoints(
        [self.place, *parts], self.place, overwrite=True
    )


class StatisticsOutput(FolderOutput):
  """Statistics of the valid episodes, merged from a sketch per task.

  `statistics.load_statistics` reads them.
  """

  kind = 'folder with statistics'
  marker = STATISTICS_FILE
  part_marker = _SKETCH

  def write(self, number, episodes):
    accumulation = _make_accumulation(episodes.read(), number)

    def compute_rows(block):
      batch = batch_lib.EpisodeBatch(block.steps, block.row_splits, ())
      return block, accumulation.rows(batch)

    state = accumulation.empty()
    add = accumulation.adder()
    for block, rows in episodes.blocks().map(compute_rows):
      episodes.watch(tf.nest.map_structure(lambda leaf: leaf.numpy(), block))
      state = add(state, rows)
    part = self.prepare_part(number)
    with files.new_folder(part, [_SKETCH], replace=True) as path:
      accumulation_lib.save(os.path.join(path, _SKETCH), state)
    return {}, {}

  def join(self, receipts):
    task = self.plan.tasks[0]
    source = self.plan.open_source(task.source)
    accumulation = _make_accumulation(source.read(task.ranges[0]), 0)
    spec = accumulation.empty()

    def load(number):
      folder = self.job.part(number)
      path = os.path.join(folder, _SKETCH)
      remedy = f'Remove {folder}: its task is then repeated.'
      with damage.naming_damage(path, remedy):
        return accumulation_lib.load(path, spec)

    sketches = map(load, sorted(receipts))
    state = next(sketches)
    # Another order of the tasks would change the last bits.
    for number, sketch in enumerate(sketches):
      state = state.merge(sketch, [0, len(receipts), number])
    text = results.to_json(accumulation.statistics(state))
    with files.new_folder(self.place, [STATISTICS_FILE]) as path:
      files.write_text(os.path.join(path, STATISTICS_FILE), text)


def _make_accumulation(episodes, seed: int) -> accumulation_lib.Accumulation:
  step = steps_lib.get_steps_spec(episodes.element_spec).step
  return accumulation_lib.Accumulation(step, seed=seed)


class ServerOutput(JobOutput):
  """Items in the tables of one or several running Reverb servers.

  Keys depend only on the content of items, so a repeated task does not add its
  items twice. Items can still get lost: a server may be restarted, or remove
  items. A receipt therefore stores the run of each server that took the items,
  and how many items each table had removed by then.
  """

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
      infos = self._get_tables(address)
      for table in self.plan.table_items:
        # Assumes that all episodes are valid, and no filter drops any.
        has_items_of_each = table.pads_episodes or (
            table.windows is None and not table.max_sequence_length
        )
        min_items = self.plan.num_episodes if has_items_of_each else 1
        info = infos[table.table_name]
        _check_table(address, info, spec, min_items // len(self._addresses))
        lines.append(
            f'  table {info.name!r} holds {info.current_size} of at most'
            f' {info.max_size} items'
        )
    return lines

  def is_finished(self, receipts):
    if len(receipts) < len(self.plan.tasks):
      return False
    return not self.find_lost(receipts, ())

  def find_lost(self, receipts, changed):
    lost = {}
    for address in self._addresses if receipts else ():
      state, infos = self._get_state(address), self._get_tables(address)
      for number, receipt in receipts.items():
        written = receipt['output'][address]
        if written['server_run'] != state['server_run']:
          lost[number] = f'the server at {address} was started again since'
          continue
        for name, info in infos.items():
          removed = _count_removed_since(address, info, written)
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
    # If a server restarts after this query, its state differs later, and the
    # task is repeated.
    output = {address: self._get_state(address) for address in self._addresses}
    _, counts = insert.insert(
        episodes.frames(), self._addresses, timeout=_SERVER_TIMEOUT_SECONDS
    )
    items = {table['table_name']: 0 for table in self.plan.tables}
    for (address, written), server_counts in zip(output.items(), counts):
      for name, info in self._get_tables(address).items():
        _count_removed_since(address, info, written)
        items[name] += sum(server_counts[name])
      written['new'] = {name: server_counts[name].new for name in items}
    return items, output

  def join(self, receipts):
    """Does nothing: the servers have the items already."""

  def _get_tables(self, address: str) -> dict[str, Any]:
    return tables_lib.table_infos(
        address,
        [table['table_name'] for table in self.plan.tables],
        _SERVER_TIMEOUT_SECONDS,
    )

  def _get_state(self, address: str) -> dict[str, Any]:
    """Returns the id of the server's run, and how many items it has removed."""
    return {
        'server_run': tables_lib.get_state_id(address, _SERVER_TIMEOUT_SECONDS),
        'removed': {
            name: _count_removed(info)
            for name, info in self._get_tables(address).items()
        },
    }


def _count_removed(info) -> int:
  """Returns how many items a table has removed in this run of its server."""
  return tables_lib.num_inserted(info) - info.current_size


def _count_removed_since(address: str, info, state: dict[str, Any]) -> int:
  """Returns how many items a table has removed since a state of its server.

  Raises:
    ValueError: if it removed items because it was full.
  """
  removed = _count_removed(info) - state['removed'][info.name]
  if removed > 0 and info.current_size == info.max_size:
    raise ValueError(
        f'Table {info.name!r} at {address} is too small: it has removed'
        f' {removed} items to make room for others, as its max_size is'
        f' {info.max_size}. Create the table with a larger max_size, and start'
        ' the job again.'
    )
  return removed


def _check_table(address: str, info, spec, min_items: int) -> None:
  """Raises a ValueError if a table cannot take `min_items` items of a spec."""
  try:
    specs.check_signature(info.signature, spec)
  except specs.SpecMismatchError as e:
    raise ValueError(
        f'The signature of table {info.name!r} at {address} does not fit the'
        ' data:\n  ' + '\n  '.join(e.differences)
    ) from e
  tables_lib.check_not_blocking(info, min_items)
  if min_items > info.max_size:
    raise ValueError(
        f'Table {info.name!r} at {address} is too small: its max_size is'
        f' {info.max_size}, and there are {min_items} items or more. Create the'
        ' table with a larger max_size.'
    )
