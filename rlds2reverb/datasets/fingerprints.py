"""Fingerprints of values and of `tf.data` pipelines, to tell them apart.

`fingerprint` hashes values, such as transforms. `fingerprint_pipeline` hashes
the graph of a data set, which has all files that are read, the functions that
are applied, and every constant in them. The names in a graph contain counters,
which differ from one program to another, so the hash covers the operations of
nodes and the sources of their inputs, without the names.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import dataclasses
import graphlib
import hashlib
import itertools
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import tf_private

_IGNORE = 1  # A value of `external_state_policy`.

# Tensors in memory are copied into the graph. Copying larger ones would take
# seconds, and several times their memory.
_MAX_TENSOR_BYTES = 128 << 20

_WITHOUT_BYTES = (tf.variant, tf.resource)

# These have a resource that holds only their own state: seeds, or a cache.
_OWN_RESOURCES = (
    'CacheDatasetV2',
    'ShuffleDatasetV3',
    'ShuffleAndRepeatDatasetV2',
)

# TensorFlow calls these stateful, but their results depend on inputs alone.
_PURE = (
    'Assert',
    'Case',
    'DatasetToSingleElement',
    'If',
    'LookupTableFindV2',
    'StatefulPartitionedCall',
    'While',
)

# Operations that call Python have this prefix if their results depend on inputs
# and files alone.
_PURE_PREFIX = 'rlds2reverb_'

# The position of the first of the two seeds among a node's inputs. If both
# seeds are 0, none was given, and a new one is drawn each time.
_SEED_INPUTS = {
    'RandomDataset': 0,
    'RandomDatasetV2': 0,
    'ShuffleDataset': 2,
    'ShuffleDatasetV3': 2,
    'ShuffleAndRepeatDataset': 2,
    'ShuffleAndRepeatDatasetV2': 2,
}


class ByValue:
  """A base for dataclasses that are equal if their values are equal.

  Declare them with `eq=False`: the comparison that a dataclass generates fails
  on arrays, and its hash fails on lists and dicts, too. Here lists, tuples and
  arrays with the same numbers are equal, and NaN equals NaN.
  """

  def __eq__(self, other: Any) -> bool:
    if type(self) is not type(other):
      return NotImplemented
    return _comparable(vars(self)) == _comparable(vars(other))

  def __hash__(self) -> int:
    return hash((type(self), _comparable(vars(self))))


def fingerprint(*identity: Any) -> str:
  """Returns a hash of values: 16 hexadecimal digits.

  Args:
    *identity: strings, numbers, bools, None, numpy arrays, dtypes, the
      transforms and mappings of this package and other dataclasses; and dicts,
      lists and tuples of them.

  Raises:
    ValueError: on anything else, for example on a function, because a function
      may change without notice.
  """
  text = json.dumps([_to_json(value) for value in identity], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _comparable(value: Any) -> Any:
  """Returns `value` in a form that can be compared and hashed."""
  if isinstance(value, (np.ndarray, np.generic)):
    value = value.tolist()
  if isinstance(value, Mapping):
    return frozenset((key, _comparable(item)) for key, item in value.items())
  if isinstance(value, (list, tuple)):
    return tuple(map(_comparable, value))
  return 'NaN' if isinstance(value, float) and np.isnan(value) else value


def _to_json(value: Any) -> Any:
  """Returns `value` as JSON values, which keep its type."""
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if isinstance(value, (np.ndarray, np.generic)):
    return ['array', value.dtype.name, value.tolist()]
  if isinstance(value, np.dtype):
    return ['dtype', value.name]
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return [
        type(value).__qualname__,
        {
            field.name: _to_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
        },
    ]
  if isinstance(value, Mapping):
    items = [[_to_json(key), _to_json(item)] for key, item in value.items()]
    return ['dict', sorted(items, key=json.dumps)]
  if isinstance(value, (list, tuple)):
    return ['list', [_to_json(item) for item in value]]
  raise ValueError(
      f'{value!r} has no identity that can be hashed. Name it by a string that'
      ' changes when its behavior changes.'
  )


def fingerprint_pipeline(dataset: tf.data.Dataset) -> tuple[str | None, str]:
  """Returns a hash of a data set's pipeline and of the files that it reads.

  The hash is the same if the same pipeline is built again, in this process or
  another, from the same files. It includes the sizes and modification times of
  the files. A pipeline with another constant, function, option or order of maps
  has another hash.

  Args:
    dataset: any data set.

  Returns:
    The hash, 16 hexadecimal digits, and an empty string. If the same graph can
    give other elements, None and the reason: the graph calls Python
    (`from_generator`, `tf.py_function`), it has variables, an order or a number
    is random without a seed, or tensors in memory are too large.
  """
  num_bytes = _tensor_bytes(dataset)
  if num_bytes > _MAX_TENSOR_BYTES:
    return None, (
        f'it has {num_bytes >> 20} MiB of tensors in memory, which are too many'
        ' to hash'
    )
  graph = _graph(dataset)
  results = [f'{node.name}:0' for node in graph.node if node.op == '_Retval']
  if not results:
    return None, 'its graph is too large'
  problem = _find_state(graph)
  if problem:
    return None, problem
  stamps = []
  for name in sorted(_strings(graph)):
    path = os.fsdecode(name)
    if files.is_url(path) or os.sep in path and os.path.isfile(path):
      with contextlib.suppress(OSError):
        stamps.append((name, *files.stamp_of(path)))
  elements = _Hasher(graph.library).results(graph.node, {}, results)
  return _digest(elements, repr(stamps).encode()).hex()[:16], ''


def constant_strings(dataset: tf.data.Dataset) -> set[bytes]:
  """Returns all strings in a data set's graph, such as the names of files."""
  return _strings(_graph(dataset))


def _graph(dataset) -> tf.compat.v1.GraphDef:
  return tf.compat.v1.GraphDef.FromString(
      tf.raw_ops.DatasetToGraphV2(
          input_dataset=tf.data.experimental.to_variant(dataset),
          external_state_policy=_IGNORE,
      ).numpy()
  )


def _strings(graph) -> set[bytes]:
  bodies = [function.node_def for function in graph.library.function]
  nodes = itertools.chain(graph.node, *bodies)
  return {
      text for node in nodes for text in node.attr['value'].tensor.string_val
  }


def _tensor_bytes(dataset) -> int:
  """Returns the number of bytes of a data set's tensors in memory."""
  # TensorFlow has no public way to find this before the tensors are copied.
  num_bytes = 0
  sources = [dataset]
  visited = set()
  while sources:
    source = sources.pop()
    if id(source) in visited:
      continue
    visited.add(id(source))
    sources += tf_private.inputs_of(source)
    for leaf in tf.nest.flatten(tf_private.tensors_of(source)):
      if isinstance(leaf, tf.Tensor) and leaf.dtype not in _WITHOUT_BYTES:
        num_bytes += leaf.dtype.size * int(tf.size(leaf))
        if leaf.dtype == tf.string:
          num_bytes += int(tf.reduce_sum(tf.strings.length(leaf)))
  return num_bytes


def _find_state(graph) -> str:
  """Returns state outside the graph, in words, or an empty string."""
  constants = {
      node.name: node.attr['value'].tensor
      for node in graph.node
      if node.op == 'Const'
  }
  for node in graph.node:
    inputs = [constants.get(name) for name in node.input]
    if node.op not in _OWN_RESOURCES and any(
        tensor is not None and _is_resource(tensor) for tensor in inputs
    ):
      return f'{node.op} has a resource whose content is not known'
    if node.op in _SEED_INPUTS:
      first = _SEED_INPUTS[node.op]
      if not any(tf.make_ndarray(seed) for seed in inputs[first : first + 2]):
        return f'{node.op} has no seed'
  for function in graph.library.function:
    for node in function.node_def:
      if node.op in _SEED_INPUTS:
        return f'{node.op} is in a function, where its seed is not known'
      # TensorFlow calls every data set stateful.
      is_data = node.op.rstrip('V23').endswith('Dataset')
      if (
          not is_data
          and node.op not in _PURE
          and tf_private.is_stateful(node.op)
      ):
        return f'{node.op} is stateful'
  return ''


def _is_resource(tensor) -> bool:
  return tensor.dtype == tf.resource.as_datatype_enum


class _Hasher:
  """Hashes nodes and functions by their computations."""

  def __init__(self, library):
    self._functions = {
        function.signature.name: function for function in library.function
    }
    self._hashes = {}

  def results(
      self,
      nodes: Iterable[Any],
      arguments: dict[str, bytes],
      outputs: list[str],
  ) -> bytes:
    """Returns the hash of some outputs of nodes.

    Args:
      nodes: the nodes of a graph or function.
      arguments: the hashes of a function's arguments, by their names.
      outputs: the outputs, as nodes name their inputs: `node:0` or `^node`.
    """
    nodes = {node.name: node for node in nodes}
    inputs = {
        name: [_node_name(reference) for reference in node.input]
        for name, node in nodes.items()
    }
    hashes = dict(arguments)
    for name in graphlib.TopologicalSorter(inputs).static_order():
      if name not in hashes:
        hashes[name] = self._node(nodes[name], hashes)
    return _digest(*_references(outputs, hashes))

  def _node(self, node, hashes) -> bytes:
    parts = [self._function(node.op)]
    for key in sorted(node.attr):
      # Attributes whose names begin with _ are hints; the metadata is a name.
      # The token of a Python function is a number that differs each time.
      is_token = key == 'token' and _PURE_PREFIX in node.name
      if not (key.startswith('_') or key == 'metadata' or is_token):
        parts += [key.encode(), self._attribute(node.attr[key])]
    return _digest(*parts, *_references(node.input, hashes))

  def _attribute(self, value) -> bytes:
    functions = [value.func] if value.HasField('func') else value.list.func
    if functions:
      return _digest(*(self._function(body.name) for body in functions))
    if _is_resource(value.tensor):
      return b''  # This attribute has a name with a counter.
    return value.SerializeToString(deterministic=True)

  def _function(self, name: str) -> bytes:
    """Returns the hash of a function, or of the name of an operation."""
    if name not in self._functions:
      return name.encode()
    if name not in self._hashes:
      function = self._functions[name]
      arguments = {
          argument.name: f'argument {index}'.encode()
          for index, argument in enumerate(function.signature.input_arg)
      }
      outputs = [
          function.ret[output.name] for output in function.signature.output_arg
      ]
      outputs += [f'^{node}' for node in function.control_ret.values()]
      self._hashes[name] = self.results(function.node_def, arguments, outputs)
    return self._hashes[name]


def _references(references, hashes) -> list[bytes]:
  """Returns hashes of inputs; the hashes of control inputs are sorted."""
  inputs = [name for name in references if not name.startswith('^')]
  control_inputs = [name for name in references if name.startswith('^')]
  return [
      _digest(hashes[_node_name(name)], name.partition(':')[2].encode())
      for name in inputs
  ] + sorted(_digest(b'^', hashes[_node_name(name)]) for name in control_inputs)


def _node_name(reference: str) -> str:
  return reference.lstrip('^').partition(':')[0]


def _digest(*parts: bytes) -> bytes:
  digest = hashlib.sha256()
  for part in parts:
    digest.update(len(part).to_bytes(8, 'little'))
    digest.update(part)
  return digest.digest()
