"""Reads TFDS files as batches: many episodes are parsed and decoded at once.

TFDS parses every episode by itself, which takes most of the time if they are
short. Here `tf.io.parse_example` parses many at once. It returns the values of
a field for all their steps, one after the other, as in a batch.
"""

import dataclasses
import json
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import image_decoders
from rlds2reverb.datasets import readable_features
from rlds2reverb.datasets import record_parsing
from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import batch as batch_lib
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import steps as steps_lib

# The features that TFDS decodes for each step alone, in a sequence of any
# length. Their steps are values of one shape, or encoded as one string.
_FEATURES = (
    tfds.features.BBoxFeature,
    tfds.features.ClassLabel,
    tfds.features.Image,
    tfds.features.Scalar,
    tfds.features.Tensor,
    tfds.features.Text,
)


class _Read(NamedTuple):
  """Some records, and the result of reading them.

  Attributes:
    is_good: bool `[]`: whether they could be read.
    records: a dict of the string of each record, and of more, `[E]`.
    result: an `EpisodeBatch`, before decoding with row splits for each leaf. It
      has no episodes if the records could not be read.
  """

  is_good: tf.Tensor
  records: Any
  result: Any


def read_batches(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    decoders: Optional[Mapping[str, Any]],
    decode_steps: Callable[[Any], Any],
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> Optional[tf.data.Dataset]:
  """Reads the episodes of a split as batches, in the order of TFDS.

  A batch has up to about 2 MiB, or one episode. `records.record_batches` says
  how many records are in memory together, and `records.complete_batches` what
  becomes of files that cannot be read to their end. An episode that cannot be
  parsed or decoded, or whose fields differ in length, comes in a batch of its
  own, without its steps and with its fault.

  Args:
    builder: the builder of an RLDS data set on disk.
    split: one TFDS split.
    decoders: TFDS decoders of single features, nested as the features are.
    decode_steps: a function that decodes stored steps, stacked.
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
  skipped = [
      path for path, one in tree.flatten_with_path(decoders) if one is not None
  ]
  settings = _Settings(
      json.dumps([features.to_json(), skipped], sort_keys=True),
      read_config.num_parallel_calls_for_decode,
      features,
      decoders,
      decode_steps,
  )
  batches = _parse_and_decode(records, settings)
  return batches if read_config.skip_prefetch else batches.prefetch(1)


@dataclasses.dataclass(frozen=True)
class _Settings:
  """Everything besides the records that the pipeline depends on.

  Attributes:
    text: the features, and the paths of those that are left encoded, as JSON.
    num_parallel_calls: how many batches are parsed and decoded at a time.
    features: the features.
    decoders: the TFDS decoders, nested as the features are.
    decode_steps: a function that decodes stored steps, stacked.
  """

  text: str
  num_parallel_calls: int
  features: tfds.features.FeaturesDict = dataclasses.field(compare=False)
  decoders: Mapping[str, Any] = dataclasses.field(compare=False)
  decode_steps: Callable[[Any], Any] = dataclasses.field(compare=False)


@pipelines.cache_pipeline
def _parse_and_decode(records, settings):
  """Returns the `EpisodeBatch`s of `records.RecordBatches`."""
  reader = _Reader(settings, records.order)

  def with_index(index, read):
    return index + _num_records(read.records), (index, read)

  # Bad records are rare, so many records are parsed and decoded at once. Only
  # if that fails are they read again, one by one.
  parallel = settings.num_parallel_calls
  batches = records_lib.complete_batches(records, batch_lib.BATCH_BYTES)
  parsed = pipelines.map_or_else(
      batches, reader.parse, reader.bad_parsed, parallel
  )
  parts = pipelines.flat_map(parsed, reader.parts)
  if _is_stored_plainly(settings.features[rlds.STEPS].feature):
    # A guard against errors takes milliseconds, and nothing can fail here.
    decoded = pipelines.map_elements(parts, reader.decode, parallel)
  else:
    decoded = pipelines.map_or_else(
        parts, reader.decode, reader.bad_decoded, parallel
    )
  numbered = pipelines.scan(decoded, tf.constant(0, tf.int64), with_index)
  return pipelines.flat_map(numbered, reader.to_batches)


class _Reader:
  """Parses and decodes the records of one data set, in graph mode."""

  def __init__(self, settings, order):
    features = settings.features
    parser = record_parsing.Parser(features)
    steps = features[rlds.STEPS].feature
    self._parser = parser
    self._order = order
    self._decode_fields = _field_decoder(features, settings.decoders)
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
    some = rows_lib.slice_rows(records, *tf.unstack(bounds))
    return _Read(True, some, self._parse_whole(some))

  def bad_parsed(self, spec, bounds, records) -> _Read:
    """Returns what stands for records that cannot be parsed together."""
    nothing = steps_lib.zeros(spec.result)
    return _Read(
        False,
        rows_lib.slice_rows(records, *tf.unstack(bounds)),
        # The row splits of no episodes are a 0.
        nothing._replace(
            row_splits=tf.pad(nothing.row_splits, [[0, 0], [0, 1]])
        ),
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
    """Returns what stands for a part that cannot be decoded."""
    records = rows_lib.slice_rows(read.records, *tf.unstack(bounds))
    return _Read(False, records, steps_lib.zeros(spec.result))

  def to_batches(self, first, read: _Read) -> tf.data.Dataset:
    """Returns the batch; for a bad batch, those of its records, read alone."""

    def alone(index):
      record = rows_lib.slice_rows(read.records, index, index + 1)
      batch = self._to_batch(_check_equal(self._parse_whole(record)))
      return _without_fault(_of_one(batch))

    def without_steps(spec, index):
      record = read.records[records_lib.RECORD][index : index + 1]
      fault = self._parser.find_fault(record, first + index, self._order)
      return steps_lib.zeros(spec)._replace(fault=fault)

    to_variant = tf.data.experimental.to_variant
    good = tf.data.Dataset.from_tensors(_without_fault(read.result))
    found = tf.cond(
        read.is_good,
        lambda: to_variant(good),
        lambda: to_variant(
            pipelines.map_or_else(
                tf.data.Dataset.range(_num_records(read.records)),
                alone,
                without_steps,
            )
        ),
    )
    return tf.data.experimental.from_variant(found, good.element_spec)

  def _parse(self, records):
    fields = dict(records)
    parsed, is_whole = self._parser.parse(fields.pop(records_lib.RECORD))
    fields = {**self._decode_fields(parsed.fields), **fields}
    return parsed._replace(fields=fields), is_whole

  def _parse_whole(self, records) -> batch_lib.EpisodeBatch:
    """Returns parsed records, or fails."""
    parsed, is_whole = self._parse_fn(records)
    return errors.assert_true(parsed, is_whole, record_parsing.NO_WHOLE_STEPS)

  def _to_batch(self, parsed) -> batch_lib.EpisodeBatch:
    return batch_lib.EpisodeBatch(
        self._decode_fn(parsed.steps), parsed.row_splits[0], parsed.fields
    )


def _check_equal(parsed: batch_lib.EpisodeBatch) -> batch_lib.EpisodeBatch:
  """Returns parsed columns, after a check that lengths are the same."""
  splits = parsed.row_splits
  is_equal = tf.reduce_all(splits == splits[:1])
  return parsed._replace(
      row_splits=errors.assert_true(splits, is_equal, splits)
  )


def _num_records(records) -> tf.Tensor:
  return tf.size(records[records_lib.RECORD], tf.int64)


def _without_fault(
    batch: batch_lib.EpisodeBatch,
) -> batch_lib.EpisodeBatch:
  return batch._replace(fault=errors.Fault('').tensors())


def _of_one(
    batch: batch_lib.EpisodeBatch,
) -> batch_lib.EpisodeBatch:
  """Returns a batch that is known to have one episode."""
  return batch._replace(
      row_splits=tf.ensure_shape(batch.row_splits, [2]),
      fields=tf.nest.map_structure(
          lambda leaf: tf.ensure_shape(leaf, [1, *leaf.shape[1:]]), batch.fields
      ),
  )


def _can_be_batched(features: Any, decoders: Mapping[str, Any]) -> bool:
  """Returns whether all features can be parsed and decoded in batches."""
  steps = features[rlds.STEPS]
  return bool(
      type(steps) is tfds.features.Dataset
      and tree.flatten(steps.get_serialized_info())
      and all(
          _has_one_shape(
              steps.feature if name == rlds.STEPS else one, decoders.get(name)
          )
          for name, one in features.items()
      )
  )


def _has_one_shape(feature: Any, decoder: Any) -> bool:
  """Returns whether all values of a feature have one shape that is known."""
  if type(feature) is tfds.features.FeaturesDict:
    return isinstance(decoder, (Mapping, type(None))) and all(
        _has_one_shape(part, (decoder or {}).get(name))
        for name, part in feature.items()
    )
  skips = type(decoder) is tfds.decode.SkipDecoding
  if type(feature) not in _FEATURES or not (skips or decoder is None):
    return False
  stored = feature.get_serialized_info()
  if isinstance(stored, Mapping) or stored.optional:
    return False
  shown = () if skips else feature.shape
  return not {None, 0} & {*stored.shape, *shown}


def _field_decoder(features, decoders) -> Callable[[Any], Dict[str, Any]]:
  """Returns a function that decodes the fields of the episodes, `[E, ...]`."""
  names = [name for name in features if name != rlds.STEPS]
  if not names:
    return lambda fields: fields
  fields = tfds.features.FeaturesDict({name: features[name] for name in names})
  stored = readable_features.readable_fields(fields)
  sequence = tfds.features.FeaturesDict(
      {name: tfds.features.Sequence(part) for name, part in stored.items()}
  )
  decoders = readable_features.without_empty(
      {name: decoders[name] for name in names if name in decoders}
  )

  def decode(stored):
    stored = readable_features.without_empty(stored)
    decoded = image_decoders.decode(sequence, stored, decoders or None)
    return readable_features.restore(fields, decoded)

  return decode


def _is_stored_plainly(steps) -> bool:
  """Returns whether nothing of the steps has to be decoded."""
  stored = tree.flatten(steps.get_serialized_info())
  shown = tree.flatten(steps.get_tensor_info())
  return len(stored) == len(shown) and all(
      (one.shape, one.tf_dtype) == (other.shape, other.tf_dtype)
      for one, other in zip(stored, shown)
  )
