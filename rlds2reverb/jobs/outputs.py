"""The outputs of jobs: the methods that every kind of output has."""

import abc
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib

PARTS = 'parts'
# All names have one length, because some stores find files by the start of a
# name.
_PART_NAME = re.compile(r'(\d{8})-(\d{8})')
# The number of parts that are joined into a larger one. This leaves only a few
# at the end, for any number of tasks.
_PARTS_PER_MERGE = 16

Receipts = Mapping[int, receipts_lib.Receipt]


class Written(NamedTuple):
  """The result of a task.

  Attributes:
    items: the number of items of each table, by its name.
    details: values that the output needs later, as JSON values.
  """

  items: Dict[str, int]
  details: Dict[str, Any]


class JobOutput(abc.ABC):
  """A kind of output, for one plan."""

  def __init__(self, plan: plan_lib.Plan):
    self.plan = plan

  @abc.abstractmethod
  def check(self, folder: str, spec: Any, receipts: Receipts) -> List[str]:
    """Checks that the output can be written, before anything is.

    Args:
      folder: the folder of the job.
      spec: the spec of a frame, a `Trajectory`.
      receipts: the receipts of an earlier start of the job.

    Returns:
      Lines about the output, for the user who reads the plan.

    Raises:
      OSError: if there is something else at its place, or no space.
      ValueError: if the data does not fit.
    """

  def space(self, folder: str, left: int, total: int) -> Dict[str, int]:
    """Returns about how many bytes are still to be written, by folder.

    Args:
      folder: the folder of the job.
      left: how many bytes of data the remaining tasks read.
      total: how many all tasks read.
    """
    del folder, left, total
    return {}

  @abc.abstractmethod
  def is_finished(self, folder: str, receipts: Receipts) -> bool:
    """Returns whether the whole output is there."""

  @abc.abstractmethod
  def lost(self, folder: str, receipts: Receipts) -> Dict[int, str]:
    """Returns the tasks whose output is not there any more, with the reason.

    It is asked before the tasks and after them, while `is_finished` is false.
    """

  @abc.abstractmethod
  def discard(self, folder: str, numbers: Sequence[int]) -> None:
    """Removes the output of tasks whose data was written anew since.

    Outputs that were joined with it are removed too, and are `lost` then.

    Args:
      folder: the folder of the job.
      numbers: the tasks.

    Raises:
      ValueError: if it cannot be removed.
    """

  @abc.abstractmethod
  def write(self, number: int, folder: str, episodes: Any) -> Written:
    """Writes the output of a task; called wherever the task runs.

    Args:
      number: the number of the task.
      folder: the folder of the job.
      episodes: its `task_episodes.TaskEpisodes`.
    """

  @abc.abstractmethod
  def finish(
      self,
      folder: str,
      spec: Any,
      receipts: Receipts,
  ) -> None:
    """Makes the whole output from the outputs of the tasks.

    Args:
      folder: the folder of the job.
      spec: see `check`.
      receipts: the receipts of all tasks.
    """

  def merges(self) -> List[List[range]]:
    """Returns the groups of tasks to `merge` before `finish`, by level.

    Many workers can merge the groups of a level at once, after the level
    before. There are none where `finish` alone is as fast.
    """
    return []

  def merge(self, folder: str, numbers: range) -> None:
    """Joins the parts of consecutive tasks, unless they are joined already.

    Args:
      folder: the folder of the job.
      numbers: the numbers of the tasks, one of `merges`.
    """
    raise NotImplementedError

  def clean(self, folder: str) -> None:
    """Removes the parts of the tasks, when the output is finished."""


class FolderOutput(JobOutput):
  """An output in a folder, to which every task contributes a part.

  The parts are folders, too, until they are joined at the end:

      parts/00000007-00000008  the part of task 7
      parts/00000016-00000032  the parts of the tasks 16 to 31, joined

  Attributes:
    kind: what the output is, for the user.
    marker: the last file to be written, after which the output is whole.
    part_marker: the same of a part.
  """

  kind: str
  marker: str
  part_marker: str

  def check(self, folder, spec, receipts):
    place = self.plan.output.place
    if any(data.directory == place for data in self.plan.data_sets):
      raise ValueError(
          f'The episodes are read from {place}, so they cannot be written'
          ' there. Choose another directory.'
      )
    if files.exists(place) and not files.is_folder(place):
      raise FileExistsError(
          f'{place} is a file, where a folder has to be. Choose another path.'
      )
    if self.is_finished(folder, receipts):
      return [f'to the {self.kind} {place}']
    if self.adds:
      self.check_addition(spec)
      return [f'into the {self.kind} {place}, beside what it holds']
    if files.names_in(place) and not whole.is_unfinished(place, self.marker):
      raise FileExistsError(
          f'{place} is not empty, and not the output of this job. Choose'
          ' another directory, or remove it.'
      )
    return [f'to a new {self.kind} {place}']

  @abc.abstractmethod
  def check_addition(self, spec: Any) -> None:
    """Raises an error if the existing output cannot take repaired episodes."""

  @property
  def adds(self) -> bool:
    """Whether repaired episodes are added to an existing output."""
    return self.plan.only is not None and bool(
        files.names_in(self.plan.output.place)
    )

  def lost(self, folder, receipts):
    found = self._found(folder)
    return {
        number: f'their output in {folder} is not there any more'
        for number in receipts
        if not any(number in numbers for numbers in found)
    }

  def discard(self, folder, numbers):
    for part in self._found(folder):
      if any(number in part for number in numbers):
        files.remove_folder(_part(folder, part))

  def new_part(self, folder: str, number: int) -> str:
    """Returns where the part of a task goes, and removes what is in its way.

    Locally, a part that is there is replaced when the new one is whole.
    """
    path = _part(folder, range(number, number + 1))
    if files.is_url(path):
      files.remove_folder(path)
    return path

  def parts(self, folder: str, numbers: range) -> List[str]:
    """Returns the folders of the parts of consecutive tasks, in their order.

    Raises:
      FileNotFoundError: if one is missing.
    """
    # After an interrupted merge both its result and its parts may be there.
    found = sorted(
        (part for part in self._found(folder) if part[-1] in numbers),
        key=lambda part: (part.start, -part.stop),
    )
    paths = []
    begin = numbers.start
    for part in found:
      if part.start == begin:
        paths.append(_part(folder, part))
        begin = part.stop
    if begin != numbers.stop:
      raise FileNotFoundError(
          f'The output of task {begin} is not in {folder} any more.'
      )
    return paths

  def merges(self):
    levels = []
    size, count = 1, len(self.plan.tasks)
    while -(-count // size) > _PARTS_PER_MERGE:
      size *= _PARTS_PER_MERGE
      levels.append(
          [
              range(begin, min(begin + size, count))
              for begin in range(0, count, size)
          ]
      )
    return levels

  def merge(self, folder, numbers):
    path = _part(folder, numbers)
    # An earlier start may have merged more than this.
    if not any(
        numbers[0] in part and numbers[-1] in part
        for part in self._found(folder)
    ):
      if files.is_url(path):
        files.remove_folder(path)
      self.merge_parts(self.parts(folder, numbers), path)
    for part in self._found(folder):
      if part != numbers and part[0] in numbers and part[-1] in numbers:
        files.remove_folder(_part(folder, part))

  def merge_parts(self, paths: List[str], path: str) -> None:
    """Joins parts into a larger one.

    Args:
      paths: the folders of the parts, in the order of their tasks.
      path: the folder of the larger part, which must appear at once.
    """
    raise NotImplementedError

  def has_parts(self, folder: str) -> bool:
    """Returns whether parts are left, which are removed when all is done."""
    return bool(files.names_in(os.path.join(folder, PARTS)))

  def clean(self, folder):
    files.remove_folder(os.path.join(folder, PARTS))

  def _found(self, folder: str) -> List[range]:
    """Returns the numbers of the tasks of each part that is whole."""
    found = []
    for name in files.names_in(os.path.join(folder, PARTS)):
      named = _PART_NAME.fullmatch(name)
      if named and self._is_whole(os.path.join(folder, PARTS, name)):
        found.append(range(int(named[1]), int(named[2])))
    return found

  def _is_whole(self, path: str) -> bool:
    return files.exists(os.path.join(path, self.part_marker))


def _part(folder: str, numbers: range) -> str:
  """Returns the folder of the part of consecutive tasks."""
  return os.path.join(folder, PARTS, f'{numbers.start:08d}-{numbers.stop:08d}')
