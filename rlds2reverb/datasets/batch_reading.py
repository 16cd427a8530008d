"""Parses and decodes the records of TFDS files in batches of episodes.

TFDS parses every episode separately, which takes most of the time if episodes
are short. Here `tf.io.parse_example` parses many records together. It returns
the values of a field for the steps of all records, one after the other, as in a
batch. If that fails, the records are parsed one by one, and the bad ones become
batches without steps that have a fault.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import math
from typing import Any, NamedTuple

from google.protobuf import message
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

# The features that TFDS decodes for each step separately, in a sequence of any
# length. Their steps are values of one shape, or encoded as one string.
_FEATURES = (
    tfds.features.BBoxFeature,
    tfds.features.ClassLabel,
    tfds.features.Image,
    tfds.features.Scalar,
    tfds.features.Tensor,
    tfds.features.Text,
)

# The name of the operation that calls Python; see `fingerprints`.
_FIND_FAULT = 'rlds2reverb_find_fault'

_CANNOT_BE_PARSED = (
    'An episode must be stored as features.json says, but it is damaged or has'
    ' another type.'
)
_CANNOT_BE_DECODED = (
    'An episode must be stored as features.json says, but it cannot be decoded.'
)
_TOO_LARGE = (
    'An image must have at most as many pixels as its feature in features.json,'
    f' and as the limit of a value allows. {limits.VARIABLE} raises it.'
)
_WRONG_COUNT = 'A field of an episode must have all of its values.'
_PARTIAL_STEPS = (
    'The values stored for a step field are not a multiple of those of a step.'
)
# The fields of `tf.train.Feature` that hold the values of each type.
_KINDS = {
    tf.string: 'bytes_list',
    tf.float32: 'float_list',
    tf.int64: 'int64_list',
}


class _Read(NamedTuple):
  """Records, and the result of reading them.

  Attributes:
    is_good: bool `[]`: whether the records could be read.
    records: a dict of the string of each record, and of other strings, `[E]`.
    result: an `EpisodeBatch`, before decoding with row splits for each leaf. It
      has no episodes if the records could not be read.
  """

  is_good: tf.Tensor
  records: Any
  result: Any


@dataclasses.dataclass(frozen=True)
class _Settings:
  """All values except the records that the pipeline depends on.

  Attributes:
    text: the features, and the paths of the features with decoders, as JSON.
    num_parallel_calls: how many batches are parsed and decoded in parallel.
    features: the features.
    decoders: the TFDS decoders, nested as the features are.
    decode_steps: a function that decodes stored steps, stacked.
  """

  text: str
  num_parallel_calls: int
  features: tfds.features.FeaturesDict = dataclasses.field(compare=False)
  decoders: Mapping[str, Any] = dataclasses.field(compare=False)
  decode_steps: Callable[[Any], Any] = dataclasses.field(compare=False)


def read_batches(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    decoders: Mapping[str, Any] | None,
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> tf.data.Dataset | None:
  """Reads the episodes of a split as batches, in the order of TFDS.

  A batch has up to about 2 MiB, or one episode. `records.record_batches`
  documents how many records are in memory together, and
  `records.complete_batches` how files with an error are read. An episode that
  cannot be parsed or decoded, or whose fields differ in length, is in a
  separate batch, without its steps and with its fault.

  Args:
    builder: the builder of an RLDS data set on disk.
    split: one TFDS split.
    decoders: TFDS decoders of single features, nested as the features are.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.

  Returns:
    A data set of `EpisodeBatch`s; or None if a feature cannot be read in
    batches, or if the order may differ each time.
  """
  features, decoders = builder.info.features, decoders or {}
  if not _can_be_batched(features, decoders):
    return None
  records = records_lib.record_batches(
      builder,
      split,
      shuffle_files=shuffle_files,
      read_config=read_config,
      max_bytes=batch_lib.BATCH_BYTES,
  )
  if records is None:
    return None
  decoded_paths = [
      path
      for path, decoder in tree.flatten_with_path(decoders)
      if decoder is not None
  ]
  settings = _Settings(
      json.dumps([features.to_json(), decoded_paths], sort_keys=True),
      read_config.num_parallel_calls_for_decode,
      features,
      decoders,
      features_lib.make_steps_decoder(features, decoders),
  )
  batches = _parse_and_decode(records, settings)
  return batches if read_config.skip_prefetch else batches.prefetch(1)


def _can_be_batched(features: Any, decoders: Mapping[str, Any]) -> bool:
  """Returns whether all features can be parsed and decoded in batches."""
  steps = features[rlds.STEPS]
  return bool(
      type(steps) is tfds.features.Dataset
      and tree.flatten(steps.get_serialized_info())
      and all(
          _has_fixed_shape(
              steps.feature if name == rlds.STEPS else feature,
              decoders.get(name),
          )
          for name, feature in features.items()
      )
  )


def _has_fixed_shape(feature: Any, decoder: Any) -> bool:
  """Returns whether all values of a feature have the same known shape."""
  if type(feature) is tfds.features.FeaturesDict:
    return isinstance(decoder, (Mapping, type(None))) and all(
        _has_fixed_shape(part, (decoder or {}).get(name))
        for name, part in feature.items()
    )
  skips = type(decoder) is tfds.decode.SkipDecoding
  if type(feature) not in _FEATURES or not (skips or decoder is None):
    return False
  stored = feature.get_serialized_info()
  if isinstance(stored, Mapping) or stored.optional:
    return False
  decoded_shape = () if skips else feature.shape
  return not {None, 0} & {*stored.shape, *decoded_shape}


@pipelines.cache_pipeline
def _parse_and_decode(records, settings):
  """Returns the `EpisodeBatch`s of `records.RecordBatches`."""
  reader = _Reader(settings, records.order)

  def with_index(index, read):
    return index + _num_records(read.records), (index, read)

  # Bad records are rare, so many records are parsed and decoded together. Only
  # if that fails are they read again, one by one.
  parallel = settings.num_parallel_calls
  batches = records_lib.complete_batches(records, batch_lib.BATCH_BYTES)
  parsed = pipelines.map_or_else(
      batches, reader.parse, reader.bad_parsed, parallel
  )
  parts = pipelines.flat_map(parsed, reader.parts)
  if _needs_no_decoding(settings.features[rlds.STEPS].feature):
    # A guard against errors takes milliseconds, and nothing can fail here.
    decoded = pipelines.map_elements(parts, reader.decode, parallel)
  else:
    decoded = pipelines.map_or_else(
        parts, reader.decode, reader.bad_decoded, parallel
    )
  numbered = pipelines.scan(decoded, tf.constant(0, tf.int64), with_index)
  return pipelines.flat_map(numbered, reader.to_batches)


def _needs_no_decoding(steps) -> bool:
  """Returns whether stored steps equal decoded steps."""
  stored = tree.flatten(steps.get_serialized_info())
  decoded = tree.flatten(steps.get_tensor_info())
  return len(stored) == len(decoded) and all(
      (info.shape, info.tf_dtype) == (result.shape, result.tf_dtype)
      for info, result in zip(stored, decoded)
  )


def _num_records(records) -> tf.Tensor:
  return tf.size(records[records_lib.RECORD], tf.int64)


class _Reader:
  """Parses and decodes the records of one data set, in graph mode."""

  def __init__(self, settings, order):
    features = settings.features
    parser = _Parser(features)
    steps = features[rlds.STEPS].feature
    self._parser = parser
    self._order = order
    self._decode_fields = features_lib.make_field_decoder(
        features, settings.decoders
    )
    numbers = [
        spec
        for spec in tf.nest.flatten(steps.get_tensor_spec())
        if spec.dtype != tf.string and spec.shape.is_fully_defined()
    ]
    self._row_bytes = steps_lib.estimate_step_bytes(numbers)
    # Each is used twice, and building it takes long.
    self._parse_fn = pipelines.traced_once(self._parse)
    self._decode_fn = pipelines.traced_once(
        lambda columns: settings.decode_steps(parser.nest_steps(columns))
    )

  def parse(self, bounds, records) -> _Read:
    """Parses a batch of records."""
    part = rows_lib.slice_rows(records, *tf.unstack(bounds))
    return _Read(True, part, self._parse_complete(part))

  def bad_parsed(self, spec, bounds, records) -> _Read:
    """Returns a placeholder for records that cannot be parsed together."""
    empty = steps_lib.zeros(spec.result)
    return _Read(
        False,
        rows_lib.slice_rows(records, *tf.unstack(bounds)),
        # The row splits of no episodes are a 0.
        empty._replace(row_splits=tf.pad(empty.row_splits, [[0, 0], [0, 1]])),
    )

  def parts(self, read: _Read) -> tf.data.Dataset:
    """Divides records into parts that become batches; bad ones are one part."""
    bounds = tf.cond(
        read.is_good,
        lambda: batch_lib.divide(read.result.row_splits, self._row_bytes),
        lambda: tf.stack([[0, _num_records(read.records)]]),
    )
    return pipelines.pair_each(tf.data.Dataset.from_tensor_slices(bounds), read)

  def decode(self, bounds, read: _Read) -> _Read:
    """Decodes the episodes of a part."""
    part = batch_lib.slice_episodes(
        tf.where(read.is_good, bounds, 0), read.result
    )
    is_equal = tf.reduce_all(part.row_splits == part.row_splits[:1])
    return _Read(
        read.is_good & is_equal,
        rows_lib.slice_rows(read.records, *tf.unstack(bounds)),
        self._to_batch(part),
    )

  def bad_decoded(self, spec, bounds, read: _Read) -> _Read:
    """Returns a placeholder for a part that cannot be decoded."""
    records = rows_lib.slice_rows(read.records, *tf.unstack(bounds))
    return _Read(False, records, steps_lib.zeros(spec.result))

  def to_batches(self, first, read: _Read) -> tf.data.Dataset:
    """Returns the batch; or for bad records, a batch for each of them."""

    def read_single(index):
      record = rows_lib.slice_rows(read.records, index, index + 1)
      parsed = self._parse_complete(record)
      splits = parsed.row_splits
      is_equal = tf.reduce_all(splits == splits[:1])
      splits = errors.assert_true(splits, is_equal, splits)
      batch = self._to_batch(parsed._replace(row_splits=splits))
      return _without_fault(_of_one_episode(batch))

    def without_steps(spec, index):
      record = read.records[records_lib.RECORD][index : index + 1]
      fault = self._parser.find_fault(record, first + index, self._order)
      return steps_lib.zeros(spec)._replace(fault=fault)

    to_variant = tf.data.experimental.to_variant
    good = tf.data.Dataset.from_tensors(_without_fault(read.result))
    batches = tf.cond(
        read.is_good,
        lambda: to_variant(good),
        lambda: to_variant(
            pipelines.map_or_else(
                tf.data.Dataset.range(_num_records(read.records)),
                read_single,
                without_steps,
            )
        ),
    )
    return tf.data.experimental.from_variant(batches, good.element_spec)

  def _parse(self, records):
    fields = dict(records)
    parsed, is_complete = self._parser.parse(fields.pop(records_lib.RECORD))
    fields = {**self._decode_fields(parsed.fields), **fields}
    return parsed._replace(fields=fields), is_complete

  def _parse_complete(self, records) -> batch_lib.EpisodeBatch:
    """Returns parsed records, or fails if a record has a partial step."""
    parsed, is_complete = self._parse_fn(records)
    return errors.assert_true(parsed, is_complete, _PARTIAL_STEPS)

  def _to_batch(self, parsed) -> batch_lib.EpisodeBatch:
    return batch_lib.EpisodeBatch(
        self._decode_fn(parsed.steps), parsed.row_splits[0], parsed.fields
    )


def _without_fault(
    batch: batch_lib.EpisodeBatch,
) -> batch_lib.EpisodeBatch:
  return batch._replace(fault=errors.Fault('').tensors())


def _of_one_episode(
    batch: batch_lib.EpisodeBatch,
) -> batch_lib.EpisodeBatch:
  """Returns a batch whose static shape has one episode."""
  return batch._replace(
      row_splits=tf.ensure_shape(batch.row_splits, [2]),
      fields=tf.nest.map_structure(
          lambda leaf: tf.ensure_shape(leaf, [1, *leaf.shape[1:]]), batch.fields
      ),
  )


class _Parser:
  """Parses the records of one data set, and finds their faults."""

  def __init__(self, features: tfds.features.FeaturesDict):
    self._fields = dict(features.get_serialized_info())
    self._steps = self._fields.pop(rlds.STEPS)
    stored = features.tf_example_spec
    self._spec = {name: stored[name] for name, _ in _leaves(self._fields)}
    self._columns = _leaves({rlds.STEPS: self._steps})
    self._images = {
        name: feature
        for name, feature in features_lib.feature_leaves(features)
        if isinstance(feature, tfds.features.Image)
    }
    for name, _ in self._columns:
      self._spec[name] = tf.io.RaggedFeature(
          stored[name].dtype, row_splits_dtype=tf.int64
      )

  def parse(
      self, records: tf.Tensor
  ) -> tuple[batch_lib.EpisodeBatch, tf.Tensor]:
    """Parses records.

    Args:
      records: string `[E]`.

    Returns:
      Their batch, whose steps are a tuple of leaves with row splits for each;
      and, bool `[]`, whether no episode has a partial step.
    """
    values = tf.io.parse_example(records, self._spec)
    splits = tf.stack([values[name].row_splits for name, _ in self._columns])
    sizes = np.array([_size(info.shape[1:]) for _, info in self._columns])
    is_complete = tf.reduce_all(splits % sizes[:, np.newaxis] == 0)
    columns = tuple(
        tf.reshape(values[name].values, [-1, *info.shape[1:]])
        for name, info in self._columns
    )
    fields = [_cast(values[name], info) for name, info in _leaves(self._fields)]
    fields = tree.unflatten_as(self._fields, fields)
    parsed = batch_lib.EpisodeBatch(
        columns, splits // sizes[:, np.newaxis], fields
    )
    return parsed, is_complete

  def nest_steps(self, columns: Sequence[tf.Tensor]) -> Any:
    """Returns columns with the dtypes and the nest of the steps."""
    infos = tree.flatten(self._steps)
    return tree.unflatten_as(
        self._steps, [_cast(*pair) for pair in zip(columns, infos)]
    )

  def find_fault(
      self,
      record: tf.Tensor,
      index: tf.Tensor,
      order: tf.Tensor,
  ) -> errors.Fault:
    """Returns the reason why a record cannot be parsed or decoded.

    Args:
      record: string `[1]`.
      index: int64 `[]`, its index.
      order: string `[]`: the `records.Order` of the records, as JSON; empty if
        it is not known.
    """

    def find(record, index, order):
      place = order and records_lib.describe(order, index)
      return *self._find_broken_rule(record), place

    # Bad records are rare, and building a graph that looks at them takes longer
    # than reading a small data set.
    texts = tf.numpy_function(
        find,
        [record, index, order],
        [tf.string] * 4,
        stateful=False,
        name=_FIND_FAULT,
    )
    rule, field, values, place = [tf.ensure_shape(text, []) for text in texts]
    return errors.Fault(rule, field=field, values=values, place=place).tensors()

  def _find_broken_rule(self, record: np.ndarray) -> tuple[str, str, str]:
    """Returns the rule that a record breaks, the field and the value."""
    try:
      features = tf.train.Example.FromString(record[0]).features.feature
    except message.DecodeError:
      return _CANNOT_BE_PARSED, '', ''
    fields = _leaves(self._fields)
    counts = {}
    for name, _ in self._columns + fields:
      kind = name in features and features[name].WhichOneof('kind')
      if kind and kind != _KINDS[self._spec[name].dtype]:
        return _CANNOT_BE_PARSED, '', ''
      counts[name] = len(getattr(features[name], kind).value) if kind else 0
    sizes = {name: _size(info.shape[1:]) for name, info in self._columns}
    wrong_counts = {
        name: counts[name]
        for name, info in fields
        if counts[name] != _size(info.shape)
    }
    partial = {
        name: counts[name] for name in sizes if counts[name] % sizes[name]
    }
    lengths = {name: counts[name] // size for name, size in sizes.items()}
    if wrong_counts:
      rule, values = _WRONG_COUNT, wrong_counts
    elif partial:
      rule, values = _PARTIAL_STEPS, partial
    elif len(set(lengths.values())) > 1:
      rule, values = steps_lib.UNEQUAL_LENGTHS, lengths
    else:
      for name, feature in self._images.items():
        size = features_lib.find_too_large(
            features[name].bytes_list.value, feature
        )
        if size:
          text = f'{_short(name)} of {size[0]} by {size[1]} pixels'
          return _TOO_LARGE, _short(name), text
      return _CANNOT_BE_DECODED, '', ''
    texts = [f'{_short(name)}: {count}' for name, count in values.items()]
    field = _short(*values) if len(values) == 1 else ''
    return rule, field, ', '.join(texts)


def _leaves(infos: Any) -> list[tuple[str, Any]]:
  """Returns the name of each stored leaf, and its TFDS `TensorInfo`."""
  return [
      (paths.name_of(path), info)
      for path, info in tree.flatten_with_path(infos)
  ]


def _cast(tensor: tf.Tensor, info: Any) -> tf.Tensor:
  # TFDS stores all integers and bools as int64, and floats as float32.
  return tf.cast(tensor, info.tf_dtype)


def _size(shape) -> int:
  return math.prod(shape)


def _short(name: str) -> str:
  return name.removeprefix(f'{rlds.STEPS}/')
