"""The outputs of jobs: the methods that every kind of output has."""

import abc
import errno
import os
import shutil
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import job as job_lib

Receipts = Mapping[int, job_lib.Receipt]
# The items of a task by their tables, and values for its receipt, in JSON.
Written = Tuple[Dict[str, int], Dict[str, Any]]

_FULL = (errno.ENOSPC, errno.EDQUOT)


class JobOutput(abc.ABC):
  """A kind of output, for one job.

  Attributes:
    job: the job.
    plan: its plan.
    place: where the output goes.
  """

  def __init__(self, job: job_lib.Job):
    self.job = job
    self.plan = job.plan
    self.place = job.plan.output.place

  @abc.abstractmethod
  def check(self, spec: Any, receipts: Receipts) -> List[str]:
    """Checks that the output can be written, before anything is.

    Args:
      spec: the spec of a frame, a `Trajectory`.
      receipts: the receipts of an earlier start of the job.

    Returns:
      Lines about the output, for the user who reads the plan.

    Raises:
      OSError: if there is something else at its place.
      ValueError: if the data does not fit.
    """

  def check_space(self, done: Collection[int]) -> None:
    """Raises an OSError if a disk is too full for the rest of the output.

    Args:
      done: the numbers of the tasks that are done.
    """

  @abc.abstractmethod
  def is_finished(self, receipts: Receipts) -> bool:
    """Returns whether the whole output is there."""

  @abc.abstractmethod
  def lost(self, receipts: Receipts, changed: Sequence[int]) -> Dict[int, str]:
    """Returns the tasks whose output is not there any more, with the reason.

    It is asked before the tasks and after them, while `is_finished` is false.

    Args:
      receipts: the receipts of the tasks that are done.
      changed: those of them whose data was written anew since.

    Raises:
      ValueError: if the output of the old data cannot be replaced.
    """

  @abc.abstractmethod
  def write(self, number: int, episodes: Any) -> Written:
    """Writes the output of a task; called wherever the task runs.

    Args:
      number: the number of the task.
      episodes: its `task_episodes.TaskEpisodes`.
    """

  @abc.abstractmethod
  def join(self, receipts: Receipts) -> None:
    """Makes the whole output from the outputs of all tasks."""


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

  def check(self, spec, receipts):
    if any(data.directory == self.place for data in self.plan.data_sets):
      raise ValueError(
          f'The episodes are read from {self.place}, so they cannot be written'
          ' there. Choose another directory.'
      )
    if files.exists(self.place) and not files.is_folder(self.place):
      raise FileExistsError(
          f'{self.place} is a file, where a folder has to be. Choose another'
          ' path.'
      )
    if self.is_finished(receipts):
      return [f'to the {self.kind} {self.place}']
    if self.adds:
      self._check_addition(spec)
      return [f'into the {self.kind} {self.place}, beside what it holds']
    is_unfinished = whole.is_unfinished(self.place, self.marker)
    if files.names_in(self.place) and not is_unfinished:
      raise FileExistsError(
          f'{self.place} is not empty, and not the output of this job. Choose'
          ' another directory, or remove it.'
      )
    return [f'to a new {self.kind} {self.place}']

  @property
  def adds(self) -> bool:
    """Whether repaired episodes are added to an existing output."""
    return self.plan.only is not None and bool(files.names_in(self.place))

  def check_space(self, done):
    of_disks: Dict[int, Tuple[str, int]] = {}
    for path, size in self._needed(done).items():
      if not files.is_url(path):
        path = _existing(path)
        disk = os.stat(path).st_dev
        of_disks[disk] = path, size + of_disks.get(disk, ('', 0))[1]
    for path, size in of_disks.values():
      left = shutil.disk_usage(path).free
      if left < size:
        raise OSError(
            f'The disk of {path} needs about {size / 1e6:,.1f} MB for the parts'
            f' of this job and its result, but {left / 1e6:,.1f} MB are free'
            ' there.'
        )

  def is_finished(self, receipts):
    if len(receipts) < len(self.plan.tasks):
      return False
    if self.adds:
      has_parts = self.job.whole_parts(self.part_marker)
      return self._is_added() and not has_parts
    return self._holds(receipts)

  def lost(self, receipts, changed):
    parts = self.job.whole_parts(self.part_marker)
    reason = f'their output in {self.job.folder} is not there any more'
    return {
        **dict.fromkeys(changed, 'files have changed since'),
        **dict.fromkeys(receipts.keys() - parts, reason),
    }

  def new_part(self, number: int) -> str:
    """Returns where the part of a task goes, and removes what is in its way.

    Locally, a part that is there is replaced when the new one is whole.
    """
    path = self.job.part(number)
    if files.is_url(path):
      files.remove_folder(path)
    return path

  def join(self, receipts):
    parts = list(map(self.job.part, sorted(receipts)))
    try:
      self._join(parts, receipts)
    except OSError as e:
      if e.errno not in _FULL:
        raise
      size = files.total_size(
          os.path.join(part, name)
          for part in parts
          for name in files.names_in(part)
      )
      left = shutil.disk_usage(_existing(self.place)).free
      raise OSError(
          f'{self.place} could not be written, because its disk is full: the'
          f' result takes about {size / 1e6:,.1f} MB, and {left / 1e6:,.1f} MB'
          f' are free. All tasks are done, and kept in {self.job.folder}: make'
          ' room, and the same command goes on with the result.'
      ) from e

  @abc.abstractmethod
  def _check_addition(self, spec: Any) -> None:
    """Raises an error if the existing output cannot take repaired episodes."""

  def _is_added(self) -> bool:
    """Returns whether the output has the repaired episodes of this job."""
    return True

  @abc.abstractmethod
  def _holds(self, receipts: Receipts) -> bool:
    """Returns whether the output has what the receipts of all tasks say.

    Repaired episodes may have been added since.
    """

  @abc.abstractmethod
  def _join(self, parts: Sequence[str], receipts: Receipts) -> None:
    """Makes the whole output from its parts, those of the tasks in order."""

  def _needed(self, done: Collection[int]) -> Dict[str, int]:
    """Returns about how many bytes are still to be written, by folder.

    The parts stay until they are joined.
    """
    left = total = 0.0
    for number, task in enumerate(self.plan.tasks):
      data_set = self.plan.data_sets[task.source]
      size = data_set.num_bytes / data_set.num_episodes * task.num_episodes
      total += size
      left += size * (number not in done)
    return {self.job.folder: int(left), self.place: int(total)}


def _existing(path: str) -> str:
  """Returns a local path, or the folder above it that is there."""
  while not os.path.exists(path):
    path = os.path.dirname(path)
  return path
