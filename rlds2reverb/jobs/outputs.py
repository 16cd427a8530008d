"""Where the result of a job goes: what every kind of output can do."""

import abc
import os
import shutil
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

from rlds2reverb.datasets import files
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.replay import frames as frames_lib

_PARTS = 'parts'

Receipts = Mapping[int, receipts_lib.Receipt]


class Written(NamedTuple):
  """What a task has written.

  Attributes:
    items: the number of items of each table, by its name.
    details: what the output must know of it later, as JSON values.
  """

  items: Dict[str, int]
  details: Dict[str, Any]


class Output(abc.ABC):
  """A kind of output, for one plan."""

  def __init__(self, plan: plan_lib.Plan):
    self.plan = plan

  @abc.abstractmethod
  def check(
      self, folder: str, spec: Any, receipts: Receipts
  ) -> List[str]:
    """Refuses what cannot work, before anything is written.

    Args:
      folder: the folder of the job.
      spec: the spec of a frame, a `Trajectory`.
      receipts: those of an earlier start of the job.

    Returns:
      Lines about the output, for the user who reads the plan.

    Raises:
      OSError: if there is something else at its place, or no space.
      ValueError: if the data does not fit.
    """

  @abc.abstractmethod
  def is_finished(self, folder: str, receipts: Receipts) -> bool:
    """Returns whether the whole output is there."""

  @abc.abstractmethod
  def lost(self, folder: str, receipts: Receipts) -> Dict[int, str]:
    """Returns the tasks whose output is not there any more, with the reason.

    It is asked before the tasks and after them, while `is_finished` is false.
    """

  @abc.abstractmethod
  def write(
      self,
      number: int,
      folder: str,
      frames: frames_lib.FrameSource,
      episodes: Any,
  ) -> Written:
    """Writes the output of a task; called wherever the task runs.

    Args:
      number: the number of the task.
      folder: the folder of the job.
      frames: the frames of the valid episodes.
      episodes: the episodes, with `read`, `identity` and `skipped`.
    """

  @abc.abstractmethod
  def finish(
      self,
      folder: str,
      spec: Any,
      receipts: Receipts,
      on_bytes: Callable[[int], None],
  ) -> None:
    """Makes the whole output of that of the tasks.

    Args:
      folder: the folder of the job.
      spec: see `check`.
      receipts: those of all tasks.
      on_bytes: a function that is called with the number of bytes written.
    """

  def clean(self, folder: str) -> None:
    """Removes what the tasks have left, when the output is finished."""


class FolderOutput(Output):
  """An output in a folder, to which every task contributes a part.

  The parts are folders, too, until they are joined at the end.

  Attributes:
    kind: what the output is, for the user.
  """

  kind: str

  def check(self, folder, spec, receipts):
    place = self.plan.output.place
    if any(data.directory == place for data in self.plan.data_sets):
      raise ValueError(
          f'The episodes are read from {place}, so they cannot be written'
          ' there. Choose another directory.'
      )
    if self.is_finished(folder, receipts):
      return [f'to the {self.kind} {place}']
    if self.adds:
      self.check_addition(spec)
      return [f'into the {self.kind} {place}, beside what it holds']
    if files.names_in(place):
      raise FileExistsError(
          f'{place} is not empty, and not the output of this job. Choose'
          ' another directory, or remove it.'
      )
    return [f'to a new {self.kind} {place}']

  @abc.abstractmethod
  def check_addition(self, spec: Any) -> None:
    """Raises an error if what is there cannot take repaired episodes."""

  @property
  def adds(self) -> bool:
    """Whether repaired episodes go into an output that is there."""
    return self.plan.only is not None and bool(
        files.names_in(self.plan.output.place)
    )

  def lost(self, folder, receipts):
    return {
        number: f'their output in {folder} is not there any more'
        for number in receipts
        if not os.path.isdir(self.part(folder, number))
    }

  def part(self, folder: str, number: int) -> str:
    """Returns the folder of the part of a task."""
    return os.path.join(folder, _PARTS, f'{number:05d}')

  def has_parts(self, folder: str) -> bool:
    """Returns whether parts are left, which are removed when all is done."""
    return os.path.isdir(os.path.join(folder, _PARTS))

  def clean(self, folder):
    shutil.rmtree(os.path.join(folder, _PARTS), ignore_errors=True)
