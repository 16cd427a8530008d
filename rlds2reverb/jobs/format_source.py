"""Data sets of other formats, and functions of Python, as sources of jobs.

Only the reader of such a source, if anything, knows where an episode begins.
The source is therefore one task of a job, and its episodes are counted by
reading them once.
"""

import functools
import importlib
import os
import types
from typing import Any, Dict, List, NamedTuple

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import python_dicts
from rlds2reverb.formats import readers
from rlds2reverb.jobs import opened
from rlds2reverb.jobs import ranges as ranges_lib

RLDS = 'rlds'
PYTHON = 'python'
FORMATS = (*readers.READERS, RLDS, PYTHON)
_SPLIT = 'train'


class _Counts(NamedTuple):
  """The counts of a data set; `num_examples` is the number of episodes."""

  num_examples: int
  num_steps: int


class FormatSource(opened.OpenSource):
  """A data set of another format, which has one split, `train`."""

  is_one_task = True

  def __init__(self, options: Dict[str, Any], *args: Any):
    super().__init__(*args)
    self.directory = self.source.dataset
    self.name = os.path.basename(self.directory.rstrip('/'))
    self._options = options
    self._episodes = self._load()
    self.features = saving.features_of(self._episodes.element_spec)
    self.info = types.SimpleNamespace(
        full_name=self.name,
        description=f'Read from {self.directory}, {self.source.format}.',
        citation='',
        homepage='',
        redistribution_info=types.SimpleNamespace(license=''),
        version='1.0.0',
        features=self.features,
    )
    self.num_bytes = sum(files.size_of(path) for path in self._paths)

  @functools.cached_property
  def _counts(self) -> _Counts:
    # A job opens its sources often. They are counted only once.
    return _count(self._episodes)

  @property
  def num_steps(self) -> int:  # type: ignore[override]
    return self._counts.num_steps

  @functools.cached_property
  def ranges(self) -> List[ranges_lib.Range]:  # type: ignore[override]
    return ranges_lib.of_split(
        self.source.split, {_SPLIT: self._counts}, self.source.dataset
    )

  @property
  def shards(self) -> List[ranges_lib.Range]:  # type: ignore[override]
    return self.ranges

  @property
  def fingerprint(self) -> str:  # type: ignore[override]
    """A hash of the files, by their sizes and times, and of the options."""
    stamps = [[path, *files.stamp_of(path)] for path in self._paths]
    return identity_lib.fingerprint(stamps, self.source.format, self._options)

  def _files_of(self, part):
    return self._paths or [self.directory]

  def state_of(self, parts):
    return self.fingerprint

  def read_stored(self, part):
    return self._episodes.skip(part.begin).take(part.num_episodes)

  @functools.cached_property
  def _paths(self) -> List[str]:
    if self.source.format == PYTHON:
      return []
    return files.local_files(files.expand(self.directory))

  def _load(self) -> tf.data.Dataset:
    if self.source.format != PYTHON:
      return readers.load(self.directory, self.source.format, **self._options)
    function = _function(self.directory)
    episodes = function()
    if isinstance(episodes, tf.data.Dataset):
      return episodes
    return python_dicts.from_episodes(function)


def _function(name: str) -> Any:
  """Returns a function of Python, `module:function`."""
  module, _, function = name.partition(':')
  if not function:
    raise ValueError(
        f'A source of the format python must be module:function, but is {name}.'
    )
  try:
    return getattr(importlib.import_module(module), function)
  except (AttributeError, ImportError) as e:
    raise ValueError(f'There is no function {name}: {e}.') from e


def _count(episodes: tf.data.Dataset) -> _Counts:
  """Counts episodes and their steps, in one pass."""
  lengths = episodes.map(
      lambda episode: tf.shape(
          episode[rlds.STEPS][rlds.IS_FIRST], out_type=tf.int64
      )[0]
  )
  counts = lengths.reduce(
      tf.zeros([2], tf.int64), lambda sums, length: sums + [1, length]
  )
  return _Counts(*map(int, counts.numpy()))
