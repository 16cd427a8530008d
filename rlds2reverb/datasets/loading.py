"""Reads RLDS data sets on disk, in the TFDS format, as stacked episodes."""

import dataclasses
import functools
import os
from typing import Any, Callable, Dict, Optional

from google.protobuf import json_format
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import batch_reading
from rlds2reverb.datasets import files
from rlds2reverb.datasets import image_decoders
from rlds2reverb.datasets import other_formats
from rlds2reverb.datasets import readable_features
from rlds2reverb.datasets import record_places
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.datasets import versions
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_private

# Files of fewer episodes are not asked for their size.
_MANY = 1 << 20


def load_episodes(
    name_or_directory: files.PathLike,
    split: str = 'train',
    *,
    data_dir: Optional[files.PathLike] = None,
    decoders: Optional[Dict[str, Any]] = None,
    num_shards: int = 1,
    shard_index: int = 0,
    shuffle_files: bool = False,
    read_config: Optional[tfds.ReadConfig] = None,
) -> tf.data.Dataset:
  """Reads an RLDS data set as episodes with stacked steps.

  The steps of an episode are read and decoded together, without work for each
  step. The whole episode is then in memory. If its images are too large for
  that, let `decoders` leave them encoded.

  Args:
    name_or_directory: the directory of a data set's version, which has its
      `dataset_info.json`; the directory that holds its versions, of which the
      newest is read; or the name of a TFDS data set that is prepared in
      `data_dir`, for example `d4rl_mujoco_halfcheetah/v2-medium`. A directory
      is a path, or a URL that TensorFlow can read.
    split: a TFDS split, for example `train`, `train[:10%]` or `train+test`.
    data_dir: the directory in which TFDS looks for a data set by its name. By
      default it is that of TFDS.
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
    `[T, ...]`; the other features of the episode stay as they are.

  Raises:
    FileNotFoundError: if there is no such data set on disk.
    OSError: if the file system cannot be reached.
    ValueError: if the data set has no such split, if `split` is not one split,
      if its episodes have no steps, or if `shard_index` is not between 0 and
      `num_shards - 1`.
    InvalidArgumentError: while iterating, if an episode cannot be read as its
      features say, or its step fields differ in length; or if it has images of
      several sizes, and `decoders` does not leave them encoded. The episodes
      before it come out first.
  """
  if not 0 <= shard_index < num_shards:
    raise ValueError(
        f'shard_index must be at least 0 and less than num_shards={num_shards},'
        f' but is {shard_index}.'
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
      decode_steps=_steps_decoder(features, decoders),
      shuffle_files=shuffle_files,
      read_config=read_config,
  )
  is_known = read_config.assert_cardinality and not (
      read_config.repeat_filenames or read_config.input_context
  )
  num_episodes = builder.info.splits[split].num_examples
  explain = functools.partial(_explain, builder, split)
  if batches is not None:
    # All data sets that are made of it have it among their inputs.
    batches = tf_private.with_damage_finder(batches, explain)
    return episode_dataset.EpisodeDataset(
        batches, num_episodes if is_known else None
    )
  # Without its own check, which does not name the files.
  read_config = dataclasses.replace(read_config, assert_cardinality=False)
  # TFDS itself reads neither ArrayRecord files nor all features as tf.data.
  is_readable = readable_features.readable(features) is features
  if is_readable and not records_lib.is_array_record(builder, read_config):
    decode_episode = episode_decoder(features, decoders)
    decoders = {**(decoders or {}), rlds.STEPS: tfds.decode.SkipDecoding()}
    with tf_private.read_tfrecords_by(record_places.read_file):
      episodes = builder.as_dataset(
          split=split,
          decoders=decoders,
          shuffle_files=shuffle_files,
          read_config=read_config,
      )
  else:
    decode_record = record_decoder(features, decoders)
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
  decode = decode_episode
  if is_known:
    count = tf.constant(num_episodes, tf.int64)
    episodes = episode_dataset.with_cardinality(episodes, count)
    decode = lambda unused_number, episode: decode_episode(episode)
  return tf_private.with_damage_finder(
      tf_private.WrappedDataset(
          episodes.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
      ),
      explain,
  )


def record_decoder(
    features: tfds.features.FeaturesDict, decoders: Optional[Dict[str, Any]]
) -> Callable[[tf.Tensor], Dict[str, Any]]:
  """Returns a function that parses and decodes the record of an episode.

  Args:
    features: the features of a data set.
    decoders: see `load_episodes`.

  Returns:
    A function from a record, string `[]`, to an episode with stacked steps.
  """
  stored = readable_features.readable(features)
  decode = episode_decoder(features, decoders)
  decoders = {
      **readable_features.without_empty(decoders or {}),
      rlds.STEPS: tfds.decode.SkipDecoding(),
  }

  def decode_record(record):
    episode = decode(stored.deserialize_example(record, decoders=decoders))
    if stored is features:
      return episode
    steps = episode.pop(rlds.STEPS)
    fields = {key: part for key, part in features.items() if key != rlds.STEPS}
    fields = tfds.features.FeaturesDict(fields)
    return {**readable_features.restore(fields, episode), rlds.STEPS: steps}

  return decode_record


def _explain(builder: tfds.core.DatasetBuilder, split: Any) -> str:
  """Returns which file of a split is damaged, and how; or an empty string."""
  file_format = tf_private.file_format_of(builder)
  for part in builder.info.splits[split].file_instructions:
    path = os.fspath(part.filename)
    records = records_lib.read_file(file_format, path, 0, -1)
    found = record_places.find_damage(
        path, records, part.examples_in_shard, is_exact=True
    )
    if found:
      return found
  return ''


def find_rlds_builder(
    name_or_directory: files.PathLike,
    split: Any,
    data_dir: Optional[files.PathLike] = None,
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
        f'{builder.data_path} has no splits: {versions.INFO_FILE} must have'
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
          f' {folder}/{versions.INFO_FILE} is damaged: {e}. Correct it.'
      ) from e
    for path, length in zip(paths, lengths):
      what = f'The split {name} in {folder}/{versions.INFO_FILE}'
      if is_local:
        limits.check_place(what, path, folder)
      elif '..' in path.split('/'):
        raise ValueError(f'{what} names {path}, outside of {folder}.')
      if length < 0 or (length > _MANY and is_local):
        is_there = os.path.isfile(path)
        size = os.path.getsize(path) if is_there else 0
        if length < 0 or length > max(size, _MANY):
          raise ValueError(
              f'{folder}/{versions.INFO_FILE} says that {path} has {length}'
              f' episodes, but the file has {size} bytes. Correct shardLengths.'
          )


def episode_decoder(
    features: tfds.features.FeaturesDict, decoders: Optional[Dict[str, Any]]
) -> Callable[[Dict[str, Any]], Dict[str, Any]]:
  """Returns a function that decodes the steps of an episode, all at once.

  Args:
    features: the features of a data set.
    decoders: see `load_episodes`.

  Returns:
    A function from an episode that TFDS has read with `SkipDecoding` for its
    steps to one with stacked steps. It refuses steps that are stored with
    fields of unequal length, as TFDS does.
  """
  decode_steps = _steps_decoder(features, decoders)
  return lambda episode: {
      **episode,
      rlds.STEPS: steps_lib.check_equal_lengths(
          decode_steps(episode[rlds.STEPS])
      ),
  }


def _steps_decoder(features, decoders) -> Callable[[Any], Any]:
  step = features[rlds.STEPS].feature
  steps = readable_features.readable(features)[rlds.STEPS].feature
  # TFDS stores steps like a sequence, which can be decoded at once.
  sequence = tfds.features.FeaturesDict(
      {rlds.STEPS: tfds.features.Sequence(steps)}
  )
  found = image_decoders.decoders_of_one_size(
      steps,
      readable_features.without_empty((decoders or {}).get(rlds.STEPS)),
      (rlds.STEPS,),
  )
  found = found and {rlds.STEPS: found}
  if steps is step:
    return lambda stored: image_decoders.decode(
        sequence, {rlds.STEPS: stored}, found
    )[rlds.STEPS]

  def decode(stored):
    stored = {rlds.STEPS: readable_features.without_empty(stored)}
    decoded = image_decoders.decode(sequence, stored, found)
    return readable_features.restore(step, decoded[rlds.STEPS])

  return decode


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
        f'{versions.INFO_FILE} or features.json of {folder} is damaged:'
        f' {type(e).__name__}: {text}. Copy them from where they are whole.'
    ) from e


def find_builder(
    name_or_directory: files.PathLike, data_dir: Optional[files.PathLike] = None
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
    return _read_builder(versions.find_folder(directory))
  if data_dir is not None:
    data_dir = files.expand(data_dir)
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except (tfds.core.registered.DatasetNotFoundError, ValueError):
    # The message of TFDS has 40 lines, and does not help.
    message = f'{name} is neither a directory nor the name of a TFDS data set.'
    extension = other_formats.by_extension(directory)
    hint = other_formats.hint(directory)
    if os.path.isfile(directory):
      message = (
          f'{message[:-1]}, but a file. Read a file of another format by'
          f' formats.load({name!r}, {extension or "hdf5"!r}).'
      )
    elif name[:1] in ('/', '~', '.') or extension:
      message = f'There is no file or folder {directory}.'
    else:
      message += (
          " If it is a name of another format, such as LeRobot's, say so:"
          f" formats.load({name!r}, 'lerobot'), or IndexedData({name!r},"
          " options={'format': 'lerobot'})."
      )
    raise FileNotFoundError(f'{message}{hint}') from None
  if not files.is_folder(os.fspath(builder.data_path)):
    raise FileNotFoundError(
        f'The TFDS data set {name} is not in {builder.data_dir}. Prepare it'
        ' with tfds.builder(...).download_and_prepare(), or pass data_dir.'
    )
  return builder
