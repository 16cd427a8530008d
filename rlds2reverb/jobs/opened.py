"""A data set that was found, with its metadata: of RLDS or another format."""

import abc
import contextlib
import functools
import os
import types
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import saving
from rlds2reverb.datasets import versions
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.trajectories import specs
from rlds2reverb.transforms import applying

# The field of an episode that holds its index in its split.
EPISODE_INDEX = 'episode_index_in_split'
# How much is read to estimate the number of steps.
_SAMPLED_FILES = 16
_SAMPLED_EPISODES = 8
_SAMPLED_BYTES = 64 << 20
# TFDS stores one number of a scalar for each step.
_IS_FIRST = f'{rlds.STEPS}/{rlds.IS_FIRST}'
_SPLIT = 'train'  # The only one of a data set of another format than RLDS.


class OpenSource(abc.ABC):
  """A data set, and how its episodes are prepared; see `sources.open_source`.

  Attributes:
    source: the source.
    name: the name of the data set, with its config and version.
    directory: the folder of its version, or its file.
    info: the metadata of the data set, such as its description.
    features: the TFDS features of an episode.
    ranges: the episodes of the source's split: one range for each part of it.
    shards: the same episodes, with a range for each file.
    is_one_task: whether a job cannot cut it into tasks.
    num_episodes: how many episodes there are.
    num_bytes: about how many bytes of the files they take.
    fingerprint: a hash that differs for any other data set.
    preprocessing_hash: a hash of the mapping and the transforms, unless one is
      a function, which is a ValueError.
    mapping: the mapping of the source, or None.
    transforms: its transforms and filters.
    has_filter: whether a filter may leave episodes out.
  """

  name: str
  directory: str
  info: Any
  features: Any
  ranges: List[ranges_lib.Range]
  shards: List[ranges_lib.Range]
  is_one_task = False
  num_bytes: int
  fingerprint: str

  def __init__(
      self,
      source: Any,
      mapping: Optional[step_mapping.StepMapping],
      transforms: Sequence[Any],
  ):
    """Use `sources.open_source`."""
    self.source = source
    self.mapping = mapping
    self.transforms = transforms
    self.has_filter = any(
        getattr(transform, 'has_filter', False) for transform in transforms
    )

  @property
  def num_episodes(self) -> int:
    return sum(part.num_episodes for part in self.ranges)

  @property
  def preprocessing_hash(self) -> str:
    return identity_lib.fingerprint(self.mapping, self.transforms)

  def read(
      self, *parts: ranges_lib.Range, with_index: bool = False
  ) -> tf.data.Dataset:
    """Returns episodes, mapped and transformed, one range after the other.

    Args:
      *parts: which episodes; all by default.
      with_index: whether an episode gets a field `EPISODE_INDEX`, int64 `[]`:
        its index in its split, which no filter changes.

    Returns:
      A data set of episodes with stacked steps.

    Raises:
      ValueError: if the mapping or a transform does not fit the data set.
    """

    def stored(part):
      episodes = self._read_stored(part)
      if not with_index:
        return episodes
      if EPISODE_INDEX in episodes.element_spec:
        raise ValueError(
            f'The episodes of {self.name} have a field {EPISODE_INDEX}, which a'
            ' job adds itself. Rename it in the data set.'
        )
      return episodes.enumerate(start=part.begin).map(
          lambda index, episode: {**episode, EPISODE_INDEX: index}
      )

    episodes = functools.reduce(
        tf.data.Dataset.concatenate, map(stored, parts or self.ranges)
    )
    if self.mapping is not None:
      episodes = mapping_lib.map_fields(episodes, self.mapping)
    if self.transforms:
      episodes = applying.transform_episodes(episodes, self.transforms)
    return episodes

  def files(self, *parts: ranges_lib.Range) -> List[str]:
    """Returns the paths of the files with ranges, or all, each once."""
    found = [
        path for part in parts or self.ranges for path in self._files_of(part)
    ]
    return list(dict.fromkeys(found))

  def frame_spec(self) -> trajectory.Trajectory:
    """Returns the spec of a frame, without reading any.

    Raises:
      ValueError: if the mapping or a transform does not fit the data set.
    """
    spec = self.read(self.ranges[0]).element_spec
    return specs.frame_spec(spec, policy_info_fn(spec))

  def state_of(self, parts: Sequence[ranges_lib.Range]) -> str:
    """Returns a hash of the files that hold the episodes of ranges.

    The hash changes when a file is written anew. It covers the size and the
    time of modification of each file, so none is read.

    Raises:
      FileNotFoundError: if a file is missing.
      OSError: if the file system cannot be reached.
    """
    return identity_lib.fingerprint(
        [[path, *files.stamp_of(path)] for path in sorted(self.files(*parts))]
    )

  @abc.abstractmethod
  def sample(self) -> Tuple[List[int], float]:
    """Reads the lengths of some episodes, or of all.

    Returns:
      The lengths, none if the episodes cannot be read; and about how many times
      as many steps all episodes have.
    """

  @abc.abstractmethod
  def _read_stored(self, part: ranges_lib.Range) -> tf.data.Dataset:
    """Returns the episodes of a range as they are, in their order."""

  @abc.abstractmethod
  def _files_of(self, part: ranges_lib.Range) -> List[str]:
    """Returns the paths of the files that hold the episodes of a range."""


class RldsSource(OpenSource):
  """RLDS on disk, as TFDS writes it."""

  def __init__(self, builder: tfds.core.DatasetBuilder, *args: Any):
    super().__init__(*args)
    self.info = builder.info
    self.name = self.info.full_name
    self.directory = os.fspath(builder.data_path)
    self.features = self.info.features
    self._splits = self.info.splits
    self.ranges = ranges_lib.of_split(
        self.source.split, self._splits, self.source.dataset
    )
    self.shards = []
    self.num_bytes = 0
    for part in self.ranges:
      split = self._splits[part.split]
      # A writer need not have counted them.
      num_bytes = split.num_bytes or sum(map(files.size_of, split.filepaths))
      self.num_bytes += num_bytes * part.num_episodes // split.num_examples
      end = part.begin
      for file in self._instructions(part):
        begin = end
        end += (
            file.take if file.take >= 0 else file.examples_in_shard - file.skip
        )
        self.shards.append(ranges_lib.Range(part.split, begin, end))

  @property
  def fingerprint(self) -> str:  # type: ignore[override]
    """A hash of what TFDS records about the data set: its files and splits."""
    return versions.fingerprint(self.directory)

  def _instructions(self, part):
    return self._splits[part.instruction].file_instructions

  def _files_of(self, part):
    return [file.filename for file in self._instructions(part)]

  def sample(self):
    lengths: List[int] = []
    num_bytes = 0
    parse = {_IS_FIRST: tf.io.VarLenFeature(tf.int64)}
    with contextlib.suppress(tf.errors.OpError):  # The job reports it.
      for record in self._first_records():
        parsed = tf.io.parse_single_example(record, parse)[_IS_FIRST]
        lengths.append(int(tf.size(parsed.values)))
        num_bytes += len(record.numpy())
        if num_bytes > _SAMPLED_BYTES:
          break
    is_all = len(lengths) == self.num_episodes or not num_bytes
    return lengths, 1.0 if is_all else self.num_bytes / num_bytes

  def _first_records(self) -> Iterator[tf.Tensor]:
    """Yields the first records of some files, spread over all of them."""
    chosen = np.linspace(0, len(self.shards) - 1, _SAMPLED_FILES).round()
    for index in np.unique(chosen.astype(int)):
      part = self.shards[index]
      (file,) = self._instructions(part)
      records = tf.data.TFRecordDataset(file.filename).skip(file.skip)
      yield from records.take(min(part.num_episodes, _SAMPLED_EPISODES))

  def _read_stored(self, part):
    # TFDS reads several files in turn by default, which mixes their episodes.
    return loading.load_episodes(
        self.directory,
        part.instruction,
        read_config=tfds.ReadConfig(
            try_autocache=False, interleave_cycle_length=1
        ),
    )


class FormatSource(OpenSource):
  """A data set of another format, or a function of Python.

  Only its reader, if anything, knows where an episode begins, so it is one task
  of a job. Its episodes are read once to count them.
  """

  is_one_task = True

  def __init__(
      self, episodes: tf.data.Dataset, options: Dict[str, Any], *args: Any
  ):
    super().__init__(*args)
    form, self.directory = self.source.format, self.source.dataset
    self.name = os.path.basename(self.directory.rstrip('/'))
    # A function of Python has none.
    self._paths = files.local_files(files.expand(self.directory))
    self._episodes = episodes
    self.features = saving.features_of(episodes.element_spec)
    self.info = types.SimpleNamespace(
        description=f'Read from {self.directory}, {form}.',
        citation='',
        homepage='',
        redistribution_info=types.SimpleNamespace(license=''),
        version='1.0.0',
    )
    self.num_bytes = files.total_size(self._paths)
    self._identity = form, options

  @property
  def fingerprint(self) -> str:  # type: ignore[override]
    """A hash of the files, by their sizes and times, and of the options."""
    stamps = [[path, *files.stamp_of(path)] for path in self._paths]
    return identity_lib.fingerprint(stamps, *self._identity)

  @functools.cached_property
  def _lengths(self) -> List[int]:
    return lengths_of(self._episodes)

  @functools.cached_property
  def ranges(self) -> List[ranges_lib.Range]:  # type: ignore[override]
    split = types.SimpleNamespace(num_examples=len(self._lengths))
    return ranges_lib.of_split(
        self.source.split, {_SPLIT: split}, self.source.dataset
    )

  @property
  def shards(self) -> List[ranges_lib.Range]:  # type: ignore[override]
    return self.ranges

  def state_of(self, parts):
    return self.fingerprint

  def sample(self):
    lengths = [self._lengths[part.begin : part.end] for part in self.ranges]
    return sum(lengths, []), 1.0

  def _files_of(self, part):
    return self._paths or [self.directory]

  def _read_stored(self, part):
    return self._episodes.skip(part.begin).take(part.num_episodes)


def lengths_of(episodes: tf.data.Dataset) -> List[int]:
  """Reads the numbers of steps of episodes with stacked steps."""
  lengths = episodes.map(
      lambda episode: tf.shape(episode[rlds.STEPS][rlds.IS_FIRST])[0]
  )
  return list(map(int, lengths))


def policy_info_fn(episode_spec: Dict[str, Any]) -> Any:
  """Returns the function that makes policy info, or None if there is none."""
  step = steps_lib.steps_spec(episode_spec).step
  has_info = step_mapping.POLICY_INFO in step
  return step_mapping.step_policy_info if has_info else None
