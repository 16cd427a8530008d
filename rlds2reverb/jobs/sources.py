"""Data sets that a job reads, described by plain values.

A `Source` is a data set, a split and the transforms of every episode, as plain
text. A job stores it in a file, and other processes and machines open it.
`open_source` locates the data set and its files. Records of RLDS are not read;
other formats are read once, to count the episodes:

    source = make_source('/data/cartpole', config='recorded_gym')
    opened = open_source(source)
    opened.num_episodes
    for part in opened.shards:  # one Range per file
      episodes = opened.read(part)
"""

import abc
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import hashlib
import os
import pkgutil
import types
from typing import Any, NamedTuple

import gin
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import record_files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_private
from rlds2reverb.fields import configs
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.formats import python_dicts
from rlds2reverb.formats import readers
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs
from rlds2reverb.transforms import applying

# The programs in scripts/ whose flags a config may set, as in
# `convert.sequence_length = 80`. Flags of the command line take precedence.
# Other programs ignore the bindings, so several can share a config.
PROGRAMS = ('convert', 'describe', 'validate', 'serve', 'record_episodes')
for _program in PROGRAMS:
  # Gin needs only the names. The functions are never called.
  gin.register(_program, module='rlds2reverb.programs')(lambda **flags: flags)

_RLDS = 'rlds'
_PYTHON = 'python'  # The format of a Python function that returns episodes.
_FORMATS = (*readers.READERS, _RLDS, _PYTHON)

_SPLIT = 'train'  # The only split of formats other than RLDS.
# The episode field with the index of the episode in its split.
EPISODE_INDEX = 'episode_index_in_split'

# Errors of files that are damaged, missing, or shorter than recorded.
READ_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    tf.errors.UnknownError,  # Raised by readers in Python.
)

# Limits of the sample that estimates the number of steps.
_SAMPLED_FILES = 16
_SAMPLED_EPISODES = 8
_SAMPLED_BYTES = 64 << 20
_CHECKSUM_BLOCK_BYTES = 4 << 20
# TFDS stores one number of a scalar for each step.
_IS_FIRST = f'{rlds.STEPS}/{rlds.IS_FIRST}'


@dataclasses.dataclass(frozen=True)
class Source:
  """A data set, its split and its transforms; see `make_source`.

  Attributes:
    dataset: the absolute path of a folder or file, a URL, the name of a TFDS
      data set, or `module:function` with the format `python`.
    split: a TFDS split, for example `train`, `train[:10%]` or `train+test`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name or path of the config, for messages, or None.
    bindings: the text of the config, followed by the `bindings` of
      `make_source`.
    format: the name of the format, or None for RLDS.
  """

  dataset: str
  split: str = 'train'
  data_dir: str | None = None
  config: str | None = None
  bindings: str = ''
  format: str | None = None

  def get_arguments(self, name: str) -> dict[str, Any]:
    """Returns the arguments that the bindings set for a class or program.

    Args:
      name: the name in gin, such as `ConversionRules`, or one of `PROGRAMS`.
    """
    return configs.parse_arguments(name, self.bindings, self._place)

  def get_reader_options(self) -> dict[str, Any]:
    """Returns the options that the bindings set for the format's reader."""
    if self.format not in readers.READERS:
      return {}
    return self.get_arguments(readers.READERS[self.format].__name__)

  def make_rules(self, **overrides: Any) -> options_lib.ConversionRules:
    """Returns the `ConversionRules` of the bindings.

    Args:
      **overrides: rules that take precedence, unless they are None.

    Raises:
      ValueError: if a rule does not exist or its value is not valid.
    """
    rules = self.get_arguments('ConversionRules')
    rules.update((k, rule) for k, rule in overrides.items() if rule is not None)
    fields = dataclasses.fields(options_lib.ConversionRules)
    for name in rules:
      checks.check_known(
          'ConversionRules', 'rule', name, [field.name for field in fields]
      )
    return options_lib.ConversionRules(**rules)

  def parse_preprocessing(self) -> tuple[Any, list[Any]]:
    """Returns the mapping or None, and the transforms and filters."""
    mapping = None
    if self.get_arguments('StepMapping'):
      mapping = configs.parse_dataclass(
          step_mapping.StepMapping, self.bindings, self._place
      )
    transforms = configs.parse_transforms(self.bindings, self._place)
    # The transforms of a mixture come last.
    shared = self.get_arguments('Mixture').get('transforms', ())
    return mapping, [*transforms, *shared]

  @property
  def _place(self) -> str:
    return self.config or 'the gin bindings'


def make_source(
    dataset: files.PathLike,
    split: str = 'train',
    *,
    data_dir: files.PathLike | None = None,
    config: str | None = None,
    bindings: Sequence[str] = (),
    format: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Source:
  """Makes a `Source`.

  Args:
    dataset: a directory or a name, as for `load_episodes`; a file or a folder
      of another format, as for `formats.load`; or a Python function without
      arguments, `module:function`, that returns episodes, as RLDS or as for
      `from_episodes`.
    split: a TFDS split, or several, joined by `+`.
    data_dir: the directory in which TFDS looks for a data set by its name.
    config: the name of a config, or the path of a gin file. The source stores
      its text, so later edits of the file have no effect. It may bind the
      fields of `StepMapping`, which map the episodes, and
      `transform_episodes.transforms`, which run before a `Mixture`'s.
    bindings: more gin bindings, which take precedence over the config. They
      may bind options of a format's reader, as in
      `load_zarr.exclude = ['img']`.
    format: the name of a format: one of `formats.readers.READERS`, `rlds` or
      `python`. By default it is detected from the files.
    options: options of the format's reader, such as `{'episode_column': 'run'}`
      for `load_parquet`. They take precedence over bindings.

  Returns:
    The source.

  Raises:
    FileNotFoundError: if the config does not exist.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if the config or format does not exist, if its reader has no
      such option, or if a binding is of an unknown name.
  """
  dataset = os.fspath(dataset)
  path = files.expand(dataset)
  if format != _PYTHON and files.exists(path):
    dataset = path
    format = format or readers.find_format(path)
  if format is not None:
    checks.check_choice('format', format, _FORMATS)
  lines = [configs.read_config(config)[0]] if config is not None else ['']
  lines += bindings
  reader = readers.READERS.get(format or '')
  # RLDS data has no options.
  prefix, names = '', ()
  if reader is not None:
    prefix, names = reader.__name__, readers.option_names(reader)
  for option, value in (options or {}).items():
    checks.check_known(
        f'The reader of {format or _RLDS}', 'option', option, names
    )
    lines.append(f'{prefix}.{option} = {value!r}')
  source = Source(
      dataset,
      split,
      None if data_dir is None else files.expand(data_dir),
      config,
      '\n'.join(lines).strip(),
      None if format == _RLDS else format,
  )
  source.parse_preprocessing()  # Raises if the bindings are not valid.
  return source


class Range(NamedTuple):
  """Consecutive episodes of a split.

  Attributes:
    split: the name of the split, for example `train`.
    begin: the index in the split of the first episode.
    end: the index after the last episode.
  """

  split: str
  begin: int
  end: int

  @property
  def num_episodes(self) -> int:
    return self.end - self.begin

  def __str__(self) -> str:
    return f'{self.split}[{self.begin}:{self.end}]'

  @property
  def instruction(self) -> tfds.core.ReadInstruction:
    """The range as a read instruction of TFDS."""
    return tfds.core.ReadInstruction(
        self.split, from_=self.begin, to=self.end, unit='abs'
    )


def find_overlap(ranges: Sequence[Range]) -> Range | None:
  """Returns episodes that two of the ranges share, or None."""
  ordered = sorted(ranges)
  for first, second in zip(ordered, ordered[1:]):
    if first.split == second.split and second.begin < first.end:
      return second._replace(end=min(first.end, second.end))
  return None


def parse_split(
    split: str, splits: Mapping[str, Any], dataset: str
) -> list[Range]:
  """Returns the ranges of a split such as `train[:10%]+test`.

  Args:
    split: the split.
    splits: the splits of the data set, by name, each with `num_examples`.
    dataset: the data set, for messages.

  Raises:
    ValueError: if the split does not exist or repeats an episode.
  """
  for name in split.split('+'):
    name = name.partition('[')[0].strip()
    if name != 'all' and name not in splits:
      raise ValueError(
          f'{dataset} has no split {name!r}.'
          f'{checks.did_you_mean(name, splits)} Its splits are'
          f' {sorted(splits)}.'
      )
  ranges = []
  for part in tfds.core.ReadInstruction.from_spec(split).to_absolute(splits):
    size = splits[part.splitname].num_examples
    end = size if part.to is None else part.to
    if end > (begin := part.from_ or 0):
      ranges.append(Range(part.splitname, begin, end))
  if not ranges:
    raise ValueError(f'The split {split} of {dataset} has no episodes.')
  overlap = find_overlap(ranges)
  if overlap is not None:
    raise ValueError(
        f'The split {split} of {dataset} has the episodes {overlap} twice.'
    )
  return ranges


class OpenSource(abc.ABC):
  """A data set on disk, with its transforms; see `open_source`.

  Attributes:
    source: the source.
    name: the name of the data set, with its config and version.
    directory: the folder of its version, or its file.
    info: the metadata of the data set, such as its description.
    features: the TFDS features of an episode.
    ranges: the episodes of the source's split: one range per part of the split.
    shards: the same episodes: one range per file.
    is_splittable: whether a job may read the episodes in several tasks.
    num_episodes: the number of episodes.
    num_bytes: the approximate size of the episodes in the files.
    fingerprint: a hash of the metadata, different for any other data set.
    preprocessing_hash: a hash of the mapping and the transforms. It raises a
      ValueError if one is a function.
    mapping: the mapping of the source, or None.
    transforms: its transforms and filters.
    has_filter: whether a filter may drop episodes.
  """

  name: str
  directory: str
  info: Any
  features: Any
  ranges: list[Range]
  shards: list[Range]
  is_splittable = True
  num_bytes: int
  fingerprint: str

  def __init__(self, source: Source):
    """Use `open_source`."""
    self.source = source
    self.mapping, self.transforms = source.parse_preprocessing()
    self.has_filter = any(
        getattr(transform, 'has_filter', False) for transform in self.transforms
    )

  @property
  def num_episodes(self) -> int:
    return sum(part.num_episodes for part in self.ranges)

  @property
  def preprocessing_hash(self) -> str:
    return fingerprints.fingerprint(self.mapping, self.transforms)

  def read(
      self, *parts: Range, with_index: bool = False, index_shift: int = 0
  ) -> tf.data.Dataset:
    """Returns mapped and transformed episodes, in the order of the ranges.

    Args:
      *parts: the ranges of the episodes; all by default.
      with_index: whether to add a field `EPISODE_INDEX`, int64 `[]`: the index
        of the episode in its split before filtering.
      index_shift: a number to subtract from this index.

    Returns:
      A data set of episodes with stacked steps.

    Raises:
      ValueError: if the mapping or a transform does not fit the data set.
    """

    def read_stored(part):
      episodes = self._read_stored(part)
      if not with_index:
        return episodes
      if EPISODE_INDEX in episodes.element_spec:
        raise ValueError(
            f'The episodes of {self.name} have a field {EPISODE_INDEX}, which a'
            ' job adds itself. Rename it in the data set.'
        )
      return _add_index(episodes, part.begin - index_shift)

    episodes = concatenate(map(read_stored, parts or self.ranges))
    if self.mapping is not None:
      episodes = mapping_lib.map_fields(episodes, self.mapping)
    if self.transforms:
      episodes = applying.transform_episodes(episodes, self.transforms)
    return episodes

  def files(self, *parts: Range) -> list[str]:
    """Returns the distinct paths of the files of some or all ranges."""
    paths = [
        path for part in parts or self.ranges for path in self._list_files(part)
    ]
    return list(dict.fromkeys(paths))

  def find_file(self, episode: Range) -> str:
    """Returns the path of the file of an episode."""
    return self.files(episode)[0]

  def make_frame_spec(self) -> trajectory.Trajectory:
    """Returns the spec of a frame.

    Raises:
      ValueError: if the mapping or a transform does not fit the data set.
    """
    spec = self.read(self.ranges[0]).element_spec
    return specs.frame_spec(spec, get_policy_info_fn(spec))

  def compute_state(self, parts: Sequence[Range]) -> str:
    """Returns a hash of the sizes and modification times of files of ranges.

    `compute_checksum` also notices a file that was rewritten with the same size
    and time.

    Raises:
      FileNotFoundError: if a file is missing.
      OSError: if the file system cannot be reached.
    """
    return fingerprints.fingerprint(
        [[path, *files.stamp_of(path)] for path in sorted(self.files(*parts))]
    )

  def compute_checksum(self, parts: Sequence[Range]) -> str:
    """Returns a hash of the contents of the files of ranges.

    Raises:
      FileNotFoundError: if a file is missing.
      OSError: if a file cannot be read.
    """
    checksum = hashlib.sha256()
    for path in sorted(self.files(*parts)):
      if files.is_folder(path):
        continue  # A Python function has no files.
      with files.open_binary(path) as f:
        while block := f.read(_CHECKSUM_BLOCK_BYTES):
          checksum.update(block)
      checksum.update(path.encode())
    return checksum.hexdigest()

  def describe_place(self, parts: Sequence[Range]) -> str:
    """Returns the ranges and their files, for messages."""
    ranges = ', '.join(map(str, parts))
    return f'{ranges} in {", ".join(self.files(*parts))}'

  def describe_error(
      self, error: tf.errors.OpError, parts: Sequence[Range]
  ) -> str:
    """Returns a message for a read error of ranges, with the damaged file."""
    damage = self.find_damage(parts) if isinstance(error, READ_ERRORS) else ''
    if damage:
      return damage
    _, message = errors.restore(error)
    return f'{self.name}, {self.describe_place(parts)}: {message}'

  def find_damage(self, parts: Sequence[Range]) -> str:
    """Returns a message about a damaged record file of ranges, or ''."""
    return ''

  @abc.abstractmethod
  def sample_lengths(self) -> tuple[list[int], float]:
    """Reads the lengths of all or some episodes.

    Returns:
      The numbers of steps, empty if the episodes cannot be read; and an
      estimate of the steps of all episodes divided by their sum.
    """

  @abc.abstractmethod
  def _read_stored(self, part: Range) -> tf.data.Dataset:
    """Returns the unmapped episodes of a range, in their order."""

  @abc.abstractmethod
  def _list_files(self, part: Range) -> list[str]:
    """Returns the paths of the files of a range."""


class RldsSource(OpenSource):
  """RLDS on disk, as TFDS writes it."""

  def __init__(self, source: Source, builder: tfds.core.DatasetBuilder):
    super().__init__(source)
    self.info = builder.info
    self.name = self.info.full_name
    self.directory = os.fspath(builder.data_path)
    self.features = self.info.features
    self._file_format = tf_private.file_format_of(builder)
    self._splits = self.info.splits
    self.ranges = parse_split(source.split, self._splits, source.dataset)
    self.shards = []
    self.num_bytes = 0
    for part in self.ranges:
      split = self._splits[part.split]
      # Some writers do not record the size.
      num_bytes = split.num_bytes or sum(map(files.size_of, split.filepaths))
      self.num_bytes += num_bytes * part.num_episodes // split.num_examples
      end = part.begin
      for file in self._get_instructions(part):
        begin = end
        end += (
            file.take if file.take >= 0 else file.examples_in_shard - file.skip
        )
        self.shards.append(Range(part.split, begin, end))

  @property
  def fingerprint(self) -> str:  # type: ignore[override]
    """A hash of the files and splits that TFDS records."""
    return loading.fingerprint_folder(self.directory)

  def _get_instructions(self, part):
    return self._splits[part.instruction].file_instructions

  def _list_files(self, part):
    return [file.filename for file in self._get_instructions(part)]

  def sample_lengths(self):
    lengths: list[int] = []
    num_bytes = 0
    parse = {_IS_FIRST: tf.io.VarLenFeature(tf.int64)}
    with contextlib.suppress(tf.errors.OpError):  # The job reports it.
      for record in self._sample_records():
        parsed = tf.io.parse_single_example(record, parse)[_IS_FIRST]
        lengths.append(int(tf.size(parsed.values)))
        num_bytes += len(record.numpy())
        if num_bytes > _SAMPLED_BYTES:
          break
    is_complete = len(lengths) == self.num_episodes or not num_bytes
    return lengths, 1.0 if is_complete else self.num_bytes / num_bytes

  def _sample_records(self) -> Iterator[tf.Tensor]:
    """Yields the first records of evenly spread files."""
    chosen = np.linspace(0, len(self.shards) - 1, _SAMPLED_FILES).round()
    for index in np.unique(chosen.astype(int)):
      part = self.shards[index]
      (file,) = self._get_instructions(part)
      count = min(part.num_episodes, _SAMPLED_EPISODES)
      yield from record_files.read_file(
          self._file_format, file.filename, file.skip, count
      )

  def find_damage(self, parts):
    for shard in self.shards:
      for path in set(self.files(shard)) & set(self.files(*parts)):
        damage = record_files.find_damage(
            path,
            record_files.read_file(self._file_format, path, 0, -1),
            shard.num_episodes,
        )
        if damage:
          return damage
    return ''

  def _read_stored(self, part):
    # By default TFDS interleaves files, which shuffles their episodes.
    return loading.load_episodes(
        self.directory,
        part.instruction,
        read_config=tfds.ReadConfig(
            try_autocache=False, interleave_cycle_length=1
        ),
    )


class FormatSource(OpenSource):
  """A data set of another format, or a Python function.

  Its episodes are read once to count them. Readers do not know where an episode
  begins without reading the ones before, so a job reads them in one task.
  """

  is_splittable = False

  def __init__(
      self, source: Source, episodes: tf.data.Dataset, options: dict[str, Any]
  ):
    super().__init__(source)
    self.directory = source.dataset
    self.name = os.path.basename(self.directory.rstrip('/'))
    # Empty for a Python function.
    self._paths = files.local_files(files.expand(self.directory))
    self._episodes = episodes
    self.features = features_lib.features_from_spec(episodes.element_spec)
    self.info = types.SimpleNamespace(
        description=f'Read from {self.directory}, {source.format}.',
        citation='',
        homepage='',
        redistribution_info=types.SimpleNamespace(license=''),
        version='1.0.0',
    )
    self.num_bytes = files.total_size(self._paths)
    self._options = options

  @property
  def fingerprint(self) -> str:  # type: ignore[override]
    """A hash of the sizes and times of the files, and of the options."""
    stamps = [[path, *files.stamp_of(path)] for path in self._paths]
    return fingerprints.fingerprint(stamps, self.source.format, self._options)

  @functools.cached_property
  def _lengths(self) -> list[int]:
    return read_lengths(self._episodes)

  @functools.cached_property
  def ranges(self) -> list[Range]:  # type: ignore[override]
    split = types.SimpleNamespace(num_examples=len(self._lengths))
    return parse_split(self.source.split, {_SPLIT: split}, self.source.dataset)

  @property
  def shards(self) -> list[Range]:  # type: ignore[override]
    return self.ranges

  def compute_state(self, parts):
    return self.fingerprint

  def sample_lengths(self):
    lengths = [self._lengths[part.begin : part.end] for part in self.ranges]
    return sum(lengths, []), 1.0

  def _list_files(self, part):
    return self._paths or [self.directory]

  def find_file(self, episode):
    # Only the reader maps episodes to files.
    return self._paths[0] if len(self._paths) == 1 else self.directory

  def _read_stored(self, part):
    return self._episodes.skip(part.begin).take(part.num_episodes)


def open_source(source: Source) -> OpenSource:
  """Locates the data set of a source.

  Records of RLDS are not read. The readers of other formats inspect the first
  episodes, and `OpenSource.ranges` reads the data once, to count all.

  Raises:
    FileNotFoundError: if the data set does not exist.
    OSError: if the file system cannot be reached.
    ValueError: if the split does not exist or repeats an episode, or if the
      data set is not of its format.
  """
  if source.format is not None:
    options = source.get_reader_options()
    episodes = (
        _call(source.dataset)
        if source.format == _PYTHON
        else readers.load(source.dataset, source.format, **options)
    )
    return FormatSource(source, episodes, options)
  try:
    with files.os_errors(source.dataset):
      builder = loading.find_builder(source.dataset, source.data_dir)
  except FileNotFoundError as e:
    hint = files.hint(files.expand(source.dataset)) or checks.did_you_mean(
        source.dataset.partition('/')[0], tfds.list_builders()
    )
    raise FileNotFoundError(f'{e}{hint}') from None
  return RldsSource(source, builder)


def _call(name: str) -> tf.data.Dataset:
  """Returns the episodes of a Python function, `module:function`."""
  try:
    function = pkgutil.resolve_name(name)
  except (AttributeError, ImportError, ValueError) as e:
    raise ValueError(
        f'There is no function {name}, which must be module:function: {e}.'
    ) from e
  episodes = function()
  if isinstance(episodes, tf.data.Dataset):
    return episodes
  return python_dicts.from_episodes(function)


def concatenate(data: Iterable[tf.data.Dataset]) -> tf.data.Dataset:
  """Returns the episodes of several data sets in sequence."""
  return functools.reduce(lambda first, second: first.concatenate(second), data)


def _add_index(episodes: tf.data.Dataset, begin: int) -> tf.data.Dataset:
  """Adds a field `EPISODE_INDEX` that counts from `begin`, faults included."""

  def add(batch):
    fields = {**batch.fields, EPISODE_INDEX: batch.episode + begin}
    return batch._replace(fields=fields, episode=())

  if isinstance(episodes, episode_dataset.EpisodeDataset):
    batches = pipelines.map_elements(
        episode_dataset.number_episodes(episodes.batches), add
    )
    return episode_dataset.EpisodeDataset(batches, episodes.cardinality())
  return pipelines.map_elements(
      episodes.enumerate(start=begin),
      lambda index, episode: {**episode, EPISODE_INDEX: index},
  )


def read_lengths(episodes: tf.data.Dataset) -> list[int]:
  """Reads the numbers of steps of episodes; 0 for unreadable ones."""
  return _read_numbers(
      episodes,
      lambda batch: batch.row_splits[1:] - batch.row_splits[:-1],
      fields=[rlds.IS_FIRST],
      episode_fields=[],
  )


def read_indices(episodes: tf.data.Dataset) -> list[int]:
  """Reads the field `EPISODE_INDEX` of episodes."""
  return _read_numbers(
      episodes,
      lambda batch: batch.fields[EPISODE_INDEX],
      episode_fields=[EPISODE_INDEX],
  )


def _read_numbers(episodes, function, **fields) -> list[int]:
  """Returns an integer for each episode, computed by a function of batches."""
  batches = episode_dataset.batches_of(episodes, with_faults=True, **fields)
  numbers = pipelines.map_elements(batches, function)
  return [int(number) for batch in numbers for number in batch.numpy()]


def get_policy_info_fn(episode_spec: dict[str, Any]) -> Any:
  """Returns the function that makes policy info, or None."""
  step = steps_lib.get_steps_spec(episode_spec).step
  has_info = step_mapping.POLICY_INFO in step
  return step_mapping.step_policy_info if has_info else None
