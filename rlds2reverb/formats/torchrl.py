"""TorchRL replay buffers on disk, from and to RLDS episodes.

A buffer of capacity 8 after episodes of 5, 3 and 2 transitions:

    rows            0   1   2   3   4   5   6   7
    transitions    C0  C1  A2  A3  A4  B0  B1  B2      the cursor is 2

The oldest row is at the cursor. A dump of the entire buffer contains the
cursor; a dump of the storage alone does not.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import os
from typing import Any

from absl import logging
import gin
import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import ted
from rlds2reverb.formats import torchrl_files

_TRAJECTORY_IDS = 'collector/traj_ids'


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_torchrl(path: files.PathLike) -> tf.data.Dataset:
  """Reads the episodes of a saved TorchRL storage, without torch.

  An episode ends with each transition that is done, and with the last
  transition, which may be unfinished. A full buffer may begin in the middle of
  an episode, which cannot be detected.

  The default checkpointer saves the rows in memory order. The oldest row of a
  full ring buffer is at the cursor of the writer, which is saved with the
  entire buffer. Without the cursor, or if environments are interleaved, an
  episode is also cut where the next transition has another observation or other
  `traj_ids` of TorchRL's collectors. All transitions are kept, and a warning
  lists the cuts.

  Args:
    path: the local folder of an entire replay buffer; the folder of a
      `TensorStorage`, saved by a `FlatStorageCheckpointer`, a
      `NestedStorageCheckpointer` or the default checkpointer; an HDF5 file of
      an `H5StorageCheckpointer`; or the output of `save_torchrl`.

  Returns:
    A data set of episodes with stacked steps, oldest first. An episode that is
    cut has no last step. The fields keep their names, dtypes and nesting. A
    reward `[T, 1]` becomes `[T]`. Transition fields are zero in the last step.
    A missing `discount` is added: 1, and 0 at a terminal end. `episode_id`
    counts from 0. Episodes of `save_torchrl` are otherwise restored unchanged.

  Raises:
    ValueError: if the storage does not exist or is damaged, has dimensions
      other than time, or contains multi-step transitions.
    InvalidArgumentError: while iterating, if the group of an episode in an HDF5
      file is damaged, or differs from most others in its fields or shapes. The
      episodes after it can still be read.
  """
  path = files.expand_local(path, 'A storage of TorchRL')
  storages = torchrl_files.find(path)
  groups = (
      torchrl_files.find_groups(storages) if os.path.isfile(storages) else None
  )
  folder = storages if groups is None else os.path.dirname(storages)
  with torchrl_files.open_storage(storages, groups) as storage:
    columns = storage.columns
    done, _ = ted.find_ends(columns)
    capacity = len(done)
    done = done[: storage.length]
    if not done.size:
      raise ValueError(f'The storage at {path} has no transition.')
    first, breaks = 0, False
    if groups is None and not ted.is_flat(columns):
      is_full = storage.length >= capacity
      oldest = _find_oldest(folder, capacity) if is_full else 0
      first = oldest or 0
      done = np.roll(done, -first)
      breaks = _find_breaks(path, columns, done, oldest)
    # Each group of an HDF5 file is an episode.
    lengths = (
        ted.lengths_of(done | breaks) if groups is None else groups.lengths
    )
    ted.check_rows(path, columns, capacity, len(lengths) + len(done) - capacity)
  extra = torchrl_files.read_extra(folder)
  faults = {} if groups is None else groups.faults
  if faults and extra:
    has_transition = extra[ted.NUM_STEPS] > 1
    if np.count_nonzero(has_transition) == len(lengths) + len(faults):
      places = np.flatnonzero(has_transition)[[*faults]]
      faults = dict(zip(places.tolist(), faults.values()))
      extra = ted.without_episodes(extra, places)
  num_steps = extra.get(ted.NUM_STEPS, lengths + 1)
  if not np.array_equal(num_steps[num_steps > 1] - 1, lengths):
    raise ValueError(
        f'{os.path.join(folder, torchrl_files.EXTRA_FILE)} does not match the'
        f' episodes of {path}. Remove it, or write the storage again.'
    )

  def read() -> python_episodes.Episodes:
    # TensorFlow keeps this function and its closure until the process exits, so
    # files are opened and closed in each iteration.
    with torchrl_files.open_storage(storages, groups) as storage:
      episodes = ted.read_episodes(
          storage.columns, lengths, extra, first, storages
      )
      for index in range(len(num_steps) + len(faults)):
        episode = faults[index] if index in faults else next(episodes)
        if isinstance(episode, python_episodes.PythonEpisode):
          # Faults count, too.
          episode = episode._replace(episode_id=columns_lib.row(index))
        yield episode

  return python_episodes.to_dataset(
      read, len(num_steps) + len(faults), num_compared=1
  )


def _find_oldest(storage_folder: str, capacity: int) -> int | None:
  """Returns the oldest row of a full storage, or None if it is unknown.

  If the entire buffer was saved, the parent folder contains `writer`.
  """
  above, name = os.path.split(storage_folder)
  path = os.path.join(above, 'writer', 'metadata.json')
  if name != 'storage' or not os.path.isfile(path):
    return None
  cursor = json_files.get_json_value(
      json_files.read_json_object(path), 'cursor', int, path
  )
  return cursor if cursor in range(capacity) else None


def _find_breaks(
    path: str,
    columns: Mapping[str, columns_lib.AnyColumn],
    done: np.ndarray,
    first: int | None,
) -> np.ndarray:
  """Returns the transitions at which an episode is cut without being done.

  Args:
    path: the path of the storage, for messages.
    columns: columns by field, some of them in `next/`.
    done: bool `[N]`: the transitions that end an episode, oldest first.
    first: the oldest row; None if it is unknown.

  Returns:
    bool `[N]`. An episode is cut if the next transition has another observation
    or another trajectory id of TorchRL's collector.

  Raises:
    ValueError: if more than half of the transitions are cuts, as for multi-step
      transitions.
  """
  if _TRAJECTORY_IDS in columns:
    ids = columns[_TRAJECTORY_IDS]
    columns = {**columns, ted.BELOW_NEXT + _TRAJECTORY_IDS: ids}
  jumps = dict(ted.find_jumps(columns, done, first or 0))
  names = ' and '.join(jumps)
  breaks = np.any([np.zeros(len(done) - 1, bool), *jumps.values()], axis=0)
  count, num_followed = np.count_nonzero(breaks), np.count_nonzero(~done[:-1])
  if count > max(1, num_followed // 2):
    raise ValueError(
        f'{count} of {num_followed} transitions of {path} are discontinuous:'
        f' their next {names} differs from {names} of the next transition. Each'
        ' transition must be a single step.'
    )
  if count:
    rows = ' '.join(str(row + 1) for row in np.flatnonzero(breaks)[:10])
    logging.warning(
        '%d episodes of %s are cut before the rows %s of their transitions,'
        ' oldest first, because the next transition has another %s. All'
        ' transitions are kept, and these episodes have no last step.',
        count,
        path,
        f'{rows} ...' if count > 10 else rows,
        names,
    )
  elif first is None:
    logging.warning(
        '%s is full, and its oldest row is unknown, because only the storage'
        ' was saved. The rest of a partly overwritten episode may be joined'
        ' with the newest episode. Load the folder of the entire replay buffer,'
        ' whose writer has the cursor.',
        path,
    )
  return np.append(breaks, False)


def save_torchrl(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    format: str = torchrl_files.FLAT,
    *,
    overwrite: bool = False,
) -> int:
  """Writes episodes as a storage that TorchRL can load.

      storage = LazyTensorStorage(num_transitions)
      storage.checkpointer = FlatStorageCheckpointer()
      storage.loads(pathlib.Path(directory))

  TorchRL cannot represent the action and reward of a last step, episodes
  without a transition, and episode fields. These are stored in an additional
  file, `rlds.tfrecord`, from which `load_torchrl` restores them.

  Args:
    rlds_data: an RLDS data set whose step fields are numbers of a known shape.
    directory: a local folder, which is written atomically.
    format: `"flat"`, `"nested"` or `"hdf5"`, for the checkpointer of that name.
    overwrite: whether to replace a non-empty folder.

  Returns:
    The number of transitions.

  Raises:
    ValueError: if a field is a string, in a tuple, or has an unknown shape; if
      there is no transition; or if an episode other than the last is
      unfinished, which TorchRL would join with the next episode.
    FileExistsError: if the directory is not empty.
  """
  checks.check_choice('format', format, torchrl_files.FORMATS)
  directory = files.expand_local(directory, 'A storage of TorchRL')
  data = ted.stacked(rlds_data)
  for keys, spec in tree.flatten_with_path(data.element_spec):
    _check_field(keys, spec)
  extras: list[ted.Extra] = []
  with files.new_folder(
      directory, [torchrl_files.marker_of(format)], replace=overwrite
  ) as folder:
    length = torchrl_files.write(folder, _columns(data, extras), format)
    torchrl_files.write_extra(folder, extras)
  num_empty = sum(int(extra[ted.NUM_STEPS][0]) < 2 for extra in extras)
  if num_empty:
    logging.warning(
        '%d episodes without a transition are only in %s, which TorchRL does'
        ' not read.',
        num_empty,
        torchrl_files.EXTRA_FILE,
    )
  return length


def _columns(
    data: tf.data.Dataset, extras: list[ted.Extra]
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the transitions of each episode; appends other data to `extras`."""
  unfinished, num_written = None, 0
  for index, episode in enumerate(data.as_numpy_iterator()):
    steps = episode.pop(rlds.STEPS)
    columns = ted.to_columns(steps)
    done = columns[ted.DONE]
    extra = {ted.NUM_STEPS: np.array([len(steps[rlds.IS_LAST])])}
    for name, leaf in paths.leaves(steps).items():
      extra[ted.LAST_STEP + name] = leaf[-1:]
    for name, leaf in paths.leaves(episode).items():
      extra[ted.METADATA + name] = columns_lib.row(leaf)
    extras.append(extra)
    if not len(done):
      continue
    if unfinished is not None:
      raise ValueError(
          f'Episode {unfinished} has no last step, so TorchRL would join it'
          ' with the next episode. Mark its end first, for example with the'
          ' ends of a StepMapping.'
      )
    unfinished = None if done[-1] else index
    num_written += 1
    # Scalars have the shape `[1]` in TorchRL.
    for name in (rlds.REWARD, *ted.END_KEYS, ted.IS_INIT):
      if name in columns and columns[name].ndim == 1:
        columns[name] = columns[name][:, np.newaxis]
    yield columns
  if not num_written:
    raise ValueError('There is no transition to write.')


def _check_field(keys: paths.KeyPath, spec: Any) -> None:
  """Raises a ValueError if a step field or episode field cannot be written."""
  is_of_steps = keys[0] == rlds.STEPS
  names = keys[1:] if is_of_steps else keys
  odd = [key for key in names if not isinstance(key, str) or set(key) & {*'/.'}]
  shape = getattr(spec, 'shape', tf.TensorShape(None))[1:]
  is_fixed = shape.is_fully_defined() and 0 not in shape
  if odd or not is_fixed or (spec.dtype == tf.string and is_of_steps):
    problem = f'has the key {odd[0]!r}' if odd else f'is {spec}'
    raise ValueError(
        f'{paths.name_of(names)} {problem}, but TorchRL stores numbers of'
        ' a known shape, in dicts whose keys are file names. Rename, decode or'
        ' drop it first.'
    )
