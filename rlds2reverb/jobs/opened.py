"""A data set that was found on disk, with its metadata."""

import abc
import functools
import os
from typing import Any, Dict, List, Optional, Sequence

import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import versions
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.jobs import ranges as ranges_lib
from rlds2reverb.trajectories import specs
from rlds2reverb.transforms import applying

# The field of an episode that holds its index in its split.
EPISODE_INDEX = 'episode_index_in_split'


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
    num_steps: how many steps they have, if that is known.
    fingerprint: a hash that differs for any other data set.
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
  num_steps: Optional[int] = None
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
  def treatment(self) -> str:
    """A hash of the mapping and the transforms of every episode.

    Raises:
      ValueError: if a transform is a function, whose hash could not tell
        whether it has changed.
    """
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
    episodes = functools.reduce(
        tf.data.Dataset.concatenate,
        [self._read_raw(part, with_index) for part in parts or self.ranges],
    )
    if self.mapping is not None:
      episodes = mapping_lib.map_fields(episodes, self.mapping)
    if self.transforms:
      episodes = applying.transform_episodes(episodes, self.transforms)
    return episodes

  def files(self, *parts: ranges_lib.Range) -> List[str]:
    """Returns the paths of the files with the episodes of ranges, each once.

    Args:
      *parts: the ranges; all by default.
    """
    found = [
        path for part in parts or self.ranges for path in self._files_of(part)
    ]
    return list(dict.fromkeys(found))

  @abc.abstractmethod
  def _files_of(self, part: ranges_lib.Range) -> List[str]:
    """Returns the paths of the files that hold the episodes of a range."""

  def frame_spec(self) -> trajectory.Trajectory:
    """Returns the spec of a frame, without reading any.

    Raises:
      ValueError: if the mapping or a transform does not fit the data set.
    """
    spec = self.read(self.ranges[0]).element_spec
    step_spec = steps_lib.steps_spec(spec).step
    return specs.frame_spec(spec, policy_info_fn(step_spec))

  @abc.abstractmethod
  def read_stored(self, part: ranges_lib.Range) -> tf.data.Dataset:
    """Returns the episodes of a range as they are, in their order."""

  def state_of(self, parts: Sequence[ranges_lib.Range]) -> str:
    """Returns a hash of the files that hold the episodes of ranges.

    The hash changes when a file is written anew. It covers the size and the
    time of modification of each file, so none is read.

    Raises:
      FileNotFoundError: if a file is missing.
      OSError: if the file system cannot be reached.
    """
    paths = sorted(self.files(*parts))
    try:
      return identity_lib.fingerprint(
          [[path, *files.stamp_of(path)] for path in paths]
      )
    except FileNotFoundError as e:
      raise FileNotFoundError(
          f'{", ".join(map(str, parts))} of {self.name} is in'
          f' {checks.counted(len(paths), "file")}, of which'
          f' {e.filename or e} is missing.'
      ) from e

  def _read_raw(self, part, with_index):
    episodes = self.read_stored(part)
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


class RldsSource(OpenSource):
  """RLDS on disk, as TFDS writes it."""

  def __init__(self, builder: tfds.core.DatasetBuilder, *args: Any):
    super().__init__(*args)
    self.name = builder.info.full_name
    self.directory = os.fspath(builder.data_path)
    self.info = builder.info
    self.features = builder.info.features
    self._splits = builder.info.splits
    self.ranges = ranges_lib.of_split(
        self.source.split, self._splits, self.source.dataset
    )
    self.shards = [
        shard for part in self.ranges for shard in self._shards_of(part)
    ]
    self.num_bytes = sum(map(self._num_bytes, self.ranges))

  @property
  def fingerprint(self) -> str:  # type: ignore[override]
    """A hash of what TFDS records about the data set: its files and splits."""
    return versions.fingerprint(self.directory)

  def _files_of(self, part):
    return [
        instruction.filename
        for instruction in self._splits[part.instruction].file_instructions
    ]

  def read_stored(self, part):
    # TFDS reads several files in turn by default, which mixes their episodes.
    return loading.load_episodes(
        self.directory,
        part.instruction,
        read_config=tfds.ReadConfig(
            try_autocache=False, interleave_cycle_length=1
        ),
    )

  def _num_bytes(self, part):
    split = self._splits[part.split]
    num_bytes = split.num_bytes
    if not num_bytes:  # The writer did not count them.
      num_bytes = sum(tf.io.gfile.stat(path).length for path in split.filepaths)
    return num_bytes * part.num_episodes // split.num_examples

  def _shards_of(self, part):
    """Returns a range cut where one file ends and the next begins."""
    shards = []
    begin = part.begin
    for instruction in self._splits[part.instruction].file_instructions:
      end = begin + instruction.take
      if instruction.take < 0:
        end = begin + instruction.examples_in_shard - instruction.skip
      shards.append(ranges_lib.Range(part.split, begin, end))
      begin = end
    return shards


def common_frame_spec(opened: Sequence[OpenSource]) -> trajectory.Trajectory:
  """Returns the spec of a frame, which is the same for all sources.

  Raises:
    ValueError: if it is not, or as `frame_spec` does.
  """
  first, *others = opened
  spec = first.frame_spec()
  for other in others:
    if other.frame_spec() != spec:
      raise ValueError(
          f'{other.name} has other frames than {first.name}:'
          f' {other.frame_spec()} rather than {spec}. Map their fields to the'
          ' same names, dtypes and shapes.'
      )
  return spec


def policy_info_fn(step_spec: Dict[str, Any]) -> Any:
  """Returns the function that makes policy info, or None if there is none."""
  has_info = step_mapping.POLICY_INFO in step_spec
  return step_mapping.step_policy_info if has_info else None
