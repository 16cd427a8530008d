"""Finds RLDS data sets on disk, in the TFDS format, and reads their episodes.

A directory holds one version of a data set, or a folder for each of its
versions. A name is looked up by TFDS. Episodes are read in batches if possible,
see `batch_reading`, and otherwise one by one.
"""

import dataclasses
import functools
import os
from typing import Any

from absl import logging
from google.protobuf import json_format
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import batch_reading
from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import format_registry
from rlds2reverb.datasets import record_files
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import tf_private

# TFDS writes this file into the folder of every version of a data set.
INFO_FILE = 'dataset_info.json'
# HuggingFace writes a file of this name, too, and next to it this one.
_HUGGINGFACE_FILE = 'state.json'

# The number of episodes of a file above which its size is checked.
_MANY_EPISODES = 1 << 20


def load_episodes(
    name_or_directory: files.PathLike,
    split: str = 'train',
    *,
    data_dir: files.PathLike | None = None,
    decoders: dict[str, Any] | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    shuffle_files: bool = False,
    read_config: tfds.ReadConfig | None = None,
) -> tf.data.Dataset:
  """Reads an RLDS data set as episodes with stacked steps.

  The steps of an episode are read and decoded together, without work for each
  step. The entire episode is then in memory. If its images are too large for
  that, let `decoders` leave them encoded.

  Args:
    name_or_directory: the directory of a data set's version, which has its
      `dataset_info.json`; the directory that holds its versions, of which the
      newest is read; or the name of a TFDS data set that is prepared in
      `data_dir`, for example `d4rl_mujoco_halfcheetah/v2-medium`. A directory
      is a path, or a URL that TensorFlow can read.
    split: a TFDS split, for example `train`, `train[:10%]` or `train+test`.
    data_dir: the directory in which TFDS looks for a data set by its name; by
      default the directory of TFDS.
    decoders: TFDS decoders of single features, nested as the features are.
      `{'steps': {'observation': {'image': tfds.decode.SkipDecoding()}}}`, for
      example, leaves the images encoded.
    num_shards: the number of parts, of nearly as many episodes each, into which
      the split is divided.
    shard_index: the part that is read, counted from 0.
    shuffle_files: whether the files are read in a random order.
    read_config: further options of TFDS. By default nothing is cached, so that
      memory stays bounded.

  Returns:
    A data set of episodes. The `steps` of an episode are a dict of tensors
    `[T, ...]`; the other features of the episode are unchanged.

  Raises:
    FileNotFoundError: if there is no such data set on disk.
    OSError: if the file system cannot be reached.
    ValueError: if the data set has no such split, if `split` is not one split,
      if its episodes have no steps, if `num_shards` is not a positive integer,
      or if `shard_index` is not an integer from 0 to `num_shards - 1`.
    InvalidArgumentError: while iterating, if an episode cannot be read as its
      features say, or its step fields differ in length; or if it has images of
      several sizes, and `decoders` does not leave them encoded. The episodes
      before it come out first.
  """
  checks.check_positive('num_shards', num_shards)
  checks.check_not_negative('shard_index', shard_index)
  if shard_index >= num_shards:
    raise ValueError(
        f'shard_index must be less than num_shards={num_shards}, but is'
        f' {shard_index}.'
    )
  builder = find_rlds_builder(name_or_directory, split, data_dir)
  features = builder.info.features
  if num_shards > 1:
    split = tfds.even_splits(split, num_shards)[shard_index]
  read_config = read_config or tfds.ReadConfig(try_autocache=False)
  batches = batch_reading.read_batches(
      builder,
      split,
      decoders=decoders,
      shuffle_files=shuffle_files,
      read_config=read_config,
  )
  is_known = read_config.assert_cardinality and not (
      read_config.repeat_filenames or read_config.input_context
  )
  num_episodes = builder.info.splits[split].num_examples
  explain = functools.partial(_explain, builder, split)
  if batches is not None:
    # All data sets that read these batches have them among their inputs.
    batches = tf_private.with_damage_finder(batches, explain)
    return episode_dataset.EpisodeDataset(
        batches, num_episodes if is_known else None
    )
  # Without its own check, which does not name the files.
  read_config = dataclasses.replace(read_config, assert_cardinality=False)
  # TFDS itself reads neither ArrayRecord files nor all features as tf.data.
  is_readable = features_lib.to_readable(features) is features
  if is_readable and not records_lib.is_array_record(builder, read_config):
    decode_episode = features_lib.make_episode_decoder(features, decoders)
    decoders = {**(decoders or {}), rlds.STEPS: tfds.decode.SkipDecoding()}
    with tf_private.read_tfrecords_by(record_files.read_tfrecords):
      episodes = builder.as_dataset(
          split=split,
          decoders=decoders,
          shuffle_files=shuffle_files,
          read_config=read_config,
      )
  else:
    decode_record = features_lib.make_record_decoder(features, decoders)
    decode_episode = lambda fields: {
        **decode_record(fields.pop(records_lib.RECORD)),
        **fields,
    }
    episodes = records_lib.read_records(
        builder, split, shuffle_files=shuffle_files, read_config=read_config
    )
    if episodes is None:
      raise ValueError(
          f'{builder.info.full_name} has features that TFDS cannot read with'
          ' tf.data, and its builder does not read TFRecord or ArrayRecord'
          ' files.'
      )
  decode = tf_private.as_library_code(decode_episode)
  if is_known:
    count = tf.constant(num_episodes, tf.int64)
    episodes = episode_dataset.with_cardinality(episodes, count)
    decode = tf_private.as_library_code(
        lambda unused_number, episode: decode_episode(episode)
    )
  return tf_private.with_damage_finder(
      tf_private.WrappedDataset(episodes.map(decode, tf.data.AUTOTUNE)),
      explain,
  )


def _explain(builder: tfds.core.DatasetBuilder, split: Any) -> str:
  """Returns a sentence on the damaged file of a split, or an empty string."""
  file_format = tf_private.file_format_of(builder)
  for part in builder.info.splits[split].file_instructions:
    path = os.fspath(part.filename)
    records = record_files.read_file(file_format, path, 0, -1)
    message = record_files.find_damage(
        path, records, part.examples_in_shard, is_exact=True
    )
    if message:
      return message
  return ''


def find_rlds_builder(
    name_or_directory: files.PathLike,
    split: Any,
    data_dir: files.PathLike | None = None,
) -> tfds.core.DatasetBuilder:
  """Returns the builder of an RLDS data set; see `load_episodes`."""
  if not isinstance(split, (str, tfds.core.splits.AbstractSplit)):
    raise ValueError(
        f'split must be one split, but is {split!r}. To read several as one,'
        " write 'train+test'."
    )
  with files.os_errors(os.fspath(name_or_directory)):
    builder = find_builder(name_or_directory, data_dir)
  _check_splits(builder)
  if not builder.info.splits:
    raise ValueError(
        f'{builder.data_path} has no splits: {INFO_FILE} must have'
        " their names and shardLengths, such as of 'train'."
    )
  try:
    builder.info.splits[split]
  except ValueError as e:
    raise ValueError(
        f'Cannot read the split {split!r} of {builder.data_path}, which has the'
        f' splits {sorted(builder.info.splits)}: {e}'
    ) from e
  if rlds.STEPS not in builder.info.features:
    raise ValueError(
        f'{name_or_directory} is not an RLDS data set: its features are'
        f' {sorted(builder.info.features)}, without {rlds.STEPS}.'
    )
  return builder


def _check_splits(builder: tfds.core.DatasetBuilder) -> None:
  """Checks the files and the numbers of episodes of all splits.

  Raises:
    ValueError: if a split has files outside of the folder of the data set that
      the user does not allow, or more episodes than a file can have.
  """
  if not tf_private.reads_files(builder):
    return
  folder = os.fspath(builder.data_path)
  is_local = not files.is_url(folder)
  for name, split in builder.info.splits.items():
    lengths = list(split.shard_lengths)
    if not lengths or split.filename_template is None:
      continue
    try:
      paths = [os.fspath(path) for path in split.filepaths]
    except (LookupError, ValueError) as e:
      raise ValueError(
          f'filepathTemplate of the split {name} in'
          f' {folder}/{INFO_FILE} is damaged: {e}. Correct it.'
      ) from e
    for path, length in zip(paths, lengths):
      place = f'The split {name} in {folder}/{INFO_FILE}'
      if is_local:
        limits.check_place(place, path, folder)
      elif '..' in path.split('/'):
        raise ValueError(f'{place} names {path}, outside of {folder}.')
      if length < 0 or (length > _MANY_EPISODES and is_local):
        size = os.path.getsize(path) if os.path.isfile(path) else 0
        if length < 0 or length > max(size, _MANY_EPISODES):
          raise ValueError(
              f'According to {folder}/{INFO_FILE}, {path} has {length}'
              f' episodes, but the file has {size} bytes. Correct shardLengths.'
          )


def _read_builder(folder: str) -> tfds.core.DatasetBuilder:
  """Returns the TFDS builder of the folder of a version.

  Raises:
    ImportError: if a class of its features cannot be imported.
    ValueError: if its metadata is damaged.
  """
  try:
    return tfds.builder_from_directory(folder)
  except ImportError as e:
    raise ImportError(
        f'features.json of {folder} has a class that cannot be imported: {e}.'
        ' If you trust the data set, install the package of the class.',
        name=e.name,
    ) from e
  except (
      ArithmeticError,
      AssertionError,
      AttributeError,
      LookupError,
      RecursionError,
      TypeError,
      ValueError,
      json_format.ParseError,
  ) as e:
    if folder in str(e):
      raise
    text = ' '.join(str(e).split())[:300].rstrip('.')
    raise ValueError(
        f'{INFO_FILE} or features.json of {folder} is damaged:'
        f' {type(e).__name__}: {text}. Copy intact files.'
    ) from e


def find_builder(
    name_or_directory: files.PathLike, data_dir: files.PathLike | None = None
) -> tfds.core.DatasetBuilder:
  """Returns the TFDS builder of a directory or of a name.

  Args:
    name_or_directory: see `load_episodes`.
    data_dir: see `load_episodes`.

  Raises:
    FileNotFoundError: if there is no such data set on disk.
  """
  name = os.fspath(name_or_directory)
  directory = files.expand(name)
  if files.is_folder(directory):
    return _read_builder(find_folder(directory))
  if data_dir is not None:
    data_dir = files.expand(data_dir)
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except (tfds.core.registered.DatasetNotFoundError, ValueError):
    # The message of TFDS has 40 lines, and does not help.
    message = f'{name} is neither a directory nor the name of a TFDS data set.'
    extension = format_registry.detect_by_extension(directory)
    hint = format_registry.hint(directory)
    if os.path.isfile(directory):
      message = (
          f'{message[:-1]}, but a file. Read a file of another format by'
          f' formats.load({name!r}, format={extension or "hdf5"!r}).'
      )
    elif name[:1] in ('/', '~', '.') or extension:
      message = f'There is no file or folder {directory}.'
    else:
      message += (
          " If it is a name of another format, such as LeRobot's, name it:"
          f" formats.load({name!r}, format='lerobot'), or"
          f" IndexedData({name!r}, options={{'format': 'lerobot'}})."
      )
    raise FileNotFoundError(f'{message}{hint}') from None
  if not files.is_folder(os.fspath(builder.data_path)):
    raise FileNotFoundError(
        f'The TFDS data set {name} is not in {builder.data_dir}. Prepare it'
        ' with tfds.builder(...).download_and_prepare(), or pass data_dir.'
    )
  return builder


def find_folder(directory: str) -> str:
  """Returns the folder of a data set's version.

  Args:
    directory: the folder of a version, or the folder that holds the versions,
      of which the newest is chosen; as `files.expand` returns it.

  Raises:
    FileNotFoundError: if it is neither.
  """
  names = files.names_in(directory)
  if INFO_FILE in names and _HUGGINGFACE_FILE not in names:
    return directory
  versions = [
      name
      for name in names
      if tfds.core.Version.is_valid(name)
      and files.exists(os.path.join(directory, name, INFO_FILE))
  ]
  if not versions:
    raise FileNotFoundError(
        f'{directory} is not the folder of a data set: it has no'
        f' {INFO_FILE}, and no folder of a version such as 1.0.0 that has one.'
        f' It has {names}.{format_registry.hint(directory)}'
    )
  newest = max(versions, key=tfds.core.Version)
  # Users should notice which of several versions is read.
  log = logging.warning if len(versions) > 1 else logging.info
  log(
      'Reading version %s of %s, the newest of %s.', newest, directory, versions
  )
  return os.path.join(directory, newest)


def fingerprint_folder(folder: str) -> str:
  """Returns a hash of the metadata that TFDS has written to `folder`.

  The metadata has the name, version and splits of the data set, and the number
  of episodes in each file. Without a data set, it is the hash of no values.
  """
  path = os.path.join(folder, INFO_FILE)
  if not files.exists(path):
    return fingerprints.fingerprint()
  with files.open_text(path) as f:
    return fingerprints.fingerprint(f.read())
