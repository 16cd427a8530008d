"""Where the result of a job goes: what every kind of output can do."""

import abc
from typing import Any, Callable, Dict, List, Mapping, NamedTuple

from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import receipts as receipts_lib
from rlds2reverb.replay import frames as frames_lib

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
