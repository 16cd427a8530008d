"""The outputs of jobs: what every kind has, and a Reverb checkpoint."""

import abc
import os
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.jobs import job as job_lib
from rlds2reverb.replay.checkpoint import joining
from rlds2reverb.replay.checkpoint import merge
from rlds2reverb.replay.checkpoint import records
from rlds2reverb.replay.checkpoint import write

# Items of later tasks have later dates, whenever they were made. A task has
# fewer items than there are nanoseconds between the dates of two tasks.
_FIRST_DATE = 1_500_000_000 * 10**9
_DATES_PER_TASK = 1 << 40

Receipts = Mapping[int, job_lib.Receipt]
# The items of a task by their tables, and values for its receipt, in JSON.
Written = Tuple[Dict[str, int], Dict[str, Any]]


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
    if files.exists(self.place) and not files.is_folder(self.place):
      raise FileExistsError(
          f'{self.place} is a file, where a folder has to be. Choose another'
          ' path.'
      )
    if self.is_finished(receipts):
      return [f'to the {self.kind} {self.place}']
    if self.adds:
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
    return self.plan.only is not None and self._is_whole()

  def _is_whole(self) -> bool:
    return files.exists(os.path.join(self.place, self.marker))

  def is_finished(self, receipts):
    if len(receipts) < len(self.plan.tasks):
      return False
    if self.adds:  # The parts are removed when they were added.
      return not self.job.whole_parts(self.part_marker)
    return self._is_whole()

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


class CheckpointOutput(FolderOutput):
  """Writes a checkpoint of the items of each task."""

  kind = 'Reverb checkpoint'
  marker = records.DONE
  part_marker = records.DONE

  def write(self, number, episodes):
    items = write.write_checkpoint(
        episodes.frames(),
        self.new_part(number),
        inserted_at=_FIRST_DATE + number * _DATES_PER_TASK,
        replace=True,
    )
    return items, {}

  def join(self, receipts):
    parts = list(map(self.job.part, sorted(receipts)))
    if not self.adds:
      joining.join_checkpoints(parts, self.place)
      return
    # Adding items that are there already changes nothing, so this may be
    # interrupted and done again.
    merge.merge_reverb_checkpoints(
        [self.place, *parts], self.place, overwrite=True
    )
