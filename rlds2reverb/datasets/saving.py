"""Writes episodes to disk as RLDS, in the TFDS format."""

from collections.abc import Iterable
from collections.abc import Sequence
import json
import os
import re
from typing import Any

from absl import logging
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.datasets import json_files
from rlds2reverb.datasets import loading
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import steps as steps_lib

TFRECORD = 'tfrecord'
FILE_FORMATS = (TFRECORD, 'array_record')

_MARKER = 'saved_episodes.json'
_MAX_EPISODES_PER_FILE = 1000
_FIRST_VERSION = '1.0.0'


def save_episodes(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    identity: Sequence[Any] = (),
    *,
    split: str = 'train',
    name: str | None = None,
    overwrite: bool = False,
    file_format: str = TFRECORD,
) -> str:
  """Writes episodes as an RLDS data set, unless they are written already.

      saved = save_episodes(transform_episodes(episodes, transforms), directory)
      episodes = load_episodes(saved)

  Episodes that are in `directory` already are used again if they were saved
  from the same pipeline (all that is done in the graph of `rlds_data`) with the
  same `identity`. They are not used again if the same graph can give other
  episodes, as with `from_generator`, `formats.load` or a shuffle without a
  seed. Episodes are written next to `directory`, and moved there when they are
  complete.

  All values are read back unchanged, with dtypes and bits. Decoded images
  (uint8 or uint16, of 1, 3 or 4 channels) are stored as PNG. Other leaves of
  1 KiB or more per step are compressed with zlib. TFDS would round float64 to
  float32, so it is stored as bytes. Strings, and images in them, are unchanged.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps, in dicts of any
      depth. All its episodes are written, in their order.
    directory: the path of the new data set, or a URL that TensorFlow can write
      to. Its parents are created.
    identity: values that distinguish this data from other data; by default
      none, as the pipeline is compared, too. See `cached_statistics`.
    split: the name of the split.
    name: the name of the data set; by default the last part of `directory`.
    overwrite: whether to replace a data set that this function has saved in
      `directory` before. It stays there until the new one is complete. That is
      not possible at a URL, where nothing is replaced. Anything else in
      `directory` is never replaced.
    file_format: the format of the files, `'tfrecord'` or `'array_record'`,
      which TFDS's `data_source` and Grain read.

  Returns:
    The directory, for `load_episodes`.

  Raises:
    ValueError: if there is no such `file_format`; if `rlds_data` is read from
      `directory`; if a field cannot be written, because it is ragged, bfloat16,
      in a tuple, or a string array whose shape is open or empty; or if there
      are no episodes.
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if there is something else in `directory`, or if it is not
      known whether it is the same data.
    OSError: if `directory` cannot be written or replaced.
  """
  checks.check_choice('file_format', file_format, FILE_FORMATS)
  directory = files.expand(directory)
  if _reads_from(rlds_data, directory):
    raise ValueError(
        f'The episodes are read from {directory}. They cannot be saved there'
        ' too: choose another directory.'
    )
  rlds_data = steps_lib.stack_episodes(rlds_data)
  features = features_lib.features_from_spec(rlds_data.element_spec)
  pipeline, problem = fingerprints.fingerprint_pipeline(rlds_data)
  contents = [str(rlds_data.element_spec), pipeline, split, identity]
  if file_format != TFRECORD:
    contents.append(file_format)
  fingerprint = fingerprints.fingerprint(*contents)
  files.recover_interrupted_write(directory)
  has_files = bool(files.names_in(directory))
  if has_files:
    marker = os.path.join(directory, _MARKER)
    if not files.exists(marker):
      raise FileExistsError(
          f'{directory} holds something that save_episodes did not write.'
          ' Choose another directory.'
      )
    stored = json_files.read_json(
        marker, f'Remove {directory} to save the episodes again.'
    )
    is_same = stored.get('fingerprint') == fingerprint
    if is_same and pipeline is not None and not overwrite:
      logging.info('Using the episodes saved in %s.', directory)
      return directory
    if not overwrite:
      reason = (
          'of another pipeline or identity, of another file format, or of files'
          ' that have changed since.'
      )
      if pipeline is None:
        reason = (
            f'that cannot be compared with these: {problem}. Read them with'
            ' load_episodes.'
        )
      raise FileExistsError(
          f'{directory} holds episodes {reason} Replace them with'
          ' overwrite=True. Or choose another directory.'
      )
  default_name, version = name_and_version(directory)
  with files.new_folder(
      directory,
      [loading.INFO_FILE, _MARKER],
      replace=has_files,
  ) as folder:
    write_episodes(
        rlds_data.prefetch(1).as_numpy_iterator(),
        folder,
        name=name or default_name,
        version=version,
        description='Episodes saved by rlds2reverb.',
        features=features,
        split=split,
        file_format=file_format,
    )
    with open(os.path.join(folder, _MARKER), 'w', encoding='utf-8') as f:
      json.dump({'fingerprint': fingerprint}, f)
  return directory


def _reads_from(rlds_data: tf.data.Dataset, directory: str) -> bool:
  """Returns whether a data set reads a file in `directory`."""
  if not os.path.isdir(directory):
    return False
  names = {os.fsencode(name) for name in os.listdir(directory)}
  directory = os.fsencode(os.path.realpath(directory))
  # The names of the files are constants of the graph.
  return any(
      os.path.basename(text) in names
      and os.path.dirname(os.path.realpath(text)) == directory
      for text in fingerprints.constant_strings(rlds_data)
  )


def write_episodes(
    episodes: Iterable[dict[str, Any]],
    folder: str,
    *,
    name: str,
    description: str,
    features: dict[str, Any],
    split: str = 'train',
    version: str = _FIRST_VERSION,
    max_episodes_per_file: int = _MAX_EPISODES_PER_FILE,
    file_format: str = TFRECORD,
) -> None:
  """Writes one split of a data set into an empty folder.

  Args:
    episodes: the episodes, which TFDS can encode with `features`.
    folder: the folder to write into; see `files.new_folder`.
    name: the name of the data set, converted to a name that TFDS allows.
    description: a description of the data set.
    features: the TFDS features of an episode.
    split: the name of the split.
    version: the version of the data set.
    max_episodes_per_file: the maximum number of episodes of a file.
    file_format: one of `FILE_FORMATS`.

  Raises:
    ValueError: if there are no episodes, or if the name of the split has other
      characters than letters, digits, `_` and `-`, because TFDS cannot read
      such a split.
  """
  if not re.fullmatch(r'[\w-]+', split):
    raise ValueError(
        f'The name of a split must be of letters, digits, _ and -, but is'
        f' {split!r}.'
    )
  info = tfds.core.DatasetInfo(
      builder=tfds.core.dataset_info.DatasetIdentity(
          name=_tfds_name(name),
          version=tfds.core.Version(version),
          data_dir=folder,
          module_name=__name__,
      ),
      description=description,
      features=tfds.features.FeaturesDict(features),
  )
  writer = tfds.core.SequentialWriter(
      info,
      max_examples_per_shard=max_episodes_per_file,
      file_format=file_format,
  )
  writer.initialize_splits([split])
  # Each call rewrites the list of splits, so one call adds all episodes.
  writer.add_examples({split: episodes})
  writer.close_all()
  if not info.splits[split].num_examples:
    raise ValueError('There are no episodes to write.')


def name_and_version(path: str) -> tuple[str, str]:
  """Returns a name and a version for the data set in a folder.

  /data/My Data -> my_data, 1.0.0    /data/walker/2.0.1 -> walker, 2.0.1
  /data/v1.0    -> v1_0, 1.0.0       /data/2024-07 -> data_2024_07, 1.0.0
  """
  folder, name = os.path.split(path.rstrip('/'))
  version = _FIRST_VERSION
  if tfds.core.Version.is_valid(name) and os.path.basename(folder):
    # The layout of TFDS.
    name, version = os.path.basename(folder), name
  return _tfds_name(name), version


def _tfds_name(name: str) -> str:
  """Converts a name to one by which TFDS finds the files of a data set.

  It begins with a letter, and has only letters, digits and underscores.
  """
  name = re.sub('[^0-9A-Za-z]+', '_', name).strip('_')
  name = tfds.core.naming.camelcase_to_snakecase(name)
  name = re.sub('__+', '_', name)
  return name if name[:1].isalpha() else f'data_{name}'.rstrip('_')
