"""Reads TFDS files as packs: many episodes are parsed and decoded at once.

TFDS parses every episode by itself, which takes longer than all else if they
are short. Here `tf.io.parse_example` parses many. It gives the values of a
field of all their steps, one after the other, which are the steps of a pack.
"""

import math
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import records as records_lib
from rlds2reverb.episodes import packs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

# The bytes of a pack of several episodes: as many as those of a block.
_PACK_BYTES = 2 << 20

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

# Nothing here needs AutoGraph, which would take most of a second to find out.
_no_autograph = tf.autograph.experimental.do_not_convert


class _Parsed(NamedTuple):
  """The episodes of a batch of records, as they are stored.

  Attributes:
    columns: a tuple of the leaves of the steps, each `[N, ...]`.
    splits: int64 `[leaves, E + 1]`: the row splits of each.
    fields: a dict of the other fields, nested as the features are, `[E, ...]`.
  """

  columns: Any
  splits: Any
  fields: Any


def read_packs(
    builder: tfds.core.DatasetBuilder,
    split: Any,
    *,
    decoders: Optional[Mapping[str, Any]],
    decode_steps: Callable[[Any], Any],
    shuffle_files: bool,
    read_config: tfds.ReadConfig,
) -> Optional[tf.data.Dataset]:
  """Reads the episodes of a split as packs, in the order of TFDS.

  A pack has up to about 2 MiB, or one episode. How many records are in memory
  together, and what becomes of files that cannot be read to their end, is as in
  `records.record_batches`. An episode that cannot be parsed or decoded raises
  the error where its pack would come out.

  Args:
    builder: the builder of an RLDS data set on disk.
    split: one TFDS split.
    decoders: TFDS decoders of single features, nested as the features are.
    decode_steps: a function that decodes stored steps, stacked.
    shuffle_files: whether the files are read in a random order.
    read_config: the options of TFDS.

  Returns:
    A data set of `packs.Pack`s; or None if a feature cannot be read so, or if
    the order may be another each time.
  """
  features = builder.info.features
  if not _can_be_packed(features, decoders or {}):
    return None
  batches = records_lib.record_batches(
      builder,
      split,
      shuffle_files=shuffle_files,
      read_config=read_config,
      max_bytes=_PACK_BYTES,
  )
  if batches is None:
    return None
  parser = _Parser(features)
  decode_fields = _field_decoder(features, decoders or {})
  row_bytes = _row_bytes(features[rlds.STEPS].feature)

  @_no_autograph
  def parse(bounds, records):
    batch = records_lib.cut_out(bounds, records)
    parsed = parser.parse(batch.pop(records_lib.RECORD))
    return parsed._replace(fields={**decode_fields(parsed.fields), **batch})

  @_no_autograph
  def cut(parsed):
    return tf.data.Dataset.zip(
        (
            tf.data.Dataset.from_tensor_slices(
                _bounds(parsed.splits, row_bytes)
            ),
            tf.data.Dataset.from_tensors(parsed).repeat(),
        )
    )

  @_no_autograph
  def to_pack(bounds, parsed):
    columns, splits, fields = _part(parsed, bounds)
    return packs.Pack(
        decode_steps(parser.nest_steps(columns)),
        tf.reduce_max(splits, axis=0),
        fields,
    )

  read = (
      batches.map(parse, read_config.num_parallel_calls_for_decode)
      .flat_map(cut)
      .map(to_pack, read_config.num_parallel_calls_for_decode)
  )
  return read if read_config.skip_prefetch else read.prefetch(1)


def _can_be_packed(features: Any, decoders: Mapping[str, Any]) -> bool:
  """Returns whether all features can be parsed and decoded in packs."""
  steps = features[rlds.STEPS]
  others = {name: one for name, one in features.items() if name != rlds.STEPS}
  return bool(
      type(steps) is tfds.features.Dataset
      and tree.flatten(steps.get_serialized_info())
      and _has_one_shape(steps.feature, decoders.get(rlds.STEPS))
      and all(
          _has_one_shape(one, decoders.get(name))
          for name, one in others.items()
      )
  )


def _has_one_shape(feature: Any, decoder: Any) -> bool:
  """Returns whether all values of a feature have one shape that is known."""
  if type(feature) is tfds.features.FeaturesDict:
    if decoder is not None and not isinstance(decoder, Mapping):
      return False
    return all(
        _has_one_shape(part, (decoder or {}).get(name))
        for name, part in feature.items()
    )
  if type(feature) not in _FEATURES:
    return False
  skips = type(decoder) is tfds.decode.SkipDecoding
  if decoder is not None and not skips:
    return False
  stored = feature.get_serialized_info()
  return (
      not isinstance(stored, Mapping)
      and not stored.optional
      and _is_known(stored.shape)
      and (skips or _is_known(feature.shape))
  )


def _is_known(shape) -> bool:
  return None not in shape and 0 not in shape


def _field_decoder(features, decoders) -> Callable[[Any], Dict[str, Any]]:
  """Returns a function that decodes the fields of the episodes, `[E, ...]`."""
  names = [name for name in features if name != rlds.STEPS]
  if not names:
    return lambda fields: fields
  sequence = tfds.features.FeaturesDict(
      {name: tfds.features.Sequence(features[name]) for name in names}
  )
  decoders = {name: decoders[name] for name in names if name in decoders}
  return lambda fields: sequence.decode_example(
      fields, decoders=decoders or None
  )


def _row_bytes(steps) -> int:
  """Returns the bytes of a decoded step, without its strings."""
  return sum(
      math.prod(spec.shape.as_list()) * spec.dtype.size
      for spec in tf.nest.flatten(steps.get_tensor_spec())
      if spec.dtype != tf.string and spec.shape.is_fully_defined()
  )


def _bounds(splits: tf.Tensor, row_bytes: int) -> tf.Tensor:
  """Returns where parsed episodes are cut into packs, int64 `[P, 2]`.

  Args:
    splits: int64 `[leaves, E + 1]`: the row splits of each leaf.
    row_bytes: the bytes of a row.
  """
  lengths = splits[:, 1:] - splits[:, :-1]
  longest = tf.reduce_max(lengths, axis=0)
  # An episode whose fields differ in length has a pack of its own.
  is_unequal = longest != tf.reduce_min(lengths, axis=0)
  return packs.bounds_of_parts(longest * row_bytes, _PACK_BYTES, is_unequal)


def _part(parsed: _Parsed, bounds: tf.Tensor) -> _Parsed:
  """Returns the episodes from `bounds[0]` until `bounds[1]`."""
  splits = parsed.splits[:, bounds[0] : bounds[1] + 1]
  # `column[start:stop]` would add the same operations again for every column.
  # What is taken whole is not copied.
  step = tf.ones([1], tf.int64)
  columns = tuple(
      tf.strided_slice(column, start, stop, step)
      for column, start, stop in zip(
          parsed.columns, tf.unstack(splits[:, :1]), tf.unstack(splits[:, -1:])
      )
  )
  fields = tf.nest.map_structure(
      lambda leaf: tf.strided_slice(leaf, bounds[:1], bounds[1:], step),
      parsed.fields,
  )
  return _Parsed(columns, splits - splits[:, :1], fields)


class _Parser:
  """Parses the records of one data set."""

  def __init__(self, features: tfds.features.FeaturesDict):
    self._fields = dict(features.get_serialized_info())
    self._steps = self._fields.pop(rlds.STEPS)
    stored = features.tf_example_spec
    self._spec = {name: stored[name] for name, _ in _leaves(self._fields)}
    for name, _ in _leaves({rlds.STEPS: self._steps}):
      self._spec[name] = tf.io.RaggedFeature(
          stored[name].dtype, row_splits_dtype=tf.int64
      )

  def parse(self, records: tf.Tensor) -> _Parsed:
    """Parses records, string `[E]`."""
    found = tf.io.parse_example(records, self._spec)
    steps = _leaves({rlds.STEPS: self._steps})
    sizes = [math.prod(info.shape[1:]) for _, info in steps]
    splits = tf.stack([found[name].row_splits for name, _ in steps])
    with tf.control_dependencies(
        [_check_whole_rows(splits, sizes, [name for name, _ in steps])]
    ):
      splits = splits // np.array(sizes)[:, np.newaxis]
      columns = tuple(
          tf.reshape(found[name].values, [-1, *info.shape[1:]])
          for name, info in steps
      )
    fields = [_cast(found[name], info) for name, info in _leaves(self._fields)]
    return _Parsed(columns, splits, tree.unflatten_as(self._fields, fields))

  def nest_steps(self, columns: Sequence[tf.Tensor]) -> Any:
    """Returns columns with the dtypes and the nest of the steps."""
    infos = tree.flatten(self._steps)
    return tree.unflatten_as(
        self._steps, [_cast(*pair) for pair in zip(columns, infos)]
    )


def _leaves(infos: Any) -> List[Tuple[str, Any]]:
  """Returns the name of each stored leaf, and its TFDS `TensorInfo`."""
  return [
      (steps_lib.field_path(path), info)
      for path, info in tree.flatten_with_path(infos)
  ]


def _cast(tensor: tf.Tensor, info: Any) -> tf.Tensor:
  # The format stores all integers and bools as int64, and floats as float32.
  return tf.cast(tensor, info.tf_dtype)


def _check_whole_rows(splits, sizes, names) -> tf.Operation:
  """Returns an op that checks that all values of a leaf fill its rows."""
  is_whole = tf.reduce_all(splits % np.array(sizes)[:, np.newaxis] == 0, axis=1)
  return tf.debugging.Assert(
      tf.reduce_all(is_whole),
      [
          'The values stored for a step field are not a multiple of those of a'
          ' step. The fields:',
          tf.boolean_mask(tf.constant(names), ~is_whole),
      ],
  )
