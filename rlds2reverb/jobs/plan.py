"""The plan of a conversion: a frozen value that says all that will be done.

A plan is made before anything is read, from the metadata of the files. It is
stored with the job, so that every later start of the job does the same. It is
cut into tasks, which any process can do in any order:

    plan       data set A, 5 episodes in 2 files; data set B, 3 in 1
    files      |  A0 A1 A2  |  A3 A4  |  B0 B1 B2  |
    tasks      |  0   |  1  |    2    |     3      |     of 2 or 3 episodes
"""

import collections
import dataclasses
import functools
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import rules as rules_lib

CHECKPOINT = 'checkpoint'
RLDS = 'rlds'
SERVER = 'server'
STATISTICS = 'statistics'
# The kinds of output that consist of items, which go into tables.
_OF_ITEMS = (CHECKPOINT, SERVER)

# The most is large enough that starting a task costs little in comparison, and
# small enough that little is lost when one is interrupted. From twice the least
# on, two workers have something to do.
_MOST_TASK_BYTES = 64_000_000
_LEAST_TASK_BYTES = 8_000_000
# The format of plans and receipts: a job that one version of this library has
# begun is not finished by another that would not understand them.
_FORMAT = 3


@dataclasses.dataclass(frozen=True)
class DataSet:
  """The data set that a source points to.

  Attributes:
    name: the name of the data set, with its config and version.
    directory: the folder of its version.
    fingerprint: a hash of what TFDS records about its files.
    treatment: the `preprocessing_hash` of the source, under the name that plans
      and the keys of items have for it.
    num_episodes: how many episodes the source has.
    num_bytes: about how many bytes they take on disk.
  """

  name: str
  directory: str
  fingerprint: str
  treatment: str
  num_episodes: int
  num_bytes: int


@dataclasses.dataclass(frozen=True)
class Output:
  """The output of a job.

  Attributes:
    kind: `CHECKPOINT`, `RLDS`, `SERVER` or `STATISTICS`.
    place: the directory; or the address of the server, or those of several,
      joined by commas, whose order tells which items go to which.
    split: the name of the split that is written, of RLDS.

  Raises:
    ValueError: if an address is not valid.
  """

  kind: str
  place: str
  split: str = ''

  def __post_init__(self):
    if self.kind == SERVER:
      for address in self.addresses:
        tables_lib.check_address(address)

  @property
  def addresses(self) -> List[str]:
    """The addresses of the servers."""
    return self.place.split(',')


@dataclasses.dataclass(frozen=True)
class Task:
  """A part of the work, which does not depend on any other.

  Attributes:
    source: the index of the source.
    ranges: the episodes, one range after the other, all of one split.
  """

  source: int
  ranges: Tuple[ranges_lib.Range, ...]

  @property
  def split(self) -> str:
    return self.ranges[0].split

  @property
  def num_episodes(self) -> int:
    return sum(part.num_episodes for part in self.ranges)

  @property
  def indices(self) -> List[int]:
    """The indices in their split of the episodes."""
    return [
        index for part in self.ranges for index in range(part.begin, part.end)
    ]


@dataclasses.dataclass(frozen=True)
class Plan:
  """Says all that a conversion will do; see `make_plan`.

  Attributes:
    sources: where the episodes come from.
    data_sets: the data sets of the sources.
    output: where the result goes.
    tables: which items go into which table, in the form of `TableItems`; none
      for RLDS and statistics.
    rules: the rules of the conversion, in the form of `ConversionRules`.
    tasks: the parts of the work.
    only: the name of the file whose episodes alone are converted, or None.
    format: the format of the plan and of its receipts.
  """

  sources: Tuple[sources_lib.Source, ...]
  data_sets: Tuple[DataSet, ...]
  output: Output
  tables: Tuple[Mapping[str, Any], ...]
  rules: Mapping[str, str]
  tasks: Tuple[Task, ...]
  only: Optional[str] = None
  format: int = _FORMAT

  @property
  def num_episodes(self) -> int:
    return sum(task.num_episodes for task in self.tasks)

  @functools.cached_property
  def hash(self) -> str:
    """A hash of the whole plan: 16 hexadecimal digits."""
    return identity_lib.fingerprint(self.to_json())

  @property
  def table_items(self) -> List[items_lib.TableItems]:
    tables = []
    for table in self.tables:
      windows = table['windows'] and windows_lib.Windows(**table['windows'])
      tables.append(items_lib.TableItems(**{**table, 'windows': windows}))
    return tables

  @property
  def conversion_rules(self) -> rules_lib.ConversionRules:
    return rules_lib.ConversionRules(**self.rules)

  def open(self) -> List[opened_lib.OpenSource]:
    """Opens the sources."""
    return [sources_lib.open_source(source) for source in self.sources]

  def identity(self, task: Task) -> Dict[str, str]:
    """Returns the identity of the episodes of a task, without their index.

    It does not depend on how the work is cut, where the result goes, or what
    else is converted: the same episode always makes the same items.
    """
    data_set = self.data_sets[task.source]
    return {
        'data_set': data_set.name,
        'directory': data_set.directory,
        'split': task.split,
        'treatment': data_set.treatment,
    }

  def to_json(self) -> str:
    return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1)


def from_plain(plain: Dict[str, Any]) -> Plan:
  """Returns the plan whose JSON values these are."""
  tasks = [
      Task(
          each['source'],
          tuple(ranges_lib.Range(*one) for one in each['ranges']),
      )
      for each in plain['tasks']
  ]
  parsed = {
      'sources': tuple(sources_lib.Source(**one) for one in plain['sources']),
      'data_sets': tuple(DataSet(**one) for one in plain['data_sets']),
      'output': Output(**plain['output']),
      'tables': tuple(plain['tables']),
      'tasks': tuple(tasks),
  }
  return Plan(**{**plain, **parsed})


def make_plan(
    opened: Sequence[opened_lib.OpenSource],
    output: Output,
    *,
    tables: Sequence[items_lib.TableItems] = (),
    rules: Optional[rules_lib.ConversionRules] = None,
    weights: Optional[Sequence[float]] = None,
    only: Optional[Tuple[str, Sequence[Sequence[ranges_lib.Range]]]] = None,
    task_bytes: Optional[int] = None,
) -> Plan:
  """Makes the plan of a conversion, without reading an episode.

  Args:
    opened: the sources.
    output: where the result goes.
    tables: which items go into which table; for RLDS and
      statistics there are none.
    rules: the rules of the conversion. The default is `ConversionRules()`.
    weights: a weight for each source, to make a mixture. Each source gives its
      first episodes, in numbers proportional to the weights and as large as
      possible without repeating an episode. By default all episodes of all
      sources are converted.
    only: a file of episodes, and the ranges of each source that it lists, which
      alone are converted.
    task_bytes: about how many bytes of files a task should read; by default
      64 MB, or half of all if that is less, but not less than 8 MB.

  Raises:
    ValueError: if no task can be done by itself under these tables and rules,
      if the tables do not go with the output, if two sources have the same
      episodes, or if the weights are not valid.
  """
  rules = rules or rules_lib.ConversionRules()
  _check_fits(rules, tables, output)
  ranges = [list(source.shards) for source in opened]
  if only is not None:
    ranges = [list(parts) for parts in only[1]]
  if weights is not None:
    ranges = ranges_lib.first_by_weights(ranges, weights)
  _check_distinct(opened, ranges)
  if task_bytes is None:
    half = -(-sum(source.num_bytes for source in opened) // 2)
    task_bytes = max(min(half, _MOST_TASK_BYTES), _LEAST_TASK_BYTES)
  tasks = []
  for index, (source, parts) in enumerate(zip(opened, ranges)):
    limit = source.num_episodes
    if not source.is_one_task:
      limit = max(task_bytes * limit // max(source.num_bytes, limit), 1)
    pieces = ranges_lib.cut(parts, limit)
    tasks += [
        # Of sources by weights each is spread evenly over the job.
        ((number + 0.5) / len(pieces) if weights else 0.0, Task(index, piece))
        for number, piece in enumerate(pieces)
    ]
  tasks.sort(key=lambda placed: placed[0])
  return Plan(
      sources=tuple(source.source for source in opened),
      data_sets=tuple(map(_data_set_of, opened)),
      output=output,
      tables=tuple(map(dataclasses.asdict, tables)),
      # The rule for invalid episodes changes no item of a valid one.
      rules={**dataclasses.asdict(rules), 'invalid_episodes': 'skip'},
      tasks=tuple(task for _, task in tasks),
      only=only and only[0],
  )


def _data_set_of(source: opened_lib.OpenSource) -> DataSet:
  return DataSet(
      source.name,
      source.directory,
      source.fingerprint,
      source.preprocessing_hash,
      source.num_episodes,
      source.num_bytes,
  )


def _check_distinct(opened, ranges) -> None:
  """Raises a ValueError if two sources have an episode in common."""
  found: Dict[Any, List[ranges_lib.Range]] = collections.defaultdict(list)
  for source, parts in zip(opened, ranges):
    found[source.name, source.directory, source.preprocessing_hash] += parts
  for (name, directory, _), parts in found.items():
    twice = ranges_lib.overlap(parts)
    if twice is not None:
      raise ValueError(
          f'Episodes of {name} in {directory}, split {twice.split}, are in two'
          ' sources, and would be converted twice.'
      )


def _check_fits(rules, tables, output) -> None:
  """Raises a ValueError if these do not go together, or not into a job."""
  if rules.validation != 'strict':
    raise ValueError(
        f'validation={rules.validation!r} checks the steps of all episodes as'
        ' one stream, which a job cuts into tasks. Use validation="strict".'
    )
  for table in tables:
    if table.crosses_episodes:
      raise ValueError(
          f'The items of table {table.table_name!r} cross episodes, between'
          ' which a job is cut into tasks. Choose another end of windows, or'
          ' call write_reverb_checkpoint.'
      )
    if callable(table.priority):
      raise ValueError(
          f'The priority of table {table.table_name!r} is a function, which a'
          ' plan cannot store. Give a number.'
      )
  if bool(tables) != (output.kind in _OF_ITEMS):
    raise ValueError(
        f'Output of the kind {output.kind} has no tables.'
        if tables
        else f'Output to a {output.kind} needs a table.'
    )
