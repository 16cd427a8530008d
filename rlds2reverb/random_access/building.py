"""Builds the index of a TFDS data set in place, or of a copy of other data.

The records of TFDS are read in tasks, in their order, in one or several
processes. A record is a `tf.train.Example`, whose images are runs of bytes of
the file. Each image is replaced by a short string, a reference, so that the
record is parsed quickly.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import process
import contextlib
import multiprocessing
import os
from typing import Any, NamedTuple

from absl import logging
from google.protobuf import message
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import record_files
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.episodes import tf_private
from rlds2reverb.formats import readers
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.store import array_records
from rlds2reverb.store import folders
from rlds2reverb.store import rows as store_rows
from rlds2reverb.store import strings

_IN_PLACE = (tf_private.TFRECORD, tf_private.ARRAY_RECORD)

# The number of bytes of the records of a task, and the number of waiting tasks
# of each process.
_TASK_BYTES = 64 << 20
_TASKS_PER_PROCESS = 2
_RECORDS_AHEAD = 16
_MAX_BUFFER_BYTES = 1 << 18

_HEADER_BYTES = 12
_DAMAGES = tf.errors.OpError, StopIteration, ValueError, message.DecodeError
# An image is found in its record by its first bytes.
_SEARCHED_BYTES = 64


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
  with files_lib.new_folder(folder, [folders.MARKER]) as unfinished:
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
      lambda: _read_records(records, names, num_processes),
      output_signature=tf.TensorSpec([None], tf.string),
  )
  parse = features_lib.make_record_decoder(builder.info.features, decoders)
  return _Episodes(
      dataset.unbatch().map(pipelines.as_library_code(parse), tf.data.AUTOTUNE),
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
  steps = pipelines.map_elements(
      steps_lib.stack_episodes(mapped),
      lambda episode: steps_lib.check_equal_lengths(episode[rlds.STEPS]),
  )
  layout = store_rows.RowLayout.of_spec(
      tree.map_structure(
          lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype),
          steps.element_spec,
      ),
      'Leave the field out, or pad it, in the function prepare.',
  )
  lengths = []
  with contextlib.closing(store_rows.StoreWriter(layout, folder)) as writer:
    for leaves in map(tree.flatten, steps.prefetch(1).as_numpy_iterator()):
      writer.append(leaves)
      lengths.append(len(leaves[0]))
    writer.finish(
        {},
        {'lengths': np.array(lengths, np.int64)},
        store_rows.INDEX,
        episodes.data_dir,
        episodes.facts,
        source,
    )


def _read_records(
    records: records_lib.Records, images: Sequence[str], num_processes: int
) -> Iterator[list[bytes]]:
  """Yields lists of records, with references instead of images.

  Args:
    records: the records.
    images: the keys of the features that are images.
    num_processes: the number of processes that read.

  Raises:
    OSError: if a record is damaged.
    RuntimeError: if a process dies, or the script has no `__main__` guard.
  """
  tasks, begin, ends = [], 0, np.cumsum(records.length)
  while begin < len(ends):
    limit = ends[begin] - records.length[begin] + _TASK_BYTES
    end = max(int(np.searchsorted(ends, limit, 'right')), begin + 1)
    tasks.append(records.part(begin, end))
    begin = end
  num_processes = min(num_processes, len(tasks))
  if num_processes <= 1:
    yield from _read_tasks(tasks, images)
    return
  checks.check_main_guard()
  # A process that has used TensorFlow must not be forked.
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(num_processes, context) as executor:
    pending: collections.deque[futures.Future] = collections.deque()
    try:
      for task in tasks:
        pending.append(executor.submit(_read_task, task, images))
        if len(pending) >= _TASKS_PER_PROCESS * num_processes:
          yield pending.popleft().result()
      while pending:
        yield pending.popleft().result()
    except process.BrokenProcessPool as e:
      raise RuntimeError(
          checks.explain_main_guard('A process that reads records has died.')
      ) from e
    finally:
      executor.shutdown(cancel_futures=True)


def _read_task(task: records_lib.Records, images: Sequence[str]) -> list[bytes]:
  return next(_read_tasks([task], images))


def _read_tasks(
    tasks: Sequence[records_lib.Records], images: Sequence[str]
) -> Iterator[list[bytes]]:
  """Yields the records of each task, which are checked."""
  if tasks and tasks[0].is_array_record:
    yield from (_read_array_records(task, images) for task in tasks)
  elif tasks:
    records = _read_tfrecords(tasks).as_numpy_iterator()
    for task in tasks:
      yield [
          _read_next(records, task, number, images)
          for number in range(len(task.offset))
      ]


def _read_next(records, task, number, images) -> bytes:
  """Returns the next record, which is a given record of a task."""
  offset = int(task.offset[number])
  try:
    record = next(records)
    length = int(task.length[number])
    if len(record) != length:
      raise ValueError(f'it has {len(record)} bytes instead of {length}')
    begin = offset + _HEADER_BYTES
    return _replace_images(record, images, int(task.file[number]), begin)
  except _DAMAGES as e:
    reason = errors.message_of(e) if isinstance(e, tf.errors.OpError) else e
    raise OSError(
        f'{task.path(number)} is damaged: the record at byte {offset} cannot be'
        f' read: {reason}'
    ) from e


def _read_array_records(
    task: records_lib.Records, images: Sequence[str]
) -> list[bytes]:
  """Returns the records of a task of ArrayRecord files."""
  records: list[bytes] = []
  for file, number in zip(task.file.tolist(), task.offset.tolist()):
    path = task.path(len(records))
    [record] = array_records.open_file(path).read(number, number + 1)
    begin = strings.offset_in_record(number, 0)
    try:
      records.append(_replace_images(record, images, file, begin))
    except message.DecodeError as e:
      raise OSError(
          f'{path} is damaged: record {number} is not a tf.train.Example: {e}'
      ) from e
  return records


def _replace_images(
    record: bytes, images: Sequence[str], file: int, begin: int
) -> bytes:
  """Returns a record with references instead of images.

  Args:
    record: a serialized `tf.train.Example`.
    images: the keys of the features that are images.
    file: the number of its file.
    begin: the byte of the file at which the record begins, or
      `strings.offset_in_record`.
  """
  if not images:
    return record
  example = tf.train.Example.FromString(record)
  features: Any = example.features.feature
  for name in set(images) & set(features):
    values = features[name].bytes_list.value
    offset = 0
    for number, value in enumerate(values):
      # Equal bytes elsewhere in the record are as good.
      head = value[:_SEARCHED_BYTES]
      offset = record.index(head, offset)
      while record[offset : offset + len(value)] != value:
        offset = record.index(head, offset + 1)
      values[number] = strings.reference(file, begin + offset, value)
      offset += len(value)
  return example.SerializeToString()


def _read_tfrecords(tasks: Sequence[records_lib.Records]) -> tf.data.Dataset:
  """Returns the records of tasks; TensorFlow checks their checksums."""
  paths, offsets, counts = [], [], []
  for task in tasks:
    # A run ends where a record does not follow the previous one.
    follows = task.offset[:-1] + task.length[:-1] + record_files.FRAME_BYTES
    jumps = (follows != task.offset[1:]) | (task.file[:-1] != task.file[1:])
    begins = np.concatenate([[0], np.flatnonzero(jumps) + 1])
    paths += [task.path(begin) for begin in begins]
    offsets.append(task.offset[begins])
    counts.append(np.diff(begins, append=len(task.offset)))
  runs = paths, np.concatenate(offsets), np.concatenate(counts)
  num_bytes = sum(int(task.length.sum()) for task in tasks)
  buffer_size = min(num_bytes // len(paths), _MAX_BUFFER_BYTES)

  @pipelines.as_library_code
  def read_run(path, offset, count):
    # This is `tf.data.TFRecordDataset` from any offset of a file.
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type='',
        buffer_size=buffer_size,
        byte_offsets=[offset],
    )
    spec = tf.TensorSpec([], tf.string)
    return tf.data.experimental.from_variant(variant, spec).take(count)

  dataset = tf.data.Dataset.from_tensor_slices(runs).flat_map(read_run)
  return dataset.prefetch(_RECORDS_AHEAD)
