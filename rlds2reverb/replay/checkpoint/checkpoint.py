"""Reverb checkpoints: written from RLDS data without a server, merged, served.

A checkpoint is a directory that a Reverb server starts from: `tables.tfrecord`,
`items.tfrecord`, `chunks.tfrecord`, and an empty `DONE`, without which it is
not one. Here it is written whole or not at all.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
import socket
import tempfile
import time
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Optional,
    Sequence,
    Union,
)
import weakref

from absl import logging
import numpy as np
import reverb
from reverb.cc.checkpointing import checkpoint_pb2
from reverb.cc import schema_pb2
import tensorflow as tf
from tf_agents.replay_buffers import reverb_replay_buffer
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

_DONE = 'DONE'
_TIMEOUT_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class TableSettings:
  """A Reverb table that is not there yet.

  Attributes:
    name: of the table.
    sampler: a Reverb selector. By default uniform.
    remover: a Reverb selector. By default first in, first out.
    rate_limiter: by default a `MinSize` of 1.
    max_size: the most items. By default as many as are written.
    max_times_sampled: how often an item is sampled before it is removed; 0 for
      no limit.
  """

  name: str
  sampler: Any = dataclasses.field(default_factory=reverb.selectors.Uniform)
  remover: Any = dataclasses.field(default_factory=reverb.selectors.Fifo)
  rate_limiter: Any = dataclasses.field(
      default_factory=lambda: reverb.rate_limiters.MinSize(1)
  )
  max_size: Optional[int] = None
  max_times_sampled: int = 0


@report_lib.frees_report
def write_reverb_checkpoint(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    tables: Union[items_lib.TableItems, Sequence[items_lib.TableItems]],
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    reverb_tables: Sequence[Union[reverb.Table, TableSettings]] = (),
    identity: Optional[Any] = None,
    episode_id: Optional[str] = None,
    chunk_length: Optional[int] = None,
    **settings: Any,
) -> Dict[str, int]:
  """Writes RLDS data as a Reverb checkpoint, without a server.

  A server that starts from it has the items that `write_rlds_to_reverb` would
  have inserted, see there:

      rlds2reverb.write_reverb_checkpoint(
          rlds_data, '/data/cartpole', rlds2reverb.TableItems('transitions'))
      server = rlds2reverb.restore_reverb_server('/data/cartpole')
      replay_buffer = rlds2reverb.create_replay_buffer(server, 'transitions')

  Memory does not grow with the data, but for 8 bytes an item, to find two of
  the same key.

  Args:
    rlds_data: see `write_rlds_to_reverb`.
    directory: of the checkpoint: a path, or a URL that TensorFlow can write to.
      It must not exist, or be empty.
    tables: see `write_rlds_to_reverb`.
    policy_info_fn: see there.
    reverb_tables: the tables as they will be served, for those that are not to
      be as `TableSettings(name)`. A `reverb.Table` keeps its signature; for a
      `TableSettings` it is inferred from the data.
    identity: see there.
    episode_id: see there.
    chunk_length: see there.
    **settings: see there.

  Returns:
    The number of items, by table.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    OSError: if it cannot be written. Nothing of it is left then.
    ValueError: if a table is described twice or not filled, its signature does
      not fit the data, it is too small, two items have one key, or an argument
      or the data is not valid.
    InvalidArgumentError: on an invalid episode. Nothing is left then.
  """
  directory = files.expand(directory)
  source = frames_lib.make_source(
      rlds_data, tables, policy_info_fn, chunk_length, episode_id, **settings
  )
  layout = source.layout(identity)
  described = _describe_tables(list(layout.num_items), reverb_tables)
  for table in described:
    if isinstance(table, reverb.Table):
      specs.check_signature(table.info.signature, source.spec)
  with _new_checkpoint(directory) as path:
    with _Writer(path) as writer:
      for batch in layout.batches(source.frames()):
        writer.write(batch)
    writer.check_keys()
    _write_tables(
        path,
        [
            _table_checkpoint(table, layout.num_items[table.name], source.spec)
            for table in described
        ],
    )
  for name, count in layout.num_items.items():
    logging.info('Wrote %d items of table %r to %s.', count, name, directory)
  return layout.num_items


def merge_reverb_checkpoints(
    directories: Sequence[files.PathLike], directory: files.PathLike
) -> Dict[str, int]:
  """Merges checkpoints of the same tables into one.

  The items are in the order of `directories`, and in each in its own. An item
  that several of them have, under one key, is taken once, from the first, with
  the priority that it has there.

  Args:
    directories: of the checkpoints, written here or by a server.
    directory: of the new one. It must not exist, or be empty.

  Returns:
    The number of items, by table. Where they are more than any of the
    checkpoints has a table's `max_size` for, the merged table is that large.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    FileNotFoundError: if one of `directories` is not a checkpoint.
    CheckpointError: if one of them is damaged: a file is missing or cut, or
      does not hold what the others say.
    OSError: if it cannot be written. Nothing of it is left then.
    ValueError: if there is no checkpoint, their tables differ, or what they
      hold under one key does: two shards, say, that were written under one
      identity and without an `episode_id`.
  """
  if not directories:
    raise ValueError('There must be a checkpoint to merge.')
  directory = files.expand(directory)
  directories = [files.expand(path) for path in directories]
  tables = [_read_tables(path) for path in directories]
  for path, others in zip(directories[1:], tables[1:]):
    _check_same_tables(directories[0], tables[0], path, others)
  names = list(tables[0])
  with _new_checkpoint(directory) as path:
    keys = [
        records_lib.read_keys(each, {name: others[name] for name in names})
        for each, others in zip(directories, tables)
    ]
    chunks, items, of_tables = map(np.concatenate, zip(*keys))
    _copy_records(
        directories, records_lib.CHUNKS, path, chunks, np.zeros_like(chunks),
        _content_of_chunk,
    )
    copied = _copy_records(
        directories, records_lib.ITEMS, path, items, of_tables, _content_of_item
    )
    counts = np.bincount(of_tables[copied], minlength=len(names)).tolist()
    counts = dict(zip(names, counts))
    for name, table in tables[0].items():
      others = [checkpoint[name] for checkpoint in tables]
      samples = sum(other.rate_limiter.sample_count for other in others)
      table.max_size = max(other.max_size for other in others)
      table.max_size = max(table.max_size, counts[name])
      table.rate_limiter.insert_count = counts[name]
      table.rate_limiter.delete_count = 0
      table.rate_limiter.sample_count = samples
      table.num_unique_samples = sum(o.num_unique_samples for o in others)
      table.num_deleted_episodes = 0
    _write_tables(path, tables[0].values())
  return counts


def restore_reverb_server(
    directory: files.PathLike,
    *,
    port: Optional[int] = None,
    checkpoint_root: Optional[files.PathLike] = None,
) -> reverb.Server:
  """Starts a Reverb server from a checkpoint.

  The server listens on all interfaces and asks nobody who they are, as every
  Reverb server does: whoever reaches the port can read and change its tables.

  Args:
    directory: of the checkpoint, on the local disk.
    port: of the server. By default a free one.
    checkpoint_root: where the server's own checkpoints go, and from where it
      starts if there is one, on the local disk. Reverb removes all else there.
      By default a temporary directory, which goes with the server.

  Returns:
    The server, with the tables of the checkpoint.

  Raises:
    FileNotFoundError: if `directory` is not a whole checkpoint.
    CheckpointError: if it is damaged: a file is missing or cut, or does not
      hold what the others say.
    ConnectionError: if the server cannot be asked what it holds.
    ValueError: if `port` is in use, a directory is not on the local disk, or
      `checkpoint_root` holds `directory`.
  """
  directory = files.expand_local(directory, 'The checkpoint')
  if checkpoint_root is not None:
    checkpoint_root = files.expand_local(checkpoint_root, 'checkpoint_root')
  described = _read_tables(directory)
  # All but the names is as in the checkpoint, whatever is said here.
  tables = [
      reverb.Table(
          name,
          sampler=reverb.selectors.Uniform(),
          remover=reverb.selectors.Fifo(),
          max_size=table.max_size,
          rate_limiter=reverb.rate_limiters.MinSize(1),
      )
      for name, table in described.items()
  ]
  if port is not None:
    _check_port(port)
  is_temporary = checkpoint_root is None
  if is_temporary:
    checkpoint_root = tempfile.mkdtemp()
  elif os.path.realpath(directory).startswith(
      os.path.join(os.path.realpath(checkpoint_root), '')
  ):
    raise ValueError(
        f'checkpoint_root {checkpoint_root} holds {directory}, and Reverb'
        ' removes old checkpoints from its root. Choose another root.'
    )
  else:
    newest = _newest_checkpoint(checkpoint_root)
    if newest is not None:
      directory = newest
      described = _read_tables(directory)
  try:
    try:
      server = reverb.Server(
          tables,
          port,
          reverb.checkpointers.DefaultCheckpointer(
              checkpoint_root, fallback_checkpoint_path=directory
          ),
      )
    except RuntimeError as error:
      raise records_lib.CheckpointError(
          f'The checkpoint {directory} is damaged, or of other tables: {error}'
      ) from error
    _check_whole(server, directory, described)
  except BaseException:
    if is_temporary:
      shutil.rmtree(checkpoint_root, ignore_errors=True)
    raise
  if is_temporary:
    weakref.finalize(server, shutil.rmtree, checkpoint_root, ignore_errors=True)
  logging.info(
      'A Reverb server with %s listens on port %d of all interfaces, without'
      ' authentication.', directory, server.port,
  )
  return server


def create_replay_buffer(
    server: reverb.Server,
    table_name: str,
    sequence_length: Optional[int] = None,
    **kwargs: Any,
) -> reverb_replay_buffer.ReverbReplayBuffer:
  """Creates a TF-Agents replay buffer on a table, as its signature says.

  Args:
    server: the server.
    table_name: the table. Its signature must be of `Trajectory`s.
    sequence_length: see `ReverbReplayBuffer`.
    **kwargs: see there.

  Raises:
    ValueError: if there is no such table, or it has no such signature.
  """
  client = server.localhost_client()
  info = tables_lib.table_infos(client, [table_name], _TIMEOUT_SECONDS)
  signature = info[table_name].signature
  fields = getattr(signature, '_fields', ())
  if fields != trajectory.Trajectory._fields:
    raise ValueError(
        f'The signature of table {table_name!r} is not of trajectories:'
        f' {signature}.'
    )
  data_spec = trajectory.Trajectory(
      *tf.nest.map_structure(_without_time, tuple(signature))
  )
  return reverb_replay_buffer.ReverbReplayBuffer(
      data_spec,
      table_name=table_name,
      sequence_length=sequence_length,
      local_server=server,
      **kwargs,
  )


class _RecordFile:
  """A file of records, written."""

  def __init__(self, directory: str, file: str):
    self._path = os.path.join(directory, file)
    # The fastest level: what is large is compressed already.
    options = tf.io.TFRecordOptions(
        records_lib.COMPRESSION, compression_level=1
    )
    self._writer = tf.io.TFRecordWriter(self._path, options)

  def __enter__(self):
    return self

  def __exit__(self, error_type, *unused_error):
    with self._os_error(error_type is not None):
      self._writer.close()

  def write(self, records: Iterable[bytes]) -> None:
    with self._os_error():
      for record in records:
        self._writer.write(record)

  @contextlib.contextmanager
  def _os_error(self, ignored=False):
    try:
      yield
    except tf.errors.OpError as error:
      if not ignored:
        raise OSError(
            f'{self._path} could not be written, so nothing of the checkpoint'
            f' is left: {error.message}'
        ) from error


class _Writer:
  """Writes batches of items into a checkpoint."""

  def __init__(self, path: str):
    self._chunk_keys: List[np.ndarray] = []
    self._item_keys: List[np.ndarray] = []
    self._files = contextlib.ExitStack()
    self._chunks, self._items = (
        self._files.enter_context(_RecordFile(path, file))
        for file in (records_lib.CHUNKS, records_lib.ITEMS)
    )

  def __enter__(self):
    return self

  def __exit__(self, *error):
    return self._files.__exit__(*error)

  def write(self, batch: layout_lib.Batch) -> None:
    self._chunks.write(batch.chunks)
    heads = b''.join(chunk[: encoding.KEY_HEAD] for chunk in batch.chunks)
    heads = np.frombuffer(heads, np.uint8).reshape(-1, encoding.KEY_HEAD)
    self._chunk_keys.append(encoding.keys_of(heads))
    for items in batch.items:
      content = items['item'].tobytes()
      size = len(content) // len(items)
      self._items.write(
          content[begin : begin + size]
          for begin in range(0, len(content), size)
      )
      heads = np.frombuffer(content, np.uint8).reshape(-1, size)
      self._item_keys.append(encoding.keys_of(heads))

  def check_keys(self) -> None:
    """Raises a ValueError if two chunks, or two items, have the same key."""
    for kind, keys in ('chunks', self._chunk_keys), ('items', self._item_keys):
      keys = np.concatenate(keys) if keys else np.zeros(0, np.uint64)
      if len(np.unique(keys)) != len(keys):
        raise ValueError(
            f'Two {kind} have the same key, so one would replace the other.'
            ' Write them under another identity.'
        )


@contextlib.contextmanager
def _new_checkpoint(directory: str) -> Iterator[str]:
  """Yields the path to write a checkpoint to; it is in its place when whole."""
  with whole.new_folder(directory, [_DONE]) as path:
    yield path
    with open(os.path.join(path, _DONE), 'wb'):
      pass


def _copy_records(directories, file, path, keys, tables, content):
  """Copies the records of several checkpoints, each key once.

  Args:
    directories: of the checkpoints.
    file: which of their files.
    path: of the new checkpoint.
    keys: of the records, uint64 `[N]`.
    tables: the tables in which keys are told apart, int64 `[N]`.
    content: takes a record and returns what must not differ under one key.

  Returns:
    Which records were copied, bool `[N]`.
  """
  first = np.zeros(len(keys), np.int64)
  for table in np.unique(tables):
    (chosen,) = np.nonzero(tables == table)
    _, firsts, inverse = np.unique(
        keys[chosen], return_index=True, return_inverse=True
    )
    first[chosen] = chosen[firsts[inverse]]
  is_first = first == np.arange(len(first))
  is_shared = np.bincount(first, minlength=len(first))[first] > 1
  digests = np.zeros(len(first) if is_shared.any() else 0, np.uint64)
  inserted_at = time.time_ns() + np.cumsum(is_first)
  begin = 0
  with _RecordFile(path, file) as copy:
    for directory in directories:
      for batch in records_lib.read(directory, file):
        chosen = slice(begin, begin + len(batch))
        for place in begin + np.flatnonzero(is_shared[chosen]):
          digest = _digest(content(batch[place - begin]))
          if is_first[place]:
            digests[place] = digest
          elif digests[first[place]] != digest:
            raise ValueError(
                f'{directory} and a checkpoint before it hold different records'
                f' in {file} under the same key. Different data was written'
                ' under one identity, or with another chunk_length. Write each'
                ' under an identity of its own, or with an episode_id that no'
                ' two episodes have in common.'
            )
        begin = chosen.stop
        kept = list(itertools.compress(batch, is_first[chosen]))
        if file == records_lib.ITEMS:
          # So that they are in this order in what a server writes, too.
          dates = inserted_at[chosen][is_first[chosen]]
          kept = encoding.redate_items(kept, dates)
        copy.write(kept)
  return is_first


def _digest(content: bytes) -> int:
  digest = hashlib.blake2b(content, digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def _content_of_chunk(record: bytes) -> bytes:
  # A server writes the same numbers in fewer bytes.
  chunk = schema_pb2.ChunkData.FromString(record)
  return chunk.SerializeToString(deterministic=True)


def _content_of_item(record: bytes) -> bytes:
  # Its priority, and when it was inserted, may well differ.
  item = schema_pb2.PrioritizedItem.FromString(record)
  return item.flat_trajectory.SerializeToString(deterministic=True)


def _describe_tables(names, described):
  """Returns a `reverb.Table` or `TableSettings` for each of `names`."""
  tables = {table.name: table for table in described}
  if len(tables) != len(described):
    raise ValueError('reverb_tables describes a table twice.')
  unknown = sorted(tables.keys() - set(names))
  if unknown:
    raise ValueError(
        f'reverb_tables describes table {unknown[0]!r}, which no items go into.'
        f' The tables with items are {names}.'
    )
  return [tables.get(name) or TableSettings(name) for name in names]


def _table_checkpoint(table, num_items, spec):
  """Returns the `PriorityTableCheckpoint` of a table with `num_items`."""
  if isinstance(table, TableSettings):
    table = reverb.Table(
        table.name,
        sampler=table.sampler,
        remover=table.remover,
        max_size=(
            max(num_items, 1) if table.max_size is None else table.max_size
        ),
        rate_limiter=table.rate_limiter,
        max_times_sampled=table.max_times_sampled,
        signature=tensor_spec.add_outer_dim(spec),
    )
  # TableInfo has the protocol buffers that the checkpoint is of.
  info = schema_pb2.TableInfo.FromString(table.internal_table.info())
  if num_items > info.max_size:
    raise ValueError(
        f'Table {table.name!r} is too small: its max_size is {info.max_size},'
        f' and the data makes {num_items} items. Raise max_size.'
    )
  limiter = info.rate_limiter_info
  checkpoint = checkpoint_pb2.PriorityTableCheckpoint(
      table_name=info.name,
      max_size=info.max_size,
      max_times_sampled=info.max_times_sampled,
      rate_limiter=checkpoint_pb2.RateLimiterCheckpoint(
          samples_per_insert=limiter.samples_per_insert,
          min_diff=limiter.min_diff,
          max_diff=limiter.max_diff,
          min_size_to_sample=limiter.min_size_to_sample,
          insert_count=num_items,
      ),
      sampler=info.sampler_options,
      remover=info.remover_options,
  )
  if info.HasField('signature'):
    checkpoint.signature.CopyFrom(info.signature)
  return checkpoint


def _write_tables(path, tables) -> None:
  with _RecordFile(path, records_lib.TABLES) as file:
    file.write(table.SerializeToString() for table in tables)


def _read_tables(directory):
  """Returns the `PriorityTableCheckpoint`s of a checkpoint, by name."""
  if not files.exists(os.path.join(directory, _DONE)):
    raise FileNotFoundError(
        f'{directory} is not a whole Reverb checkpoint: it has no {_DONE}.'
    )
  return records_lib.read_tables(directory)


def _newest_checkpoint(root: str) -> Optional[str]:
  """Returns the checkpoint in `root` that a server starts from, if any."""
  if not os.path.isdir(root):
    return None
  names = [
      name
      for name in sorted(os.listdir(root))
      if os.path.exists(os.path.join(root, name, _DONE))
  ]
  return os.path.join(root, names[-1]) if names else None


def _check_whole(server, directory, tables) -> None:
  """Stops a server that does not hold what its checkpoint says."""
  try:
    infos = tables_lib.table_infos(
        server.localhost_client(), list(tables), _TIMEOUT_SECONDS
    )
    for name, table in tables.items():
      # A server leaves out, without a word, items whose chunks are missing.
      records_lib.check_num_items(directory, table, infos[name].current_size)
  except BaseException:
    server.stop()
    raise


def _check_same_tables(path, tables, other_path, others) -> None:
  def settings(table):
    settings = checkpoint_pb2.PriorityTableCheckpoint()
    settings.CopyFrom(table)
    for count in ('max_size', 'num_deleted_episodes', 'num_unique_samples'):
      settings.ClearField(count)
    for count in ('insert_count', 'delete_count', 'sample_count'):
      settings.rate_limiter.ClearField(count)
    return settings

  if tables.keys() != others.keys():
    raise ValueError(
        f'The checkpoints must have the same tables, but {path} has'
        f' {sorted(tables)}, and {other_path} has {sorted(others)}.'
    )
  for name, table in tables.items():
    if settings(table) != settings(others[name]):
      raise ValueError(
          f'Table {name!r} differs between the checkpoints {path} and'
          f' {other_path}:\n{settings(table)}\n{settings(others[name])}'
      )


def _check_port(port: int) -> None:
  # A second Reverb server would start on the same port without an error.
  with socket.socket() as probe:
    try:
      probe.bind(('', port))
    except OSError as error:
      raise ValueError(
          f'Port {port} is in use. Choose another one, or none.'
      ) from error


def _without_time(spec):
  return tf.TensorSpec(spec.shape[1:], spec.dtype, spec.name)
