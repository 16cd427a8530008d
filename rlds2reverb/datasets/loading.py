"""Reads RLDS data sets on disk, in the TFDS format, as stacked episodes."""

import os
from typing import Any, Callable, Dict, Optional

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import batch_reading
from rlds2reverb.datasets import files
from rlds2reverb.datasets import image_decoders
from rlds2reverb.datasets import other_formats
from rlds2reverb.datasets import versions
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import private
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps


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
  if batches is not None:
    is_known = read_config.assert_cardinality and not (
        read_config.repeat_filenames or read_config.input_context
    )
    num_episodes = builder.info.splits[split].num_examples
    return data_sets.Episodes(batches, num_episodes if is_known else None)
  episodes = builder.as_dataset(
      split=split,
      decoders={
          **(decoders or {}),
          rlds.STEPS: tfds.decode.SkipDecoding(),
      },
      shuffle_files=shuffle_files,
      read_config=read_config,
  )
  decode_episode = episode_decoder(features, decoders)
  return private.WrappedDataset(
      episodes.map(decode_episode, num_parallel_calls=tf.data.AUTOTUNE)
  )


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
  if rlds.STEPS not in builder.info.features:
    raise ValueError(
        f'{name_or_directory} is not an RLDS data set: its features are'
        f' {sorted(builder.info.features)}, without {rlds.STEPS}.'
    )
  return builder


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
      rlds.STEPS: stacked_steps.with_equal_lengths(
          decode_steps(episode[rlds.STEPS])
      ),
  }


def _steps_decoder(features, decoders) -> Callable[[Any], Any]:
  steps = features[rlds.STEPS].feature
  # TFDS stores steps like a sequence, which can be decoded at once.
  sequence = tfds.features.FeaturesDict(
      {rlds.STEPS: tfds.features.Sequence(steps)}
  )
  found = image_decoders.decoders_of_one_size(
      steps, (decoders or {}).get(rlds.STEPS), (rlds.STEPS,)
  )
  found = found and {rlds.STEPS: found}
  return lambda stored: image_decoders.decode(
      sequence, {rlds.STEPS: stored}, found
  )[rlds.STEPS]


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
    return tfds.builder_from_directory(versions.find_folder(directory))
  if data_dir is not None:
    data_dir = files.expand(data_dir)
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except (tfds.core.registered.DatasetNotFoundError, ValueError):
    # The message of TFDS has 40 lines, and does not help.
    message = f'{name} is neither a directory nor the name of a TFDS data set.'
    if name[:1] not in ('/', '~', '.') and not os.path.exists(directory):
      message += (
          " If it is a name of another format, such as LeRobot's, say so:"
          f" formats.load({name!r}, 'lerobot'), IndexedData({name!r},"
          " options={'format': 'lerobot'}), or --format=lerobot."
      )
    raise FileNotFoundError(
        f'{message}{other_formats.hint(directory)}'
    ) from None
  if not files.is_folder(os.fspath(builder.data_path)):
    raise FileNotFoundError(
        f'The TFDS data set {name} is not in {builder.data_dir}. Prepare it'
        ' with tfds.builder(...).download_and_prepare(), or pass data_dir.'
    )
  return builder
