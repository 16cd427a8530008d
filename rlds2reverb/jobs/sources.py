"""Where the episodes of a job come from, as a value that can be stored.

A `Source` names a data set, a split, and what is done to every episode. It is
plain text, so a job can keep it in a file, and another process or machine can
open it. `open_source` finds the data set, and tells how many episodes there
are, and in which files, without reading any:

    source = make_source('/data/cartpole', config='recorded_gym')
    opened = open_source(source)
    opened.num_episodes
    for files in opened.shards:  # one Range for each file
      episodes = opened.read(files)
"""

import dataclasses
import functools
import os
import re
from typing import Any, List, NamedTuple, Optional, Sequence

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import versions
from rlds2reverb.episodes import checks
from rlds2reverb.fields import bindings as bindings_lib
from rlds2reverb.fields import named_mappings
from rlds2reverb.fields import named_mixtures  # noqa: F401
from rlds2reverb.fields import step_mapping
from rlds2reverb.jobs import programs  # noqa: F401
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.transforms import base
from rlds2reverb.transforms import named_transforms

# The field of an episode that holds its index in its split.
EPISODE_INDEX = 'episode_index_in_split'


@dataclasses.dataclass(frozen=True)
class Source:
  """Says where episodes come from, and what is done to each; see `make_source`.

  Attributes:
    dataset: the absolute path of a data set's folder, its URL, or the name of a
      TFDS data set.
    split: a TFDS split, for example `train`, `train[:10%]` or `train+test`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name or the path of the config, for messages; None if there is
      none.
    bindings: gin bindings, the config's text and what follows it.
  """

  dataset: str
  split: str = 'train'
  data_dir: Optional[str] = None
  config: Optional[str] = None
  bindings: str = ''


class Range(NamedTuple):
  """Consecutive episodes of a split.

  Attributes:
    split: the name of the split, `train` for example.
    begin: the index in the split of the first episode.
    end: the index after that of the last episode.
  """

  split: str
  begin: int
  end: int

  @property
  def num_episodes(self) -> int:
    return self.end - self.begin

  def __str__(self) -> str:
    return f'{self.split}[{self.begin}:{self.end}]'


def make_source(
    dataset: files.PathLike,
    split: str = 'train',
    *,
    data_dir: Optional[files.PathLike] = None,
    config: Optional[str] = None,
    bindings: Sequence[str] = (),
) -> Source:
  """Makes a `Source`.

  Args:
    dataset: a directory or a name, as `load_episodes` takes it.
    split: a TFDS split, or several, joined by `+`.
    data_dir: see `load_episodes`.
    config: the name of a config, or the path of a gin file. Its text becomes a
      part of the source, so that later changes of the file change nothing. It
      may bind the fields of `StepMapping`, by which the episodes are mapped,
      and `transform_episodes.transforms`, which a `Mixture`'s follow.
    bindings: more gin bindings, which take precedence over those of the config.

  Returns:
    The source.

  Raises:
    FileNotFoundError: if there is no such config.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if there is no config of that name, or if a binding is of
      something that does not exist.
  """
  dataset = os.fspath(dataset)
  directory = files.expand(dataset)
  if files.is_folder(directory):
    dataset = directory
  text = ''
  if config is not None:
    with files.open_text(named_mappings.find_config(config)) as f:
      text = f.read()
  source = Source(
      dataset,
      split,
      None if data_dir is None else files.expand(data_dir),
      config,
      '\n'.join([text, *bindings]).strip(),
  )
  mapping_of(source)
  transforms_of(source)
  return source


def mapping_of(source: Source) -> Optional[step_mapping.StepMapping]:
  """Returns the mapping of a source, or None if its data is RLDS already."""
  return named_mappings.mapping_from(source.bindings, _file_of(source))


def transforms_of(source: Source) -> List[Any]:
  """Returns the transforms and filters of a source, its mixture's last."""
  own = named_transforms.transforms_from(source.bindings, _file_of(source))
  shared = arguments_of('Mixture', source).get('transforms', ())
  return [*own, *shared]


def arguments_of(name: str, source: Source) -> Any:
  """Returns what the bindings of a source bind for a class or a program.

  Args:
    name: the name under which gin knows it: `ConversionRules`, for example, or
      one of `programs.PROGRAMS`.
    source: the source.

  Returns:
    A dict of the arguments by name, which is empty if none is bound.
  """
  file = _file_of(source)
  return bindings_lib.arguments_of(
      name, bindings_lib.read(source.bindings, file), file
  )


def rules_of(source: Source, **chosen: Any) -> rules_lib.ConversionRules:
  """Returns the rules that a source binds for `ConversionRules`.

  Args:
    source: the source.
    **chosen: rules that take precedence, unless they are None.

  Raises:
    ValueError: if there is no such rule, or a value is not valid.
  """
  rules = arguments_of('ConversionRules', source)
  rules.update((key, rule) for key, rule in chosen.items() if rule is not None)
  known = [
      field.name for field in dataclasses.fields(rules_lib.ConversionRules)
  ]
  for name in rules:
    if name not in known:
      raise ValueError(
          f'ConversionRules has no {name}.{checks.did_you_mean(name, known)}'
      )
  return rules_lib.ConversionRules(**rules)


def open_source(source: Source) -> 'OpenSource':
  """Finds the data set of a source, without reading an episode.

  Raises:
    FileNotFoundError: if there is no such data set on disk.
    OSError: if the file system cannot be reached.
    ValueError: if it has no such split, if an episode would be read twice, or
      if it is not an RLDS data set.
  """
  try:
    with files.os_errors(source.dataset):
      builder = loading.find_builder(source.dataset, source.data_dir)
  except FileNotFoundError as e:
    raise FileNotFoundError(f'{e}{_similar_data_sets(source)}') from None
  return OpenSource(source, builder)


class OpenSource:
  """A data set on disk, and what its files say without being read.

  Attributes:
    source: the source.
    name: the name of the data set, with its config and version.
    directory: the folder of its version.
    info: what TFDS knows of the data set: its description, for example.
    features: the TFDS features of an episode.
    ranges: the episodes of the source's split: one range for each part of it.
    shards: the same episodes, with a range for each file.
    num_episodes: how many episodes there are.
    num_bytes: about how many bytes of the files they take.
    mapping: the mapping of the source, or None.
    transforms: its transforms and filters.
  """

  def __init__(self, source: Source, builder: tfds.core.DatasetBuilder):
    """Use `open_source`."""
    self.source = source
    self.name = builder.info.full_name
    self.directory = os.fspath(builder.data_path)
    self.info = builder.info
    self.features = builder.info.features
    self._splits = builder.info.splits
    self.ranges = _ranges(source, self._splits)
    self.shards = [
        shard for part in self.ranges for shard in self._shards_of(part)
    ]
    self.num_episodes = sum(part.num_episodes for part in self.ranges)
    self.num_bytes = sum(map(self._num_bytes, self.ranges))
    self.mapping = mapping_of(source)
    self.transforms = transforms_of(source)

  @property
  def fingerprint(self) -> str:
    """A hash of what TFDS records about the data set: its files and splits."""
    return versions.fingerprint(self.directory)

  @property
  def has_filter(self) -> bool:
    """Whether a filter may leave episodes out."""
    return any(
        isinstance(transform, base.EpisodeFilter)
        or isinstance(transform, base.Compose)
        and transform.has_filter
        for transform in self.transforms
    )

  @property
  def treatment(self) -> str:
    """A hash of what is done to every episode.

    Raises:
      ValueError: if a transform is a function, of which it cannot be known
        whether it stays the same.
    """
    return identity_lib.fingerprint(self.mapping, self.transforms)

  def read(
      self, part: Optional[Range] = None, *, with_index: bool = False
  ) -> tf.data.Dataset:
    """Returns episodes, mapped and transformed, in the order of the data set.

    Args:
      part: which episodes; all by default.
      with_index: whether an episode gets a field `EPISODE_INDEX`, int64 `[]`:
        its index in its split, which no filter changes.

    Returns:
      A data set of episodes with stacked steps.

    Raises:
      ValueError: if the mapping or a transform does not fit the data set.
    """
    parts = self.ranges if part is None else [part]
    episodes = [self._read_raw(part, with_index) for part in parts]
    episodes = functools.reduce(tf.data.Dataset.concatenate, episodes)
    if self.mapping is not None:
      episodes = step_mapping.map_fields(episodes, self.mapping)
    if self.transforms:
      episodes = base.transform_episodes(episodes, self.transforms)
    return episodes

  def files(self, part: Range) -> List[str]:
    """Returns the paths of the files that hold the episodes of a range."""
    return [
        instruction.filename
        for instruction in self._splits[_instruction(part)].file_instructions
    ]

  def state_of(self, parts: Sequence[Range]) -> str:
    """Returns a hash of the files that hold the episodes of ranges.

    It is another one when a file was written anew. Of a file, its size and its
    time of modification count, so that none has to be read.

    Raises:
      FileNotFoundError: if a file is missing.
      OSError: if the file system cannot be reached.
    """
    paths = sorted({path for part in parts for path in self.files(part)})
    try:
      return identity_lib.fingerprint(
          [[path, *files.stamp_of(path)] for path in paths]
      )
    except FileNotFoundError as e:
      raise FileNotFoundError(
          f'{", ".join(map(str, parts))} of {self.name} is in'
          f' {len(paths)} files, of which {e.filename or e} is missing.'
      ) from e

  def file_of(self, split: str, episode: int) -> str:
    """Returns the path of the file that holds an episode."""
    (path,) = self.files(Range(split, episode, episode + 1))
    return path

  def _read_raw(self, part, with_index):
    # TFDS reads several files in turn by default, which mixes their episodes.
    episodes = loading.load_episodes(
        self.directory,
        _instruction(part),
        read_config=tfds.ReadConfig(
            try_autocache=False, interleave_cycle_length=1
        ),
    )
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

  def _num_bytes(self, part):
    split = self._splits[part.split]
    num_bytes = split.num_bytes
    if not num_bytes:  # Whoever wrote the data set did not count them.
      num_bytes = sum(tf.io.gfile.stat(path).length for path in split.filepaths)
    return num_bytes * part.num_episodes // split.num_examples

  def _shards_of(self, part):
    """Returns a range cut where one file ends and the next begins."""
    shards = []
    begin = part.begin
    for instruction in self._splits[_instruction(part)].file_instructions:
      end = begin + instruction.take
      if instruction.take < 0:
        end = begin + instruction.examples_in_shard - instruction.skip
      shards.append(Range(part.split, begin, end))
      begin = end
    return shards


def _instruction(part: Range) -> tfds.core.ReadInstruction:
  return tfds.core.ReadInstruction(
      part.split, from_=part.begin, to=part.end, unit='abs'
  )


def _ranges(source: Source, splits) -> List[Range]:
  """Returns the ranges that the split of a source stands for."""
  for name in re.split(r'\+', source.split):
    name = name.partition('[')[0].strip()
    if name != 'all' and name not in splits:
      raise ValueError(
          f'{source.dataset} has no split {name!r}.'
          f'{checks.did_you_mean(name, splits)} Its splits are'
          f' {sorted(splits)}.'
      )
  ranges = []
  for one in tfds.core.ReadInstruction.from_spec(source.split).to_absolute(
      splits
  ):
    size = splits[one.splitname].num_examples
    part = Range(
        one.splitname,
        0 if one.from_ is None else one.from_,
        size if one.to is None else one.to,
    )
    if part.num_episodes > 0:
      ranges.append(part)
  if not ranges:
    raise ValueError(
        f'The split {source.split} of {source.dataset} has no episodes.'
    )
  in_order = sorted(ranges)
  for before, after in zip(in_order, in_order[1:]):
    if before.split == after.split and after.begin < before.end:
      raise ValueError(
          f'The split {source.split} of {source.dataset} has the episodes'
          f' {Range(after.split, after.begin, min(before.end, after.end))}'
          ' twice.'
      )
  return ranges


def _similar_data_sets(source: Source) -> str:
  """Returns a sentence that suggests a data set, or an empty string."""
  folder, name = os.path.split(files.expand(source.dataset))
  return checks.did_you_mean(
      name, files.names_in(folder)
  ) or checks.did_you_mean(
      source.dataset.partition('/')[0], tfds.list_builders()
  )


def _file_of(source: Source) -> str:
  return source.config or 'the gin bindings'
