"""The plan of a conversion: an immutable description of all its work.

A plan is made from the metadata of RLDS, without reading records. Data of other
formats is read once, to count its episodes. A plan is stored with the job, so
that a resumed job does the same work. The work is split into independent tasks:

    plan       data set A, 5 episodes in 2 files; data set B, 3 in 1
    files      |  A0 A1 A2  |  A3 A4  |  B0 B1 B2  |
    tasks      |  0   |  1  |    2    |     3      |     of 2 or 3 episodes
"""

import collections
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import json
from typing import Any

from absl import logging

from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.store import damage
from rlds2reverb.trajectories import options as options_lib

CHECKPOINT = 'checkpoint'
RLDS = 'rlds'
SERVER = 'server'
STATISTICS = 'statistics'
# The kinds of output with tables of items.
_KINDS_WITH_TABLES = (CHECKPOINT, SERVER)

# Starting a task of the maximum size costs little in comparison, and not much
# is lost if it is interrupted. From twice the minimum on, two workers are busy.
_MAX_TASK_BYTES = 64_000_000
_MIN_TASK_BYTES = 8_000_000
# The version of the format of plans and receipts. A job is not resumed by a
# library with another version.
_FORMAT = 4


@dataclasses.dataclass(frozen=True)
class DataSet:
  """The data set of a source.

  Attributes:
    name: the name of the data set, with its config and version.
    directory: the folder of its version.
    fingerprint: a hash of the files that TFDS records.
    preprocessing_hash: see `OpenSource`.
    num_episodes: the number of episodes of the source.
    num_bytes: their approximate size on disk.
  """

  name: str
  directory: str
  fingerprint: str
  preprocessing_hash: str
  num_episodes: int
  num_bytes: int


@dataclasses.dataclass(frozen=True)
class Output:
  """The output of a job.

  Attributes:
    kind: `CHECKPOINT`, `RLDS`, `SERVER` or `STATISTICS`.
    place: the directory; or the address of the server, or several addresses,
      joined by commas, whose order determines which items go to which server.
    split: the name of the split of RLDS output.
    file_format: the format of RLDS files, one of
      `datasets.saving.FILE_FORMATS`.

  Raises:
    ValueError: if an address is not valid.
  """

  kind: str
  place: str
  split: str = ''
  file_format: str = saving.TFRECORD

  def __post_init__(self):
    checks.check_choice('file_format', self.file_format, saving.FILE_FORMATS)
    if self.kind == SERVER:
      for address in self.addresses:
        tables_lib.check_address(address)

  @property
  def addresses(self) -> list[str]:
    """The addresses of the servers."""
    return self.place.split(',')


@dataclasses.dataclass(frozen=True)
class Task:
  """A part of the work that is independent of other tasks.

  Attributes:
    source: the index of the source.
    ranges: the ranges of the episodes, in order, all of one split.
  """

  source: int
  ranges: tuple[sources_lib.Range, ...]

  @property
  def split(self) -> str:
    return self.ranges[0].split

  @property
  def num_episodes(self) -> int:
    return sum(part.num_episodes for part in self.ranges)

  @property
  def indices(self) -> list[int]:
    """The indices of the episodes in their split."""
    return [
        index for part in self.ranges for index in range(part.begin, part.end)
    ]


@dataclasses.dataclass(frozen=True)
class Plan:
  """A description of a conversion; see `make_plan`.

  Attributes:
    sources: the sources of the episodes.
    data_sets: the data sets of the sources.
    output: the output.
    tables: the `TableItems` of each table, as dicts; empty for RLDS and
      statistics.
    rules: the `ConversionRules`, as a dict.
    tasks: the parts of the work.
    only_listed_in: the quarantine file that lists the episodes to convert, or
      None for all.
    format: the version of the format of the plan and of its receipts.
  """

  sources: tuple[sources_lib.Source, ...]
  data_sets: tuple[DataSet, ...]
  output: Output
  tables: tuple[Mapping[str, Any], ...]
  rules: Mapping[str, str]
  tasks: tuple[Task, ...]
  only_listed_in: str | None = None
  format: int = _FORMAT

  @property
  def num_episodes(self) -> int:
    return sum(task.num_episodes for task in self.tasks)

  @functools.cached_property
  def hash(self) -> str:
    """A hash of the plan: 16 hexadecimal digits."""
    return fingerprints.fingerprint(self.to_json())

  @property
  def table_items(self) -> list[items_lib.TableItems]:
    tables = []
    for table in self.tables:
      windows = table['windows'] and windows_lib.Windows(**table['windows'])
      tables.append(items_lib.TableItems(**{**table, 'windows': windows}))
    return tables

  @property
  def conversion_rules(self) -> options_lib.ConversionRules:
    return options_lib.ConversionRules(**self.rules)

  @functools.cached_property
  def _opened(self) -> dict[int, sources_lib.OpenSource]:
    return {}

  def open_source(self, index: int) -> sources_lib.OpenSource:
    """Opens a source, unless this process has opened it before.

    A source is reopened if its data set has changed since the plan was made.
    """
    try:
      fingerprint = self._opened[index].fingerprint
    except (FileNotFoundError, KeyError):
      fingerprint = None
    if fingerprint != self.data_sets[index].fingerprint:
      self._opened[index] = sources_lib.open_source(self.sources[index])
    return self._opened[index]

  def open(self) -> list[sources_lib.OpenSource]:
    """Opens all sources; see `open_source`."""
    return [self.open_source(index) for index in range(len(self.sources))]

  def identity(self, task: Task) -> dict[str, str]:
    """Returns the identity of the episodes of a task, without their index.

    The identity does not depend on the other tasks, sources or the output, so
    an episode always has the same items.
    """
    data_set = self.data_sets[task.source]
    return {
        'data_set': data_set.name,
        'directory': data_set.directory,
        'split': task.split,
        # A name in the keys of items, which must not change.
        'treatment': data_set.preprocessing_hash,
    }

  def to_json(self) -> str:
    return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1)


def from_json(values: dict[str, Any]) -> Plan:
  """Returns the plan of JSON values.

  Raises:
    AttributeError, KeyError, TypeError, ValueError: if the values are not a
      plan.
  """
  parsed = {
      'sources': tuple(sources_lib.Source(**s) for s in values['sources']),
      'data_sets': tuple(DataSet(**d) for d in values['data_sets']),
      'output': Output(**values['output']),
      'tables': tuple(values['tables']),
      'tasks': tuple(
          Task(
              task['source'],
              tuple(sources_lib.Range(*part) for part in task['ranges']),
          )
          for task in values['tasks']
      ),
  }
  return Plan(**{**values, **parsed})


def make_plan(
    opened: Sequence[sources_lib.OpenSource],
    output: Output,
    *,
    tables: Sequence[items_lib.TableItems] = (),
    rules: options_lib.ConversionRules | None = None,
    weights: Sequence[float] | None = None,
    only: tuple[str, Sequence[Sequence[sources_lib.Range]]] | None = None,
    task_bytes: int | None = None,
) -> Plan:
  """Makes the plan of a conversion.

  Records of RLDS are not read. Data of other formats is read once, to count its
  episodes, unless `OpenSource.ranges` has been used before.

  Args:
    opened: the sources.
    output: the output.
    tables: the items of each table; empty for RLDS and statistics.
    rules: the rules of the conversion. The default is `ConversionRules()`.
    weights: a weight for each source, for a mixture. Each source gives its
      first episodes, in numbers proportional to the weights and as large as
      possible without repeating an episode; a source whose number rounds to 0
      is logged as a warning. By default all episodes of all sources are
      converted.
    only: a quarantine file, and the ranges of its episodes in each source, to
      convert no others; see `read_quarantine`.
    task_bytes: approximate bytes of files per task; by default 64 MB, or half
      of all files if that is less, but at least 8 MB.

  Raises:
    ValueError: if the tables or rules need episodes of several tasks together,
      if the output takes no tables, if two sources have the same episodes, or
      if the weights are not valid.
  """
  rules = rules or options_lib.ConversionRules()
  _check_supported(rules, tables, output)
  ranges = [list(source.shards) for source in opened]
  if only is not None:
    ranges = [list(parts) for parts in only[1]]
  if weights is not None:
    ranges = _take_by_weights(ranges, weights, [s.name for s in opened])
  _check_disjoint(opened, ranges)
  if task_bytes is None:
    half = -(-sum(source.num_bytes for source in opened) // 2)
    task_bytes = max(min(half, _MAX_TASK_BYTES), _MIN_TASK_BYTES)
  placed_tasks = []
  for index, (source, parts) in enumerate(zip(opened, ranges)):
    max_episodes = source.num_episodes
    if source.is_splittable:
      # The recorded size may be 0, so at least a byte per episode is assumed.
      num_bytes = max(source.num_bytes, max_episodes)
      max_episodes = max(task_bytes * max_episodes // num_bytes, 1)
    pieces = _group(parts, max_episodes)
    for number, piece in enumerate(pieces):
      # Spreads each source of a mixture evenly over the job.
      place = (number + 0.5) / len(pieces) if weights else 0.0
      placed_tasks.append((place, Task(index, piece)))
  placed_tasks.sort(key=lambda placed: placed[0])
  plan = Plan(
      sources=tuple(source.source for source in opened),
      data_sets=tuple(
          DataSet(
              source.name,
              source.directory,
              source.fingerprint,
              source.preprocessing_hash,
              source.num_episodes,
              source.num_bytes,
          )
          for source in opened
      ),
      output=output,
      tables=tuple(map(dataclasses.asdict, tables)),
      # Whether invalid episodes fail is no part of the plan: the graph always
      # skips them, and `tasks.run_task` fails if they must not be skipped. The
      # items of valid episodes are the same.
      rules={**dataclasses.asdict(rules), 'invalid_episodes': 'skip'},
      tasks=tuple(task for _, task in placed_tasks),
      only_listed_in=only and only[0],
  )
  plan._opened.update(enumerate(opened))
  return plan


def _take_by_weights(
    ranges: list[list[sources_lib.Range]],
    weights: Sequence[float],
    names: Sequence[str],
) -> list[list[sources_lib.Range]]:
  """Returns the first episodes of each source, in proportion to its weight.

  Logs a warning if the share of a source rounds to 0.

  Args:
    ranges: the episodes of each source.
    weights: the weight of each source.
    names: the name of each source, for messages.
  """
  checks.check_count(weights, len(ranges))
  checks.check_weights(weights, are_positive=True)
  sizes = [sum(part.num_episodes for part in parts) for parts in ranges]
  # Quotients of arbitrary weights might overflow.
  scaled = random_lib.scale_weights(weights).tolist()
  scarcest = min(range(len(sizes)), key=lambda i: sizes[i] / scaled[i])
  unit = sizes[scarcest] / scaled[scarcest]
  result: list[list[sources_lib.Range]] = []
  for i, parts in enumerate(ranges):
    remaining = round(unit * scaled[i])
    if not remaining:
      logging.warning(
          '%s gets none of its %d episodes: its weight of %g is a share of %.3g'
          ' episodes, which rounds to 0. The %d episodes of %s, of weight %g,'
          ' limit the mixture. Raise the weight, or remove the data set.',
          names[i],
          sizes[i],
          weights[i],
          unit * scaled[i],
          sizes[scarcest],
          names[scarcest],
          weights[scarcest],
      )
    result.append([])
    for part in parts:
      part = part._replace(end=min(part.end, part.begin + remaining))
      remaining -= part.num_episodes
      if part.num_episodes:
        result[-1].append(part)
  return result


def _group(
    parts: Sequence[sources_lib.Range], max_episodes: int
) -> list[tuple[sources_lib.Range, ...]]:
  """Groups ranges of files into tasks.

  A large file becomes several tasks, and adjacent small files become one.

  Args:
    parts: the ranges.
    max_episodes: the maximum number of episodes of a task.
  """
  tasks: list[list[sources_lib.Range]] = []
  room = 0  # How many more episodes fit into the last task.
  for part in parts:
    count = -(-part.num_episodes // max_episodes)
    for i in range(count):
      piece = part._replace(
          begin=part.begin + part.num_episodes * i // count,
          end=part.begin + part.num_episodes * (i + 1) // count,
      )
      last = tasks[-1][-1] if tasks else None
      if not last or last.split != part.split or piece.num_episodes > room:
        tasks.append([piece])
        room = max_episodes
      elif last.end == piece.begin:
        tasks[-1][-1] = last._replace(end=piece.end)
      else:
        tasks[-1].append(piece)
      room -= piece.num_episodes
  return [tuple(task) for task in tasks]


def read_quarantine(
    path: files.PathLike, opened: Sequence[sources_lib.OpenSource]
) -> list[list[sources_lib.Range]]:
  """Returns the episodes that a quarantine file lists.

  Args:
    path: a quarantine file of a job.
    opened: the sources that have the episodes.

  Returns:
    The ranges of each source, in the order of the data set.

  Raises:
    FileNotFoundError: if the file does not exist.
    ValueError: if the file is empty, a line has another format, or its episode
      belongs to none of the sources.
  """
  path = files.expand(path)
  with files.open_text(path) as f:
    lines = f.readlines()
  if not lines:
    raise ValueError(f'{path} lists no episodes, so there is nothing to do.')
  ranges: list[list[sources_lib.Range]] = [[] for _ in opened]
  for number, line in enumerate(lines, 1):
    try:
      values = damage.loads_json(line)
      directory, split = str(values['directory']), str(values['split'])
      index = int(values['episode'])
    except (KeyError, TypeError, ValueError) as e:
      raise ValueError(
          f'{path}, line {number} is not of a quarantine file:'
          f' {line.strip()[:200]!r}.'
      ) from e
    part = sources_lib.Range(split, index, index + 1)
    for source, parts in zip(opened, ranges):
      if source.directory == directory and sources_lib.find_overlap(
          [*source.ranges, part]
      ):
        parts.append(part)
        break
    else:
      raise ValueError(
          f'{path}, line {number}: episode {part.begin} of split {split} of'
          f' {directory} is not in the data sets of this job.'
      )
  # Merges adjacent episodes.
  return [
      [part for task in _group(sorted(set(parts)), len(parts)) for part in task]
      for parts in ranges
  ]


def _check_disjoint(opened, ranges) -> None:
  """Raises a ValueError if two sources share an episode."""
  ranges_of: dict[Any, list[Any]] = collections.defaultdict(list)
  for source, parts in zip(opened, ranges):
    key = source.name, source.directory, source.preprocessing_hash
    ranges_of[key] += parts
  for (name, directory, _), parts in ranges_of.items():
    overlap = sources_lib.find_overlap(parts)
    if overlap is not None:
      raise ValueError(
          f'Episodes of {name} in {directory}, split {overlap.split}, are in'
          ' two sources, and would be converted twice.'
      )


def _check_supported(rules, tables, output) -> None:
  """Raises a ValueError if tasks cannot be independent, or tables misfit."""
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
  if bool(tables) != (output.kind in _KINDS_WITH_TABLES):
    raise ValueError(
        f'Output of the kind {output.kind} has no tables.'
        if tables
        else f'Output to a {output.kind} needs a table.'
    )
