"""The outputs of jobs: the methods that every kind of output has."""

import abc
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Set

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib

PARTS = 'parts'

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

  def clean(self, folder: str) -> None:
    """Removes the parts of the tasks, when the output is finished."""


class FolderOutput(JobOutput):
  """An output in a folder, to which every task contributes a part.

  The parts are folders, too, until they are joined at the end: that of task 7
  is `parts/00000007`.

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
    whole_ones = self._whole_parts(folder)
    reason = f'their output in {folder} is not there any more'
    return {number: reason for number in receipts if number not in whole_ones}

  def discard(self, folder, numbers):
    for number in numbers:
      files.remove_folder(_part(folder, number))

  def new_part(self, folder: str, number: int) -> str:
    """Returns where the part of a task goes, and removes what is in its way.

    Locally, a part that is there is replaced when the new one is whole.
    """
    path = _part(folder, number)
    if files.is_url(path):
      files.remove_folder(path)
    return path

  def parts(self, folder: str) -> List[str]:
    """Returns the folders of the parts of all tasks, in their order.

    Raises:
      FileNotFoundError: if one is missing.
    """
    numbers = range(len(self.plan.tasks))
    missing = sorted(set(numbers) - self._whole_parts(folder))
    if missing:
      raise FileNotFoundError(
          f'The output of task {missing[0]} is not in {folder} any more.'
      )
    return [_part(folder, number) for number in numbers]

  def has_parts(self, folder: str) -> bool:
    """Returns whether parts are left, which are removed when all is done."""
    return bool(files.names_in(os.path.join(folder, PARTS)))

  def clean(self, folder):
    files.remove_folder(os.path.join(folder, PARTS))

  def _whole_parts(self, folder: str) -> Set[int]:
    """Returns the numbers of the tasks whose parts are whole."""
    return {
        int(name)
        for name in files.names_in(os.path.join(folder, PARTS))
        if name.isdigit()
        and files.exists(os.path.join(folder, PARTS, name, self.part_marker))
    }


def _part(folder: str, number: int) -> str:
  # All names have one length, because some stores find files by the start of a
  # name.
  return os.path.join(folder, PARTS, f'{number:08d}')
