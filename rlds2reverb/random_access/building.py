"""Builds the index of a TFDS data set where it lies, or a copy of any data."""

import collections
from concurrent import futures
import functools
import multiprocessing
import os
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Union,
)

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.core import dataset_builder
from tensorflow_datasets.core import file_adapters
import tree

from rlds2reverb.datasets import files as files_lib
from rlds2reverb.datasets import identity
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import record_lengths
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.random_access import data_files
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import index_writer
from rlds2reverb.random_access import record_reading
from rlds2reverb.random_access import references
from rlds2reverb.trajectories import conversion

Prepare = Callable[[tf.data.Dataset], tf.data.Dataset]

# So many bytes of records are read by one task, and so many tasks wait for
# their turn for each process.
_TASK_BYTES = 32 << 20
_TASKS_PER_PROCESS = 2

# How TFDS reads files by default: 16 records of each of 16 files in turn.
_CYCLE_LENGTH = 16
_BLOCK_LENGTH = 16

_IN_PLACE = (
    'It cannot be indexed where it lies. What works is a prepared copy:'
    ' open_replay_buffer(episodes, directory=...) for TF-Agents, or'
    ' build_index(load_episodes(...), folder), which copies every step into the'
    ' index.'
)


class _Records(NamedTuple):
  """The records of a split, in the order in which TFDS gives them.

  Attributes:
    folder: the folder of the data set.
    names: the names of the files.
    file: int64 `[R]`: the number of the file of each record.
    offset: int64 `[R]`: where in it each record begins.
    length: int64 `[R]`: how many bytes it has.
  """

  folder: str
  names: List[str]
  file: np.ndarray
  offset: np.ndarray
  length: np.ndarray


def build_index(
    source: Union[tf.data.Dataset, files_lib.PathLike],
    folder: files_lib.PathLike,
    split: str = 'train',
    *,
    data_dir: Optional[files_lib.PathLike] = None,
    prepare: Optional[Prepare] = None,
    as_trajectories: bool = False,
    num_processes: int = 1,
    **conversion_kwargs: Any,
) -> index_lib.Index:
  """Builds an index, so that the steps of a data set can be read in any order.

  Of a TFDS data set on disk the images are not copied: the index has 20 bytes
  for each, which say where it is. All else that a step has is in the index.

      index = build_index('/data/bridge', '/data/bridge_index', prepare=prepare)

  Args:
    source: what `load_episodes` takes: a directory of TFRecord files, or the
      name of a TFDS data set. Its images stay encoded, and `prepare` can move
      and drop them, but not look at them. Or any data set of RLDS episodes, of
      which the index is then a copy.
    folder: the folder of the index, which is new, on the local disk.
    split: the split of a data set on disk.
    data_dir: see `load_episodes`.
    prepare: a function from the data set of episodes to one of the episodes
      that are indexed: `map_fields`, `transform_episodes` and so on. By default
      they are indexed as they are.
    as_trajectories: whether rows are the frames of `Trajectory`s, as
      `convert_rlds_to_trajectories` gives them, and not steps.
    num_processes: how many processes read files. With more than one, the
      program must be importable: `if __name__ == '__main__':`.
    **conversion_kwargs: further arguments of `convert_rlds_to_trajectories`.

  Returns:
    The index. Its episodes have the order of `load_episodes`.

  Raises:
    FileExistsError: if `folder` is not empty.
    FileNotFoundError: if there is no such data set.
    ValueError: if the data set cannot be indexed where it lies; if `prepare`
      looks at images, or returns no episodes; or if a field has no fixed shape.
    OSError: if a file is damaged.
    InvalidArgumentError: if an episode is invalid.
  """
  folder = files_lib.expand_local(folder, 'An index')
  checks.check_positive('num_processes', num_processes)
  if conversion_kwargs and not as_trajectories:
    raise ValueError(
        f'{sorted(conversion_kwargs)} are for as_trajectories=True.'
    )
  mark = references.new_mark()
  if isinstance(source, tf.data.Dataset):
    episodes, records = source, _Records('', [], *[np.zeros(0, np.int64)] * 3)
    origin = ''
  else:
    with files_lib.os_errors(os.fspath(source)):
      builder = loading.find_builder(source, data_dir)
    _check_in_place(builder, split)
    records = _find_records(builder, split)
    origin = versions.fingerprint(records.folder)
    episodes = _episodes(builder, records, mark, num_processes)
  facts = [data_files.facts_of(records.folder, name) for name in records.names]
  with whole.new_folder(folder, [index_lib.MARKER]) as unfinished:
    try:
      prepared = prepare(episodes) if prepare else episodes
      rows = _rows(prepared, as_trajectories, conversion_kwargs)
      writer = _write(rows, unfinished, mark)
    except (tf.errors.InvalidArgumentError, ValueError) as e:
      if 'mage' in str(e) and 'ecod' in str(e):
        raise ValueError(
            'prepare looks at images, which an index of files does not have.'
            ' Decode them when they are read. If what it makes of them must be'
            f' stored: {_IN_PLACE} The error: {e}'
        ) from e
      raise
    writer.finish(
        records.folder,
        facts,
        as_trajectories,
        identity.fingerprint(
            origin,
            [list(known) for known in facts],
            writer.layout.to_json(),
            writer.num_episodes,
        ),
    )
  return index_lib.Index(folder)


def _check_in_place(builder: tfds.core.DatasetBuilder, split: str) -> None:
  """Raises a ValueError if the files of a data set cannot be indexed."""
  name = f'{builder.info.full_name} in {builder.data_path}'
  read = getattr(type(builder), '_as_dataset', None)
  # pylint: disable-next=protected-access
  if read is not dataset_builder.FileReaderBuilder._as_dataset:
    raise ValueError(f'TFDS does not read {name} from files. {_IN_PLACE}')
  file_format = builder.info.file_format or file_adapters.DEFAULT_FILE_FORMAT
  if file_format != file_adapters.FileFormat.TFRECORD:
    raise ValueError(
        f'{name} has files of the format {file_format.value}, and not of'
        f' TFRecord. {_IN_PLACE}'
    )
  if files_lib.is_url(os.fspath(builder.data_path)):
    raise ValueError(f'{name} is not on the local disk. {_IN_PLACE}')
  if rlds.STEPS not in builder.info.features:
    raise ValueError(
        f'{name} is not an RLDS data set: its features are'
        f' {sorted(builder.info.features)}, without {rlds.STEPS}.'
    )
  if not isinstance(split, (str, tfds.core.splits.AbstractSplit)):
    raise ValueError(f'split must be one split, but is {split!r}.')


def _find_records(builder, split) -> _Records:
  instructions = builder.info.splits[split].file_instructions
  paths = [os.fspath(each.filename) for each in instructions]
  begins, lengths = [], []
  for path, each in zip(paths, instructions):
    found = record_lengths.read_lengths(path, each.skip + each.take)
    if len(found) < each.skip + each.take:
      raise OSError(
          f'{path} is damaged, or compressed: it has {len(found)} whole'
          f' records, but should have at least {each.skip + each.take}. If it'
          f' is compressed: {_IN_PLACE}'
      )
    starts = np.cumsum(found + record_lengths.FRAME_BYTES)
    starts -= found + record_lengths.FRAME_BYTES
    begins.append(starts[each.skip :])
    lengths.append(found[each.skip :])
  counts = [each.take for each in instructions]
  file, record = _order(counts, builder.info.disable_shuffling)
  first = np.cumsum([0, *counts])[file] + record
  folder = os.fspath(builder.data_path)
  # The parts of a split may be of one file.
  names = sorted({os.path.relpath(path, folder) for path in paths})
  number = np.array(
      [names.index(os.path.relpath(path, folder)) for path in paths], np.int64
  )
  return _Records(
      folder,
      names,
      number[file],
      np.concatenate([*begins, np.zeros(0, np.int64)])[first],
      np.concatenate([*lengths, np.zeros(0, np.int64)])[first],
  )


def _order(counts: Sequence[int], is_ordered: bool):
  """Returns the file and the number in it of each record, as TFDS reads."""
  order = tf.data.Dataset.from_tensor_slices(
      (np.arange(len(counts)), np.array(counts, np.int64))
  ).interleave(
      lambda file, count: tf.data.Dataset.zip(
          (
              tf.data.Dataset.from_tensors(file).repeat(),
              tf.data.Dataset.range(count),
          )
      ),
      cycle_length=1 if is_ordered else _CYCLE_LENGTH,
      block_length=_BLOCK_LENGTH,
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True,
  )
  batches = list(order.batch(1 << 16).as_numpy_iterator())
  if not batches:
    return np.zeros(0, np.int64), np.zeros(0, np.int64)
  return tuple(map(np.concatenate, zip(*batches)))


def _episodes(
    builder: tfds.core.DatasetBuilder,
    records: _Records,
    mark: bytes,
    num_processes: int,
) -> tf.data.Dataset:
  """Returns the episodes of records, with references in place of images."""
  features = builder.info.features
  decoders: Dict[str, Any] = {}
  names = _images(features, (), decoders)
  if not names:
    logging.warning(
        '%s has no encoded images, so all of it is copied into the index.',
        builder.info.full_name,
    )
  read = functools.partial(
      record_reading.read, mark=mark, names=names, folder=records.folder
  )
  decode = loading.episode_decoder(features, decoders)
  stored_decoders = {**decoders, rlds.STEPS: tfds.decode.SkipDecoding()}
  return (
      tf.data.Dataset.from_generator(
          lambda: _run(read, _tasks(records), num_processes),
          output_signature=tf.TensorSpec([None], tf.string),
      )
      .unbatch()
      .map(
          lambda record: decode(
              features.deserialize_example(record, decoders=stored_decoders)
          ),
          num_parallel_calls=tf.data.AUTOTUNE,
      )
  )


def _images(features, keys, decoders) -> List[bytes]:
  """Returns the names of the images that records have, and skips decoding."""
  names = []
  for key, feature in features.items():
    if isinstance(feature, tfds.features.Dataset):
      feature = feature.feature
    if isinstance(feature, tfds.features.FeaturesDict):
      inner = decoders[key] = {}
      names += _images(feature, (*keys, key), inner)
    elif isinstance(feature, tfds.features.Image):
      decoders[key] = tfds.decode.SkipDecoding()
      names.append('/'.join((*keys, key)).encode())
  return names


def _tasks(records: _Records) -> Iterator[record_reading.Task]:
  begin, ends = 0, np.cumsum(records.length)
  while begin < len(ends):
    before = ends[begin] - records.length[begin]
    end = int(np.searchsorted(ends, before + _TASK_BYTES, 'right'))
    end = max(end, begin + 1)
    yield record_reading.Task(
        [records.names[file] for file in records.file[begin:end]],
        records.file[begin:end].tolist(),
        records.offset[begin:end].tolist(),
        records.length[begin:end].tolist(),
    )
    begin = end


def _run(read, tasks, num_processes) -> Iterator[List[bytes]]:
  """Yields what tasks read, in their order, of which few are ahead."""
  if num_processes == 1:
    yield from map(read, tasks)
    return
  # A process that has used TensorFlow must not be forked.
  context = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(num_processes, context) as executor:
    waiting: Deque[futures.Future] = collections.deque()
    try:
      for task in tasks:
        waiting.append(executor.submit(read, task))
        if len(waiting) >= _TASKS_PER_PROCESS * num_processes:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    finally:
      for future in waiting:
        future.cancel()


class _Rows(NamedTuple):
  """Rows of episodes, as they are written.

  Attributes:
    spec: the nest of one row.
    parts: yields the leaves of some rows of an episode, and whether these are
      its first ones.
  """

  spec: Any
  parts: Iterator[Any]


def _rows(episodes, as_trajectories, kwargs) -> _Rows:
  if as_trajectories:
    blocks = conversion.trajectory_blocks(
        episodes, one_episode_blocks=True, **kwargs
    )
    spec = blocks.element_spec.trajectory
    # Plain dicts can be read without TF-Agents.
    nest = {name: value for name, value in spec._asdict().items()}
    dataset = blocks.map(
        lambda block: (block.trajectory._asdict(), block.step == 0)
    )
  else:
    spec = episodes.element_spec
    if not isinstance(spec, dict) or rlds.STEPS not in spec:
      raise ValueError(
          'The elements of a data set to index must be episodes, dicts with'
          f' {rlds.STEPS!r}, but their spec is {spec}.'
      )
    dataset = steps_lib.stack_episodes(episodes).map(
        lambda episode: (
            steps_lib.with_equal_lengths(episode[rlds.STEPS]),
            True,
        )
    )
    nest = dataset.element_spec[0]
  spec = tree.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), nest
  )
  return _Rows(spec, dataset.prefetch(1).as_numpy_iterator())


def _write(rows: _Rows, folder: str, mark: bytes) -> index_writer.IndexWriter:
  writer = index_writer.IndexWriter(
      folder, index_writer.layout_of(rows.spec), mark
  )
  try:
    for steps, is_new in rows.parts:
      leaves = tree.flatten(steps)
      writer.append(leaves, len(leaves[0]), bool(is_new))
  finally:
    writer.close()
  return writer
