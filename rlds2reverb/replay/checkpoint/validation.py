"""Validates the records of a checkpoint.

A Reverb server does not validate its checkpoint. Slices beyond a chunk, or a
shape beyond the bytes of a tensor, crash the process that samples them. So
every item is compared with its chunks and with the signature of its table
before a server starts from the checkpoint.

Chunks are parsed as messages. Items are not, because there are many more of
them: serialized items of equal length nearly always have the same fields at the
same bytes, which is called a form here. One item of each form is parsed, and
NumPy reads the values of the others.
"""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import math
import struct
from typing import Any, NamedTuple
import zlib

from google.protobuf import message
import numpy as np
import pyarrow
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import tf_private
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.replay import protos

_SNAPPY = pyarrow.Codec('snappy')
_LENGTH = struct.Struct('<Q')
# A record starts with its length and a checksum of it, and ends with a checksum
# of the content: the bytes before the content, and all bytes around it.
_HEADER_BYTES, _FRAME_BYTES = 12, 16
_READ_BYTES, _CONTENT_BYTES = 1 << 18, 4 << 20
# The maximum number of cached forms of one length.
_MAX_FORMS = 64
# The field numbers of `PrioritizedItem` and of its slices.
_KEY, _TABLE, _PRIORITY, _SAMPLED, _DATE, _TRAJECTORY = 1, 2, 5, 6, 7, 8
_SLICE_FIELDS = (1, 2, 3, 4)
# The wire types of protocol buffers.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ItemSlices(NamedTuple):
  """A batch of items and their slices.

  Attributes:
    keys: uint64 `[N]`.
    tables: the index of the table of each item, int64 `[N]`.
    chunks: the index of the chunk of each slice, int64 `[S]`.
    columns: the index of the column of each slice, int64 `[S]`.
    tensors: the index of the tensor of each slice in its chunk, int64 `[S]`.
    slice_tables: the index of the table of each slice, int64 `[S]`.
  """

  keys: np.ndarray
  tables: np.ndarray
  chunks: np.ndarray
  columns: np.ndarray
  tensors: np.ndarray
  slice_tables: np.ndarray


class RecordBuffer(NamedTuple):
  """A batch of records of a file.

  Attributes:
    content: bytes of the file, which contain the records.
    begins: the first byte of each record, int64 `[N]`.
    lengths: the number of bytes of each record, int64 `[N]`.
  """

  content: bytes
  begins: np.ndarray
  lengths: np.ndarray

  def records(self) -> Iterator[bytes]:
    """Yields each record."""
    for begin, length in zip(self.begins.tolist(), self.lengths.tolist()):
      yield self.content[begin : begin + length]


def read_records(path: str) -> Iterator[RecordBuffer]:
  """Yields the records of a compressed file in batches, in bounded memory.

  The next batch is decompressed in a thread.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is truncated or damaged, or expands too far.
  """
  buffer = b''
  for content in _prefetch(_decompress(path)):
    buffer += content
    begins, begin, last = [], 0, len(buffer) - _HEADER_BYTES
    while begin <= last:
      begins.append(begin)
      begin += _LENGTH.unpack_from(buffer, begin)[0] + _FRAME_BYTES
    if begin > len(buffer):  # The last record is incomplete.
      last = begins.pop()
      limits.check_size('a record', begin - last - _FRAME_BYTES)
      begin = last
    bounds = np.array([*begins, begin])
    lengths = np.diff(bounds) - _FRAME_BYTES
    if len(lengths):
      if not lengths.min():
        raise ValueError('it has an empty record')
      limits.check_size('a record', int(lengths.max()))
      yield RecordBuffer(buffer, bounds[:-1] + _HEADER_BYTES, lengths)
    buffer = buffer[begin:]
  if buffer:
    raise ValueError('it does not end with a complete record')


def _decompress(path: str) -> Iterator[bytes]:
  """Yields the decompressed content of a file; see `read_records`."""
  limit = limits.max_expanded_bytes(files.size_of(path))
  decompressor = zlib.decompressobj()
  total = 0
  with files.open_binary(path) as file:
    while not decompressor.eof:
      compressed = decompressor.unconsumed_tail or file.read(_READ_BYTES)
      try:
        content = decompressor.decompress(compressed, _CONTENT_BYTES)
      except zlib.error as e:
        raise ValueError(f'it cannot be decompressed: {e}') from e
      if not compressed and not content:
        raise ValueError('it is truncated')
      total += len(content)
      if total > limit:
        raise ValueError(
            f'it expands to more than {limit} bytes. If it is valid, increase'
            f' {limits.VARIABLE}, a fourth of the limit'
        )
      yield content
    if decompressor.unused_data or file.read(1):
      raise ValueError('it does not end with a complete record')


def _prefetch(iterator: Iterator[Any]) -> Iterator[Any]:
  """Yields the elements of an iterator, and prefetches the next in a thread."""
  with futures.ThreadPoolExecutor(1) as pool:
    element = pool.submit(next, iterator, None)
    while (value := element.result()) is not None:
      element = pool.submit(next, iterator, None)
      yield value


class _TensorKind(NamedTuple):
  """The sizes of tensors of one dtype and shape.

  Attributes:
    num_rows: the number of rows.
    num_bytes: the number of bytes in memory; None for strings.
    num_values: the number of values.
    preamble: the first bytes of compressed content of this size.
    row: the dtype and the shape of a row.
  """

  num_rows: int
  num_bytes: int | None
  num_values: int
  preamble: bytes
  row: tuple[int, tuple[int, ...]]


class Validator:
  """Validates chunks, and then the items that refer to them.

  Attributes:
    keys: the keys of the chunks, in the order of the records.
    episodes: the key of the episode of each chunk.
  """

  def __init__(self, tables: Mapping[str, protos.PriorityTableCheckpoint]):
    """Creates the validator of a checkpoint with the given tables.

    Raises:
      ValueError: if the settings of a table are not valid.
    """
    names = sorted(tables)
    self._table_indices = {name: index for index, name in enumerate(names)}
    self._signatures = [_check_table(tables[name]) for name in names]
    self._exponents = [
        priorities_lib.exponents(tables[name].sampler, tables[name].remover)
        for name in names
    ]
    self.keys = np.zeros(0, np.uint64)
    self.episodes = np.zeros(0, np.uint64)
    # The first tensor of each chunk, and the end.
    self._tensor_starts = np.zeros(1, np.int64)
    # Of each tensor, the number of rows, and the index of its row spec.
    self._num_rows = self._row_specs = np.zeros(0, np.int64)
    # The dtype and shape of the rows of each row spec.
    self._specs: list[Any] = []
    # The indices of chunks, sorted by key, and their keys.
    self._order = self._sorted_keys = np.zeros(0, np.int64)

  def add_chunks(self, batches: Iterator[RecordBuffer]) -> None:
    """Reads and validates all chunks.

    Raises:
      ValueError: if a chunk is not valid.
    """
    # Indices of `kinds`, by the serialized dtype and shape.
    kind_indices: dict[Any, int] = {}
    kinds: list[_TensorKind] = []
    keys, episodes, counts, tensor_kinds = [], [], [], []
    for record in (record for batch in batches for record in batch.records()):
      try:
        chunk = protos.ChunkData.FromString(record)
      except message.DecodeError as e:
        raise ValueError(f'chunk {len(keys)} cannot be parsed: {e}') from e
      tensors = chunk.data.tensors
      key, span = chunk.chunk_key, chunk.sequence_range
      if not len(tensors) or chunk.data_tensors_len not in (0, len(tensors)):
        raise ValueError(
            f'chunk {key} has {len(tensors)} tensors, but data_tensors_len is'
            f' {chunk.data_tensors_len}'
        )
      if not 0 <= span.start <= span.end:
        raise ValueError(
            f'chunk {key} goes from step {span.start} to step {span.end}'
        )
      for index, tensor in enumerate(tensors):
        spec = tensor.dtype, tensor.tensor_shape.SerializeToString()
        try:
          kind_index = kind_indices.get(spec)
          if kind_index is None:
            kinds.append(_tensor_kind(tensor))
            kind_index = kind_indices[spec] = len(kinds) - 1
          _check_content(tensor, kinds[kind_index])
        except ValueError as e:
          raise ValueError(f'tensor {index} of chunk {key}: {e}') from e
        tensor_kinds.append(kind_index)
      keys.append(key)
      episodes.append(span.episode_id)
      counts.append(len(tensors))
    self.keys = np.array(keys, np.uint64)
    self.episodes = np.array(episodes, np.uint64)
    self._tensor_starts = np.cumsum([0, *counts])
    spec_indices: dict[Any, int] = {}
    for kind in kinds:
      spec_indices.setdefault(kind.row, len(spec_indices))
    num_rows = [kinds[index].num_rows for index in tensor_kinds]
    row_specs = [spec_indices[kinds[index].row] for index in tensor_kinds]
    self._num_rows = np.array(num_rows, np.int64)
    self._row_specs = np.array(row_specs, np.int64)
    self._specs = [(tf.as_dtype(dtype), shape) for dtype, shape in spec_indices]
    self._order = np.argsort(self.keys)
    self._sorted_keys = self.keys[self._order]
    # A server writes a chunk twice if removed items were inserted again while
    # other items kept the first copy.
    repeats = np.flatnonzero(self._sorted_keys[1:] == self._sorted_keys[:-1])
    for repeat in repeats:
      first, second = (
          slice(*self._tensor_starts[chunk : chunk + 2])
          for chunk in self._order[repeat : repeat + 2]
      )
      if not all(
          np.array_equal(values[first], values[second])
          for values in (self._num_rows, self._row_specs)
      ):
        raise ValueError(
            f'it holds different chunks of the key {self._sorted_keys[repeat]}'
        )

  @property
  def has_repeated_chunks(self) -> bool:
    """Whether two chunks have the same key."""
    return bool((self._sorted_keys[1:] == self._sorted_keys[:-1]).any())

  def items(self, batches: Iterator[RecordBuffer]) -> Iterator[ItemSlices]:
    """Reads and validates items in batches, after the chunks.

    Raises:
      ValueError: if an item is not valid.
    """
    forms: dict[int, list[_ItemForm]] = collections.defaultdict(list)
    # The largest priority of each table, and the sums of its weights.
    self._highest = [0.0] * len(self._exponents)
    self._weight_sums = [np.zeros(len(powers)) for powers in self._exponents]
    for batch in batches:
      content = np.frombuffer(batch.content, np.uint8)
      keys = np.zeros(len(batch.lengths), np.uint64)
      tables = np.zeros(len(keys), np.int64)
      slices = []
      for length in np.unique(batch.lengths).tolist():
        of_length = np.flatnonzero(batch.lengths == length)
        rows = np.lib.stride_tricks.sliding_window_view(content, length)
        rows = rows[batch.begins[of_length]]
        for form, of_form in _group_by_form(rows, forms[length]):
          table = self._table_indices.get(form.table)
          if table is None:
            raise ValueError(
                'it holds items of a table that is not in tables.tfrecord,'
                f' {form.table!r}'
            )
          items, form_rows = of_length[of_form], rows[of_form]
          keys[items] = form.read_varints(form_rows, [form.key])[:, 0]
          tables[items] = table
          slices.append(self._check_items(form, form_rows, keys[items], table))
      yield ItemSlices(keys, tables, *map(np.concatenate, zip(*slices)))
    for name, table in self._table_indices.items():
      if self._highest[table] > 0 and not self._weight_sums[table].all():
        raise ValueError(
            f'the priorities of table {name!r} are too small: priority **'
            f' {max(self._exponents[table]):g} is 0 for all its items'
        )

  def _check_items(
      self, form: '_ItemForm', rows: np.ndarray, keys: Any, table: int
  ):
    """Validates the items of one form; returns the slices of `ItemSlices`."""
    priorities = form.read_priorities(rows)
    bad = np.flatnonzero(~(np.isfinite(priorities) & (priorities >= 0)))
    if len(bad):
      raise ValueError(
          f'item {keys[bad[0]]} has the priority {priorities[bad[0]]}'
      )
    self._add_weights(priorities, form.table, table)
    columns = form.columns
    num_columns = columns[-1] + 1 if len(columns) else 0
    if len(np.unique(columns)) != form.num_columns or not num_columns:
      raise ValueError(f'item {keys[0]} has a column without slices')
    signature = self._signatures[table]
    if signature is not None and len(signature) != num_columns:
      raise ValueError(
          f'item {keys[0]} has {num_columns} columns, and its table'
          f' {len(signature)}'
      )
    chunk_keys, offsets, lengths, tensors = (
        form.read_varints(rows, [fields[index] for fields in form.slices])
        for index in range(len(_SLICE_FIELDS))
    )
    # Offsets, lengths and tensors are int32, and may be negative.
    offsets, lengths, tensors = (
        values.astype(np.uint32).view(np.int32).astype(np.int64)
        for values in (offsets, lengths, tensors)
    )
    chunks = self._find_chunks(chunk_keys, num_columns)
    tensor_indices = self._find_tensors(keys, chunks, tensors)
    self._check_bounds(keys, offsets, lengths, tensor_indices)
    for column in form.squeezed:
      if (lengths[:, columns == column].sum(1) != 1).any():
        raise ValueError(
            f'item {keys[0]} squeezes column {column} of several rows'
        )
    row_specs = self._row_specs[tensor_indices]
    slice_columns = np.broadcast_to(columns, row_specs.shape)
    if signature is not None:
      problem = self._find_misfit(signature, slice_columns, row_specs)
      if problem:
        raise ValueError(f'item {keys[0]} or a later item: {problem}')
    # Slices of one column are concatenated.
    first_of_column = np.searchsorted(columns, columns)
    if (row_specs != row_specs[:, first_of_column]).any():
      raise ValueError(
          f'item {keys[0]} or a later item has a column of two shapes'
      )
    return (
        chunks.ravel(),
        slice_columns.ravel(),
        tensors.ravel(),
        np.full(chunks.size, table),
    )

  def _find_chunks(
      self, chunk_keys: np.ndarray, num_columns: int
  ) -> np.ndarray:
    """Returns the indices of the chunks of slices, by their keys `[N, S]`."""
    unique_keys = chunk_keys
    # All columns often have slices of the same chunks: one lookup suffices.
    num_items, num_slices = chunk_keys.shape
    if num_slices % num_columns == 0:
      by_column = chunk_keys.reshape(
          num_items, num_columns, num_slices // num_columns
      )
      if (by_column == by_column[:, :1]).all():
        unique_keys = by_column[:, 0]
    places = np.searchsorted(self._sorted_keys, unique_keys)
    places = np.minimum(places, max(len(self._sorted_keys) - 1, 0))
    if (
        not len(self._sorted_keys)
        or (self._sorted_keys[places] != unique_keys).any()
    ):
      raise ValueError(
          'chunks that its items refer to are not in chunks.tfrecord'
      )
    chunks = self._order[places]
    if unique_keys is not chunk_keys:
      chunks = np.tile(chunks, num_columns)
    return chunks

  def _find_tensors(
      self, keys: np.ndarray, chunks: np.ndarray, tensors: np.ndarray
  ) -> np.ndarray:
    """Returns the indices of slices' tensors among all tensors, `[N, S]`."""
    indices = self._tensor_starts[chunks] + tensors
    is_bad = (tensors < 0) | (indices >= self._tensor_starts[chunks + 1])
    bad = np.flatnonzero(is_bad.any(1))
    if len(bad):
      raise ValueError(
          f'item {keys[bad[0]]} refers to a tensor that its chunk does not have'
      )
    return indices

  def _check_bounds(self, keys, offsets, lengths, tensor_indices) -> None:
    """Raises a ValueError if a slice is not within the rows of its tensor."""
    num_rows = self._num_rows[tensor_indices]
    is_bad = (offsets < 0) | (lengths < 1) | (offsets + lengths > num_rows)
    bad = np.flatnonzero(is_bad.any(1))
    if len(bad):
      first = bad[0]
      raise ValueError(
          f'item {keys[first]} has slices beyond their chunks: offsets'
          f' {offsets[first].tolist()}, lengths {lengths[first].tolist()}, and'
          f' {num_rows[first].tolist()} rows'
      )

  def _find_misfit(
      self, signature: Sequence[Any], columns: np.ndarray, row_specs: np.ndarray
  ) -> str | None:
    """Describes a column with rows that do not fit the signature, if any."""
    pairs = np.unique(columns * len(self._specs) + row_specs)
    for column, index in np.stack(np.divmod(pairs, len(self._specs)), 1):
      spec, (dtype, shape) = signature[column], self._specs[index]
      # The time dimension of a signature may be missing.
      if spec.dtype != dtype or not (
          spec.shape[1:].is_compatible_with(shape)
          or spec.shape.is_compatible_with(shape)
      ):
        return (
            f'column {column} must be {spec.dtype.name} {spec.shape} by its'
            f' signature, but its rows are {dtype.name} {list(shape)}'
        )
    return None

  def _add_weights(self, priorities: np.ndarray, name: str, table: int):
    """Adds the weights by which a table samples or removes items."""
    self._highest[table] = max(self._highest[table], priorities.max())
    sums = self._weight_sums[table]
    for index, exponent in enumerate(self._exponents[table]):
      with np.errstate(over='ignore'):
        sums[index] += (priorities[priorities > 0] ** exponent).sum()
      if np.isinf(sums[index]):
        raise ValueError(
            f'the priorities of table {name!r} are too large, up to'
            f' {self._highest[table]:g}: the sum of priority **'
            f' {exponent:g} is infinite'
        )


def _tensor_kind(tensor: Any) -> _TensorKind:
  """Returns the kind of a tensor, by its dtype and shape.

  Raises:
    ValueError: if there is no such tensor, or it is larger than the limit.
  """
  dims = tensor.tensor_shape
  shape = tuple([dim.size for dim in dims.dim])
  if not shape or dims.unknown_rank or min(shape) < 0:
    raise ValueError(f'its shape is {list(shape)}')
  value_bytes, num_values = _value_bytes(tensor.dtype), math.prod(shape)
  row = tensor.dtype, shape[1:]
  if not value_bytes:
    return _TensorKind(shape[0], None, num_values, b'', row)
  num_bytes = num_values * value_bytes
  limits.check_size('it', num_bytes)
  preamble = _snappy_preamble(num_bytes)
  return _TensorKind(shape[0], num_bytes, num_values, preamble, row)


def _value_bytes(dtype_enum: int) -> int:
  """Returns the bytes of a value of a dtype, 0 for strings."""
  try:
    dtype = tf.as_dtype(dtype_enum)
  except TypeError as e:
    raise ValueError(f'there is no dtype {dtype_enum}') from e
  is_number = dtype.is_floating or dtype.is_integer or dtype.is_complex
  is_supported = is_number or dtype.is_bool or dtype == tf.string
  if not is_supported or dtype != dtype.base_dtype:
    raise ValueError(f'its dtype is {dtype.name}')
  return 0 if dtype == tf.string else dtype.size


def _snappy_preamble(num_bytes: int) -> bytes:
  """Returns the varint of the size with which compressed content starts."""
  digits = []
  while num_bytes > 127:
    digits.append(num_bytes & 127 | 128)
    num_bytes >>= 7
  return bytes([*digits, num_bytes])


def _check_content(tensor: Any, kind: _TensorKind) -> None:
  """Raises a ValueError if the content of a tensor does not fit its kind."""
  if kind.num_bytes is None:
    if len(tensor.string_val) != kind.num_values:
      raise ValueError(
          f'it has {kind.num_values} values, but {len(tensor.string_val)}'
          ' strings'
      )
    return
  content = tensor.tensor_content
  if not content.startswith(kind.preamble):
    raise ValueError(
        f'its shape takes {kind.num_bytes} bytes, but its content has another'
        ' size'
    )
  try:
    _SNAPPY.decompress(content, kind.num_bytes)
  except (OSError, pyarrow.ArrowException) as e:
    raise ValueError(f'its content cannot be decompressed: {e}') from e


def _check_table(table: Any) -> list[Any] | None:
  """Returns the specs of the columns of a table, or None without signature.

  Raises:
    ValueError: if a setting would crash the server.
  """
  limiter = table.rate_limiter
  if table.max_size < 1:
    raise ValueError(f'its max_size is {table.max_size}')
  counts = limiter.insert_count, limiter.delete_count, limiter.sample_count
  if min(counts) < 0 or not 0 <= counts[0] - counts[1] <= table.max_size:
    raise ValueError(
        f'{counts[0]} items were inserted and {counts[1]} deleted, and its'
        f' max_size is {table.max_size}'
    )
  # Comparisons with a NaN are false.
  if not (
      limiter.samples_per_insert > 0
      and limiter.min_diff <= limiter.max_diff
      and limiter.min_size_to_sample >= 1
  ):
    raise ValueError(f'its rate limiter is {limiter}')
  for name in 'sampler', 'remover':
    options = getattr(table, name)
    kind = options.WhichOneof('distribution')
    exponent = options.prioritized.priority_exponent
    is_set = kind and (
        kind in ('prioritized', 'heap') or getattr(options, kind)
    )
    if not is_set or not (exponent >= 0 and math.isfinite(exponent)):
      raise ValueError(f'its {name} is {options}')
  if not table.HasField('signature'):
    return None
  try:
    specs = tf.nest.flatten(tf_private.decode_structure(table.signature))
    for spec in specs:
      if not spec.dtype.as_numpy_dtype or spec.shape.rank is None:
        raise ValueError(f'it has {spec}')
  except Exception as e:  # TensorFlow's decoder raises errors of any class.
    raise ValueError(f'its signature cannot be decoded: {e}') from e
  return specs


class _ItemForm:
  """The positions of the fields in serialized items of one form.

  The position of a field is a pair of its first byte and its number of bytes.

  Attributes:
    table: the name of the table.
    key: the position of the key.
    slices: the positions of the fields of each slice, column by column.
    columns: the column of each slice, int64.
    num_columns: the number of columns.
    squeezed: the columns that are squeezed.
  """

  def __init__(self, record: bytes):
    """Finds the fields of an item.

    Raises:
      ValueError: if the record is not an item.
    """
    self.key = (0, 0)
    self._priority = -1
    self.slices: list[list[tuple[int, int]]] = []
    self.squeezed: list[int] = []
    self.num_columns, columns = 0, []
    # The bits of each byte that are equal in all items of the form.
    mask = np.full(len(record), 0xFF, np.uint8)
    table = b''
    numbers = set()
    for number, wire, begin, end in _fields(record, 0, len(record)):
      if number in numbers:
        raise ValueError('a field is repeated')
      numbers.add(number)
      if (number, wire) == (_KEY, _VARINT):
        self.key = begin, end - begin
        mask[begin:end] = 0x80
      elif (number, wire) == (_PRIORITY, _FIXED64):
        self._priority = begin
        mask[begin:end] = 0
      elif (number, wire) == (_SAMPLED, _VARINT):
        mask[begin:end] = 0x80
      elif (number, wire) == (_DATE, _BYTES):
        for inner, wire, first, last in _fields(record, begin, end):
          if inner not in (1, 2) or wire != _VARINT:
            raise ValueError(f'its date has a field {inner}')
          mask[first:last] = 0x80
      elif (number, wire) == (_TABLE, _BYTES):
        table = record[begin:end]
      elif (number, wire) == (_TRAJECTORY, _BYTES):
        columns = self._find_columns(record, begin, end, mask)
      else:
        raise ValueError(f'it has a field {number}')
    self.table = table.decode()
    self.columns = np.array(columns, np.int64)
    self._mask = mask
    self._masked = np.frombuffer(record, np.uint8) & mask

  def _find_columns(self, record, begin, end, mask) -> list[int]:
    """Finds the slices of a trajectory; returns the column of each."""
    columns = []
    for number, wire, start, stop in _fields(record, begin, end):
      if (number, wire) != (1, _BYTES):
        raise ValueError('it is no trajectory')
      for inner, wire, first, last in _fields(record, start, stop):
        if (inner, wire) == (2, _VARINT):
          if last - first != 1 or record[first] > 1:
            raise ValueError('a flag is no bool')
          self.squeezed += [self.num_columns] * record[first]
        elif (inner, wire) == (1, _BYTES):
          positions = [(0, 0)] * len(_SLICE_FIELDS)
          for field, wire, low, high in _fields(record, first, last):
            if field not in _SLICE_FIELDS or wire != _VARINT:
              raise ValueError(f'a slice has a field {field}')
            if positions[field - 1][1]:
              raise ValueError('a field is repeated')
            positions[field - 1] = low, high - low
            mask[low:high] = 0x80
          self.slices.append(positions)
          columns.append(self.num_columns)
        else:
          raise ValueError(f'a column has a field {inner}')
      self.num_columns += 1
    return columns

  def matches(self, rows: np.ndarray) -> np.ndarray:
    """Returns which items, uint8 `[N, length]`, have this form."""
    return ((rows & self._mask) == self._masked).all(1)

  def read_varints(
      self, rows: np.ndarray, positions: Sequence[tuple[int, int]]
  ) -> np.ndarray:
    """Returns values, uint64 `[N, len(positions)]`; 0 for missing fields."""
    values = np.zeros((len(positions), len(rows)), np.uint64)
    by_size = collections.defaultdict(list)
    for index, (begin, size) in enumerate(positions):
      by_size[size].append((index, begin))
    for size, fields in by_size.items():
      indices, begins = map(list, zip(*fields))
      total = np.zeros((len(begins), len(rows)), np.uint64)
      for digit in range(size):
        bits = rows.T[np.array(begins) + digit] & 127
        total |= bits.astype(np.uint64) << np.uint64(7 * digit)
      values[indices] = total
    return values.T

  def read_priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns the priorities, float64 `[N]`."""
    if self._priority < 0:
      return np.zeros(len(rows))
    content = rows[:, self._priority : self._priority + 8]
    return np.ascontiguousarray(content).view('<f8')[:, 0]


def _group_by_form(
    rows: np.ndarray, forms: list[_ItemForm]
) -> Iterator[tuple[_ItemForm, np.ndarray]]:
  """Yields the forms of items of one length, and the indices of their items.

  Args:
    rows: the items, uint8 `[N, length]`.
    forms: the cached forms, to which new ones are appended.
  """
  remaining = np.arange(len(rows))
  for form in forms:
    if not len(remaining):
      return
    is_match = form.matches(rows[remaining])
    if is_match.any():
      yield form, remaining[is_match]
      remaining = remaining[~is_match]
  while len(remaining):
    try:
      form = _ItemForm(rows[remaining[0]].tobytes())
    except (ValueError, IndexError) as e:
      raise ValueError(f'an item cannot be parsed: {e}') from e
    if len(forms) < _MAX_FORMS:
      forms.append(form)
      is_match = form.matches(rows[remaining])
    else:
      is_match = np.arange(len(remaining)) == 0
    yield form, remaining[is_match]
    remaining = remaining[~is_match]


def _fields(
    record: bytes, begin: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
  """Yields the number, the wire type and the bounds of each field.

  Raises:
    ValueError: if the bytes are not serialized fields.
  """
  while begin < end:
    tag, begin = _varint(record, begin, end)
    number, wire = tag >> 3, tag & 7
    if wire == _VARINT:
      _, stop = _varint(record, begin, end)
    elif wire == _FIXED64:
      stop = begin + 8
    elif wire == _FIXED32:
      stop = begin + 4
    elif wire == _BYTES:
      size, begin = _varint(record, begin, end)
      stop = begin + size
    else:
      raise ValueError(f'a field is of the wire type {wire}')
    if stop > end:
      raise ValueError('a field is truncated')
    yield number, wire, begin, stop
    begin = stop


def _varint(record: bytes, begin: int, end: int) -> tuple[int, int]:
  """Returns a number, and the position after it."""
  value = 0
  for position in range(begin, min(begin + 10, end)):
    value |= (record[position] & 127) << 7 * (position - begin)
    if record[position] < 128:
      return value, position + 1
  raise ValueError('a number is truncated')
