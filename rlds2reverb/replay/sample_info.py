"""The info that comes with an item that was drawn, with Reverb or without."""

from typing import Any, NamedTuple

from rlds2reverb.replay import reverb


class SampleInfo(NamedTuple):
  """A stand-in for `reverb.SampleInfo`, where Reverb is not installed.

  Attributes:
    key: the key of the item, uint64.
    probability: that of drawing the item, float64.
    table_size: the number of items, int64.
    priority: the priority of the item, float64.
    times_sampled: how often the item was sampled, int32.
  """

  key: Any
  probability: Any
  table_size: Any
  priority: Any
  times_sampled: Any


def sample_info_class() -> Any:
  """Returns `reverb.SampleInfo`, or `SampleInfo` where there is no Reverb.

  Samples of a server and of this process have one structure, so that they can
  be mixed.
  """
  try:
    return reverb.SampleInfo
  except ModuleNotFoundError:
    return SampleInfo
