"""Builds the index of a TFDS data set in place, or of a copy of any data."""

import contextlib
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import record_places
from rlds2reverb.datasets import whole
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

Prepare = Callable[[tf.data.Dataset], tf.data.Dataset]


class _Data(NamedTuple):
  """The source of an index.

  Attributes:
    episodes: the episodes.
    folder: the folder of the files that have the images, in whose place the
      episodes have references; '' if they have the images themselves.
    facts: what is known of these files.
    source: the path of the data set; '' if there is none.
  """

  episodes: tf.data.Dataset
  folder: str = ''
  facts: List[strings.FileFacts] = []
  source: str = ''


def build_index(
    source: Union[tf.data.Dataset, files_lib.PathLike],
    folder: files_lib.PathLike,
    split: str = 'train',
    *,
    prepare: Optional[Prepare] = None,
    num_processes: int = 1,
) -> index_lib.Index:
  """Builds an index, by which steps of a data set can be read in any order.

  The images of a TFDS data set on disk are not copied: the index has 20 bytes
  for each, which say where it is. All other fields of a step are in the index.
  An image in an ArrayRecord file is read with the whole record of its episode,
  which is decompressed; the last 64 MiB of records stay in memory.

      index = build_index('/data/bridge', '/data/bridge_index', prepare=prepare)

  Data that cannot be indexed in place is copied into the index, images and all:
  other formats, and, with a warning that says why, files of TFDS that are
  neither TFRecord nor ArrayRecord, or not on the local disk, and images that
  `prepare` changes.

  A building that was killed starts again from the beginning.

  Args:
    source: the directory or the name of a TFDS data set, as `load_episodes`
      takes it, whose images stay encoded; the path of data of another format,
      as `formats.load` takes it; or a data set of RLDS episodes.
    folder: the folder of the index, which is new, on the local disk.
    split: the split of a TFDS data set.
    prepare: a function from the data set of episodes to one of the episodes
      that are indexed: `map_fields`, `transform_episodes` and so on. By default
      they are indexed as they are.
    num_processes: how many processes read files. With more than one, the
      program must be importable: `if __name__ == '__main__':`.

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
  path = '' if isinstance(source, tf.data.Dataset) else os.fspath(source)
  return build(source, folder, split, prepare, num_processes, path)


def build(
    source: Union[tf.data.Dataset, files_lib.PathLike],
    folder: files_lib.PathLike,
    split: str,
    prepare: Optional[Prepare],
    num_processes: int,
    path: str,
) -> index_lib.Index:
  """Builds an index of a data set that was read from a path.

  Args:
    source: see `build_index`.
    folder: see `build_index`.
    split: see `build_index`.
    prepare: see `build_index`.
    num_processes: see `build_index`.
    path: the path of the data set, or a name; '' if there is none. An index of
      files that have changed is refused later.

  Returns:
    The index.
  """
  folder = files_lib.expand_local(folder, 'An index')
  checks.check_positive('num_processes', num_processes)
  local = path and files_lib.expand(path)

  with whole.new_folder(folder, [folders.MARKER]) as unfinished:
    builder = None
    if isinstance(source, tf.data.Dataset):
      data = _Data(source, source=local)
    elif builder := _find_builder(source, split):
      data = _in_place(builder, split, num_processes)
    else:
      data = _Data(readers.load(source), source=local)
    described = _describe(data.source, split, unfinished)
    try:
      _write(data, prepare, unfinished, described)
    except tf.errors.UnknownError as e:
      kind, _, reason = errors.message_of(e).partition(': ')
      if kind == OSError.__name__:
        raise OSError(reason) from e
      raise
    except (tf.errors.InvalidArgumentError, ValueError) as e:
      # It may say that a reference is no image.
      if not (data.folder and 'mage' in str(e) and 'ecod' in str(e)):
        raise
      _warn(source, f'prepare looks at its images: {e}')
      for written in os.listdir(unfinished):
        os.remove(os.path.join(unfinished, written))
      _write(_copied(builder, split), prepare, unfinished, described)
  return index_lib.Index(folder)


def _describe(path: str, split: str, folder: str) -> Optional[Dict[str, Any]]:
  """Returns what an index in a folder says of its data set; None if unknown."""
  found = index_lib.describe_source(path, split)
  if found is None:
    return None
  relative = os.path.relpath(path, folder)
  return {'path': path, 'relative': relative, 'split': split, **found}


def _find_builder(source, split) -> Optional[tfds.core.DatasetBuilder]:
  """Returns the builder of a TFDS data set; None if it is of another format."""
  try:
    return loading.find_rlds_builder(source, split)
  except FileNotFoundError:
    if readers.find_format(source) is None:
      raise
    return None


def _warn(source, why: str) -> None:
  logging.warning(
      '%s cannot be indexed where it lies, and is copied into the index: %s.',
      source,
      why,
  )


def _in_place(builder, split, num_processes) -> _Data:
  """Returns episodes with references in place of images, if it is possible."""
  why = ''
  if not tf_private.reads_files(builder):
    why = 'TFDS does not read it from files'
  elif (kind := tf_private.file_format_of(builder)) not in _IN_PLACE:
    why = f'its files have the format {kind.value}'
  elif files_lib.is_url(os.fspath(builder.data_path)):
    why = 'it is not on the local disk'
  if why:
    _warn(builder.data_path, why)
    return _copied(builder, split)
  records = record_places.find_records(builder, split)
  features = builder.info.features
  names, decoders = _images(features)
  parse = loading.record_decoder(features, decoders)
  episodes = tf.data.Dataset.from_generator(
      lambda: record_reading.read(records, names, num_processes),
      output_signature=tf.TensorSpec([None], tf.string),
  )
  return _Data(
      episodes.unbatch().map(parse, tf.data.AUTOTUNE),
      records.folder,
      [
          strings.facts_of(records.folder, name, records.is_array_record)
          for name in records.names
      ],
      records.folder,
  )


def _copied(builder, split) -> _Data:
  """Returns episodes with their encoded images."""
  _, decoders = _images(builder.info.features)
  directory = os.fspath(builder.data_path)
  episodes = loading.load_episodes(directory, split, decoders=decoders)
  return _Data(episodes, source=directory)


def _images(features, keys=()) -> Tuple[List[str], Dict[str, Any]]:
  """Returns the names of the images of records, and their decoders."""
  names, decoders = [], {}
  for key, feature in features.items():
    if isinstance(feature, tfds.features.Dataset):
      feature = feature.feature
    if isinstance(feature, tfds.features.FeaturesDict):
      inner, decoders[key] = _images(feature, (*keys, key))
      names += inner
    elif isinstance(feature, tfds.features.Image):
      decoders[key] = tfds.decode.SkipDecoding()
      names.append('/'.join((*keys, key)))
  return names, decoders


def _write(
    data: _Data,
    prepare: Optional[Prepare],
    folder: str,
    source: Optional[Dict[str, Any]],
) -> None:
  """Writes the steps of all episodes, and what is known of their source."""
  episodes = prepare(data.episodes) if prepare else data.episodes
  spec = episodes.element_spec
  steps_lib.check_has_steps('An element of a data set to index', spec)
  steps = steps_lib.stack_episodes(episodes).map(
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
    arrays = {'lengths': np.array(lengths, np.int64)}
    writer.finish({}, arrays, rows_lib.INDEX, data.folder, data.facts, source)
