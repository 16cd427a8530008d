"""Builds the index of a TFDS data set in place, or of a copy of other data."""

from collections.abc import Callable
import contextlib
import os
from typing import Any, NamedTuple

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import atomic
from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_private
from rlds2reverb.formats import readers
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import record_reading
from rlds2reverb.store import folders
from rlds2reverb.store import rows as rows_lib
from rlds2reverb.store import strings

_IN_PLACE = (tf_private.TFRECORD, tf_private.ARRAY_RECORD)


class _Episodes(NamedTuple):
  """The episodes to index, and the files that they come from.

  Attributes:
    dataset: the episodes.
    source: the path of the data set; '' if unknown.
    data_dir: the folder of the files with the images, which are replaced by
      references in the episodes; '' if the episodes have the images themselves.
    facts: the facts of these files.
  """

  dataset: tf.data.Dataset
  source: str
  data_dir: str = ''
  facts: list[strings.FileFacts] = []


def build_index(
    source: tf.data.Dataset | files_lib.PathLike,
    folder: files_lib.PathLike,
    split: str = 'train',
    *,
    prepare: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
    num_processes: int = 1,
) -> index_lib.Index:
  """Builds an index, through which steps of a data set are read in any order.

  The images of a TFDS data set on disk are not copied: the index has 20 bytes
  for each, which locate it in its file. The index holds all other fields of a
  step. To read an image in an ArrayRecord file, the record of its episode is
  decompressed; the last 64 MiB of records stay in memory.

      index = build_index('/data/bridge', '/data/bridge_index', prepare=prepare)

  Data that cannot be indexed in place is copied into the index, with its
  images: other formats, and, with a warning that gives the reason, files of
  TFDS that are neither TFRecord nor ArrayRecord, or not on the local disk, and
  images that `prepare` changes.

  If the process is killed, the next call starts from the beginning.

  Args:
    source: the directory or the name of a TFDS data set, as in `load_episodes`,
      whose images stay encoded; the path of data of another format, as in
      `formats.load`; or a data set of RLDS episodes.
    folder: the folder of the index, which is new, on the local disk.
    split: the split of a TFDS data set.
    prepare: a function from the data set of episodes to a data set of the
      episodes that are indexed: `map_fields`, `transform_episodes` and so on.
      By default the episodes are not changed.
    num_processes: the number of processes that read files. With more than one,
      the program must be importable: `if __name__ == '__main__':`.

  Returns:
    The index. Its episodes have the order of `load_episodes`.

  Raises:
    BlockingIOError: if another process is building it. `open_batches` waits.
    FileExistsError: if `folder` is not empty.
    FileNotFoundError: if there is no such data set.
    ValueError: if `prepare` returns no episodes, or a field has no fixed shape.
    OSError: if a file is damaged.
    InvalidArgumentError: if an episode is invalid.
  """
  data: Any = source
  return build(
      index_lib.IndexedData(data, split=split, prepare=prepare),
      folder,
      num_processes,
  )


def build(
    data: index_lib.IndexedData, folder: files_lib.PathLike, num_processes: int
) -> index_lib.Index:
  """Builds an index; see `build_index`.

  Args:
    data: the data set. Its directory may also be a `tf.data.Dataset`.
    folder: the folder of the index.
    num_processes: the number of processes that read files.
  """
  folder = files_lib.expand_local(folder, 'An index')
  checks.check_positive('num_processes', num_processes)
  source: Any = data.directory
  with atomic.new_folder(folder, [folders.MARKER]) as unfinished:
    builder = None
    if isinstance(source, tf.data.Dataset):
      episodes = _Episodes(source, '')
    elif not data.options and (builder := _find_builder(source, data.split)):
      episodes = _load_in_place(builder, data.split, num_processes)
    else:
      path = files_lib.expand(source)
      episodes = _Episodes(readers.load(source, **data.options), path)
    try:
      _write(episodes, data, unfinished)
    except tf.errors.UnknownError as e:
      kind, _, reason = errors.message_of(e).partition(': ')
      if kind == OSError.__name__:
        raise OSError(reason) from e
      raise
    except (tf.errors.InvalidArgumentError, ValueError) as e:
      # The reason may be that a reference is no image.
      if not (episodes.data_dir and 'mage' in str(e) and 'ecod' in str(e)):
        raise
      _warn_of_copy(source, f'prepare looks at its images: {e}')
      for name in os.listdir(unfinished):
        os.remove(os.path.join(unfinished, name))
      _write(_load_copied(builder, data.split), data, unfinished)
  return index_lib.Index(folder)


def _find_builder(source, split) -> tfds.core.DatasetBuilder | None:
  """Returns the builder of a TFDS data set; None if it is of another format."""
  try:
    return loading.find_rlds_builder(source, split)
  except FileNotFoundError:
    if readers.find_format(source) is None:
      raise
    return None


def _warn_of_copy(source, reason: str) -> None:
  logging.warning(
      '%s cannot be indexed where it lies, and is copied into the index: %s.',
      source,
      reason,
  )


def _load_in_place(builder, split, num_processes) -> _Episodes:
  """Returns episodes with references instead of images, where possible."""
  reason = ''
  if not tf_private.reads_files(builder):
    reason = 'TFDS does not read it from files'
  elif (kind := tf_private.file_format_of(builder)) not in _IN_PLACE:
    reason = f'its files have the format {kind.value}'
  elif files_lib.is_url(os.fspath(builder.data_path)):
    reason = 'it is not on the local disk'
  if reason:
    _warn_of_copy(builder.data_path, reason)
    return _load_copied(builder, split)
  records = records_lib.find_records(builder, split)
  names, decoders = _find_images(builder.info.features)
  dataset = tf.data.Dataset.from_generator(
      lambda: record_reading.read(records, names, num_processes),
      output_signature=tf.TensorSpec([None], tf.string),
  )
  parse = features_lib.make_record_decoder(builder.info.features, decoders)
  return _Episodes(
      dataset.unbatch().map(parse, tf.data.AUTOTUNE),
      records.folder,
      records.folder,
      [
          strings.facts_of(records.folder, name, records.is_array_record)
          for name in records.names
      ],
  )


def _load_copied(builder, split) -> _Episodes:
  """Returns episodes with their encoded images."""
  _, decoders = _find_images(builder.info.features)
  directory = os.fspath(builder.data_path)
  episodes = loading.load_episodes(directory, split, decoders=decoders)
  return _Episodes(episodes, directory)


def _find_images(features, keys=()) -> tuple[list[str], dict[str, Any]]:
  """Returns the names of the images in records, and decoders that skip them."""
  names, decoders = [], {}
  for key, feature in features.items():
    if isinstance(feature, tfds.features.Dataset):
      feature = feature.feature
    if isinstance(feature, tfds.features.FeaturesDict):
      inner, decoders[key] = _find_images(feature, (*keys, key))
      names += inner
    elif isinstance(feature, tfds.features.Image):
      decoders[key] = tfds.decode.SkipDecoding()
      names.append('/'.join((*keys, key)))
  return names, decoders


def _write(
    episodes: _Episodes, data: index_lib.IndexedData, folder: str
) -> None:
  """Writes the steps of all episodes, and the description of their source."""
  source = index_lib.describe_source(episodes.source, data.split)
  if source is not None:
    relative = os.path.relpath(episodes.source, folder)
    source.update(path=episodes.source, relative=relative, split=data.split)
  mapped = data.map_episodes(episodes.dataset)
  steps_lib.check_has_steps(
      'An element of a data set to index', mapped.element_spec
  )
  steps = steps_lib.stack_episodes(mapped).map(
      lambda episode: steps_lib.check_equal_lengths(episode[rlds.STEPS])
  )
  layout = rows_lib.RowLayout.of_spec(
      tree.map_structure(
          lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype),
          steps.element_spec,
      ),
      'Leave the field out, or pad it, in the function prepare.',
  )
  lengths = []
  with contextlib.closing(rows_lib.StoreWriter(layout, folder)) as writer:
    for leaves in map(tree.flatten, steps.prefetch(1).as_numpy_iterator()):
      writer.append(leaves)
      lengths.append(len(leaves[0]))
    writer.finish(
        {},
        {'lengths': np.array(lengths, np.int64)},
        rows_lib.INDEX,
        episodes.data_dir,
        episodes.facts,
        source,
    )
