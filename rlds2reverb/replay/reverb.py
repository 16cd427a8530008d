"""The package `reverb`, imported lazily.

Reverb has no release for Python 3.12 and later. Functions that need no Reverb
server work without it, and do not import it.
"""

import importlib
from typing import Any, NamedTuple

_RELEASE = 'dm-reverb==0.14.0'


def __getattr__(name: str) -> Any:
  """Returns an attribute of the package `reverb`.

  Raises:
    ModuleNotFoundError: if Reverb is not installed.
  """
  if name.startswith('__'):
    raise AttributeError(name)
  try:
    return getattr(importlib.import_module('reverb'), name)
  except ModuleNotFoundError as error:
    if error.name != 'reverb':
      raise
    raise ModuleNotFoundError(
        'This needs Reverb, which is not installed: with Python 3.10 or 3.11,'
        f' pip install {_RELEASE}. Later Python versions have no release.',
        name='reverb',
    ) from error


class SampleInfo(NamedTuple):
  """A substitute for `reverb.SampleInfo` if Reverb is not installed.

  Attributes:
    key: the key of the item, uint64.
    probability: the probability of drawing the item, float64.
    table_size: the number of items, int64.
    priority: the priority of the item, float64.
    times_sampled: the number of times the item was sampled, int32.
  """

  key: Any
  probability: Any
  table_size: Any
  priority: Any
  times_sampled: Any


def sample_info_class() -> Any:
  """Returns `reverb.SampleInfo`, or its substitute without Reverb.

  Samples of a server and of a local replay buffer then have the same structure,
  so data sets of both can be mixed.
  """
  try:
    return __getattr__('SampleInfo')
  except ModuleNotFoundError:
    return SampleInfo
