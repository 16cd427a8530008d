"""Saves a transformed data set as RLDS on disk, to be read many times."""

import json
import os
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import atomic
from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import pipelines
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

_MARKER = 'saved_episodes.json'
_COMPRESSED_BYTES = 1024
_IMAGE_CHANNELS = (1, 3, 4)


def save_episodes(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    identity: Sequence[Any] = (),
    *,
    split: str = 'train',
    name: Optional[str] = None,
    overwrite: bool = False,
    file_format: str = writing.TFRECORD,
) -> str:
  """Writes episodes as an RLDS data set, unless they are written already.

      saved = save_episodes(transform_episodes(episodes, transforms), directory)
      episodes = load_episodes(saved)

  Episodes that are in `directory` already are used again if they were saved
  from the same pipeline (all that is done in the graph of `rlds_data`) with the
  same `identity`. They are not used again if the same graph can give other
  episodes, as with `from_generator`, `formats.load` or a shuffle without a
  seed. Episodes are written beside `directory`, and moved there when they are
  complete.

  Every value is read back as it was, with its dtype and bits. Decoded images
  (uint8 or uint16, of 1, 3 or 4 channels) are stored as PNG. Other leaves of
  1 KiB or more per step are compressed with zlib. TFDS would round float64 to
  float32, so it is stored as bytes. Strings, and images in them, stay as they
  are.

  Args:
    rlds_data: an RLDS data set, with nested or stacked steps, in dicts of any
      depth. All its episodes are written, in their order.
    directory: the path of the new data set, or a URL that TensorFlow can write
      to. Its parents are made.
    identity: values that tell this data from other data; by default none, as
      the pipeline is compared, too. See `cached_statistics`.
    split: the name of the split.
    name: the name of the data set; by default the last part of `directory`.
    overwrite: whether to replace a data set that this function has saved in
      `directory` before. It stays there until the new one is complete. That is
      not possible at a URL, where nothing is replaced. Anything else in
      `directory` is never replaced.
    file_format: the format of the files, `'tfrecord'` or `'array_record'`,
      which TFDS's `data_source` and Grain read.

  Returns:
    The directory, for `load_episodes`.

  Raises:
    ValueError: if there is no such `file_format`; if `rlds_data` is read from
      `directory`; if a field cannot be
      written, because it is ragged, bfloat16, in a tuple, or a string array
      whose shape is open or empty; or if there are no episodes.
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if there is something else in `directory`, or if it is not
      known whether it is the same data.
    OSError: if `directory` cannot be written or replaced.
  """
  writing.check_file_format(file_format)
  directory = files.expand(directory)
  if _reads_from(rlds_data, directory):
    raise ValueError(
        f'The episodes are read from {directory}. They cannot be saved there'
        ' too: choose another directory.'
    )
  rlds_data = steps_lib.stack_episodes(rlds_data)
  features = features_of(rlds_data.element_spec)
  pipeline, problem = pipelines.fingerprint(rlds_data)
  known = [str(rlds_data.element_spec), pipeline, split, identity]
  if file_format != writing.TFRECORD:
    known.append(file_format)
  fingerprint = identity_lib.fingerprint(*known)
  atomic.recover_interrupted_write(directory)
  is_there = bool(files.names_in(directory))
  if is_there:
    marker = os.path.join(directory, _MARKER)
    if not files.exists(marker):
      raise FileExistsError(
          f'{directory} holds something that save_episodes did not write.'
          ' Choose another directory.'
      )
    stored = files.read_json(
        marker, f'Remove {directory} to save the episodes again.'
    )
    is_same = stored.get('fingerprint') == fingerprint
    if is_same and pipeline is not None and not overwrite:
      logging.info('Using the episodes saved in %s.', directory)
      return directory
    if not overwrite:
      which = (
          'of another pipeline or identity, of another file format, or of files'
          ' that have changed since.'
      )
      if pipeline is None:
        which = (
            f'of which it cannot be known whether they are these: {problem}.'
            ' Read them with load_episodes.'
        )
      raise FileExistsError(
          f'{directory} holds episodes {which} Replace them with'
          ' overwrite=True. Or choose another directory.'
      )
  default_name, version = writing.name_and_version(directory)
  with atomic.new_folder(
      directory,
      [versions.INFO_FILE, _MARKER],
      replace=is_there,
  ) as folder:
    writing.write_episodes(
        rlds_data.prefetch(1).as_numpy_iterator(),
        folder,
        name=name or default_name,
        version=version,
        description='Episodes saved by rlds2reverb.',
        features=features,
        split=split,
        file_format=file_format,
    )
    with open(os.path.join(folder, _MARKER), 'w', encoding='utf-8') as f:
      json.dump({'fingerprint': fingerprint}, f)
  return directory


def features_of(episode_spec: Dict[str, Any]) -> Dict[str, Any]:
  """Returns the TFDS features that store episodes as `save_episodes` does.

  Args:
    episode_spec: the spec of an episode with stacked steps.

  Raises:
    ValueError: if a field cannot be written; see `save_episodes`.
  """
  steps = steps_lib.unstack_spec(episode_spec[rlds.STEPS])
  return {
      **{
          key: _feature(spec, (key,))
          for key, spec in episode_spec.items()
          if key != rlds.STEPS
      },
      rlds.STEPS: tfds.features.Dataset(_feature(steps, (rlds.STEPS,))),
  }


def _feature(spec: Any, keys: Sequence[Any]) -> Any:
  """Returns the TFDS feature that stores values of `spec`."""
  path = paths.name_of(keys)
  if isinstance(spec, dict):
    if not all(isinstance(key, str) for key in spec):
      raise ValueError(f'{path} has keys that are not strings: {list(spec)}.')
    return {key: _feature(value, (*keys, key)) for key, value in spec.items()}
  is_dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None
  shape = tuple(spec.shape.as_list()) if is_dense else (None,)
  is_full = None not in shape and 0 not in shape
  if (
      not is_dense
      or spec.dtype == tf.bfloat16
      or (spec.dtype == tf.string and not is_full)
  ):
    raise ValueError(
        f'{path} cannot be written in the TFDS format, which has dense tensors'
        ' in dicts, no bfloat16, and strings of a known shape only. Its spec is'
        f' {spec}. Rename, cast or exclude it.'
    )
  dtype = np.dtype(spec.dtype.as_numpy_dtype)
  if (
      dtype in (np.uint8, np.uint16)
      and len(shape) == 3
      and shape[-1] in _IMAGE_CHANNELS
      and 0 not in shape
  ):
    return tfds.features.Image(shape=shape, dtype=dtype, encoding_format='png')
  encoding = 'none'
  # Without encoding, TensorFlow would divide by the size of a step.
  if not is_full or np.prod(shape) * dtype.itemsize >= _COMPRESSED_BYTES:
    encoding = 'zlib' if spec.dtype != tf.string else encoding
  elif dtype == np.float64 or dtype.kind == 'c':
    encoding = 'bytes'
  return tfds.features.Tensor(shape=shape, dtype=dtype, encoding=encoding)


def _reads_from(rlds_data: tf.data.Dataset, directory: str) -> bool:
  """Returns whether a data set reads a file in `directory`."""
  if not os.path.isdir(directory):
    return False
  files = {os.fsencode(name) for name in os.listdir(directory)}
  directory = os.fsencode(os.path.realpath(directory))
  # The names of the files are constants of the graph.
  return any(
      os.path.basename(text) in files
      and os.path.dirname(os.path.realpath(text)) == directory
      for text in pipelines.constant_strings(rlds_data)
  )


def feature_leaves(feature: Any, path: str = '') -> Iterator[Tuple[str, Any]]:
  """Yields the paths and the leaves of TFDS features, of steps too."""
  if isinstance(feature, (dict, tfds.features.FeaturesDict)):
    for name, part in feature.items():
      yield from feature_leaves(part, f'{path}/{name}' if path else name)
  elif isinstance(feature, tfds.features.Dataset):
    yield from feature_leaves(feature.feature, path)
  else:
    yield path, feature
