"""TorchRL's replay buffers on disk become RLDS episodes, and come back.

A buffer of 8 that has written episodes of 5, 3 and 2 transitions, and is full:

    rows            0   1   2   3   4   5   6   7
    transitions    C0  C1  A2  A3  A4  B0  B1  B2      the cursor is 2

The oldest row is at the cursor. A dump of the whole buffer has the cursor; a
dump of the storage alone does not.
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

from rlds2reverb.datasets import atomic
from rlds2reverb.datasets import files
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
  """Reads the episodes that a TorchRL storage has saved, without torch.

  An episode ends with each transition that is done, and with the last one,
  which may be unfinished. A buffer that was full and written over may begin in
  the middle of an episode; TorchRL does not say so, and nor can this.

  The default checkpointer saves the rows in the order of the memory. In a full
  ring, the oldest row is at the writer's cursor, which is saved with the whole
  buffer. Without the cursor, or if environments take turns, an episode also
  breaks off where the next transition has another observation or other
  `traj_ids` of TorchRL's collectors. All transitions are kept, and a warning
  says where.

  Args:
    path: on the local disk, the folder of the whole replay buffer; or the
      folder in which a `TensorStorage` was saved, by a
      `FlatStorageCheckpointer`, a `NestedStorageCheckpointer` or by its own
      checkpointer; an HDF5 file of an `H5StorageCheckpointer`; or what
      `save_torchrl` wrote.

  Returns:
    A data set of episodes with stacked steps, oldest first. An episode that
    breaks off has no step that is last. The fields keep their names, dtypes and
    nesting. A reward `[T, 1]` becomes `[T]`. A field of transitions is zero in
    the last step. A `discount` is added if there is none: 1, and 0 at a
    terminal end. `episode_id` counts the episodes. Episodes that `save_torchrl`
    wrote come back unchanged otherwise.

  Raises:
    ValueError: if there is no such storage, or it is damaged, has not just the
      dimension of time, or transitions of more than one step.
    InvalidArgumentError: while iterating, if the group of an episode in an HDF5
      file is damaged, or does not have the fields and shapes of most others.
      The episodes after it can still be read.
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
  extra = torchrl_files.read_rest(folder)
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
        f'{os.path.join(folder, torchrl_files.REST_FILE)} is of other episodes'
        f' than the rest of {path}. Remove it, or write the storage again.'
    )

  def read() -> python_episodes.Episodes:
    # TensorFlow keeps this function as long as the process lives, and what it
    # refers to: files are opened anew for each pass, and closed after it.
    with torchrl_files.open_storage(storages, groups) as storage:
      episodes = ted.read_episodes(
          storage.columns, lengths, extra, first, storages
      )
      for index in range(len(num_steps) + len(faults)):
        episode = faults[index] if index in faults else next(episodes)
        if isinstance(episode, python_episodes.PythonEpisode):
          # Those that cannot be read count, too.
          episode = episode._replace(episode_id=columns_lib.row(index))
        yield episode

  return python_episodes.to_dataset(
      read, len(num_steps) + len(faults), num_compared=1
  )


def _find_oldest(storage_folder: str, capacity: int) -> int | None:
  """Returns the oldest row of a full storage, or None if it is not known.

  The folder of a storage lies beside `writer` if the whole buffer was saved.
  """
  above, name = os.path.split(storage_folder)
  path = os.path.join(above, 'writer', 'metadata.json')
  if name != 'storage' or not os.path.isfile(path):
    return None
  cursor = files.get_json_value(
      files.read_json_object(path), 'cursor', int, path
  )
  return cursor if cursor in range(capacity) else None


def _find_breaks(
    path: str,
    columns: Mapping[str, columns_lib.AnyColumn],
    done: np.ndarray,
    first: int | None,
) -> np.ndarray:
  """Returns the transitions after which an episode stops without being done.

  Args:
    path: the path of the storage, for messages.
    columns: arrays by the names of their fields, some below `next/`.
    done: bool `[N]`: which transitions end an episode, oldest first.
    first: the oldest row; None if it is not known and rows are in file order.

  Returns:
    bool `[N]`. An episode stops if the next transition begins with another
    observation, or has another trajectory number of TorchRL's collector.

  Raises:
    ValueError: if this is true of more than half of them, as it is of
      transitions over several steps, which do not make episodes.
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
        f'{count} of {num_followed} transitions of {path} lead to another'
        f' {names} than the next one begins with. These are no steps of'
        ' episodes: a transition must be of one step.'
    )
  if count:
    rows = ' '.join(str(row + 1) for row in np.flatnonzero(breaks)[:10])
    logging.warning(
        '%d episodes of %s break off before the row %s of their transitions,'
        ' oldest first: the one after begins with another %s. No transition is'
        ' left out, and these episodes have no last step.',
        count,
        path,
        rows + ' ...' * (count > 10),
        names,
    )
  elif first is None:
    logging.warning(
        '%s is full, and its oldest row is not known, as only the storage was'
        ' saved. If an episode was written over in its middle, the rest of it'
        ' may be joined with the newest one. Load the folder of the whole'
        ' replay buffer, whose writer knows.',
        path,
    )
  return np.append(breaks, False)


def save_torchrl(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    format: str = torchrl_files.FLAT,  # pylint: disable=redefined-builtin
    *,
    overwrite: bool = False,
) -> int:
  """Writes episodes as a storage that TorchRL loads.

      storage = LazyTensorStorage(num_transitions)
      storage.checkpointer = FlatStorageCheckpointer()
      storage.loads(pathlib.Path(directory))

  TorchRL has no place for the action and reward of a last step, for episodes
  without a transition, and for fields of episodes. They are kept in the file
  `rlds.tfrecord` beside its own, and `load_torchrl` gives all of it back.

  Args:
    rlds_data: an RLDS data set whose step fields are numbers of a known shape.
    directory: a folder on the local disk, which appears whole or not at all.
    format: `"flat"`, `"nested"` or `"hdf5"`, for the checkpointer of that name.
    overwrite: whether a folder that is not empty is replaced.

  Returns:
    The number of transitions.

  Raises:
    ValueError: if a field is of strings, of unknown shape or in a tuple; if
      there is no transition; or if an episode other than the last one is
      unfinished, which TorchRL would take for one with the next.
    FileExistsError: if the directory is not empty.
  """
  checks.check_choice('format', format, torchrl_files.FORMATS)
  directory = files.expand_local(directory, 'A storage of TorchRL')
  data = ted.stacked(rlds_data)
  for keys, spec in tree.flatten_with_path(data.element_spec):
    _check_field(keys, spec)
  rests: list[ted.Rest] = []
  with atomic.new_folder(
      directory, [torchrl_files.marker_of(format)], replace=overwrite
  ) as folder:
    length = torchrl_files.write(folder, _columns(data, rests), format)
    torchrl_files.write_rest(folder, rests)
  lone = sum(int(extra[ted.NUM_STEPS][0]) < 2 for extra in rests)
  if lone:
    logging.warning(
        '%d episodes without a transition are in %s only, which TorchRL does'
        ' not read.',
        lone,
        torchrl_files.REST_FILE,
    )
  return length


def _columns(
    data: tf.data.Dataset, rests: list[ted.Rest]
) -> Iterator[dict[str, np.ndarray]]:
  """Yields an episode's transitions; adds its other data to `rests`."""
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
    rests.append(extra)
    if not len(done):
      continue
    if unfinished is not None:
      raise ValueError(
          f'Episode {unfinished} has no last step, and episodes follow it:'
          ' TorchRL would read it as one with the next. Mark its end first,'
          ' with the ends of a StepMapping for example.'
      )
    unfinished = None if done[-1] else index
    num_written += 1
    # A field of one number has the shape `[1]` in TorchRL.
    for name in (rlds.REWARD, *ted.END_KEYS, ted.IS_INIT):
      if name in columns and columns[name].ndim == 1:
        columns[name] = columns[name][:, np.newaxis]
    yield columns
  if not num_written:
    raise ValueError('There is no transition to write.')


def _check_field(keys: paths.KeyPath, spec: Any) -> None:
  """Checks that a field of steps or episodes can be written, by its spec."""
  is_of_steps = keys[0] == rlds.STEPS
  names = keys[1:] if is_of_steps else keys
  odd = [key for key in names if not isinstance(key, str) or set(key) & {*'/.'}]
  shape = getattr(spec, 'shape', tf.TensorShape(None))[1:]
  is_fixed = shape.is_fully_defined() and 0 not in shape
  if odd or not is_fixed or (spec.dtype == tf.string and is_of_steps):
    problem = f'has the key {odd[0]!r}' if odd else f'is {spec}'
    raise ValueError(
        f'{paths.name_of(names)} {problem}, but TorchRL holds numbers of'
        ' one known shape, in dicts whose keys are names of files. Rename,'
        ' decode or leave it out first.'
    )
