"""Reads a data set once, and stores its frames: in memory, or in a folder."""

import contextlib
import dataclasses
from typing import Any

from google.protobuf import text_format
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import struct_pb2
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from rlds2reverb.datasets import files
from rlds2reverb.datasets import fingerprints
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.store import folders
from rlds2reverb.store import items as store_items
from rlds2reverb.store import rows as store_rows
from rlds2reverb.trajectories import options as options_lib

_FOLDER = 'The folder of prepared frames'
# The number of MB of each file that are checked when a folder is opened.
_BLOCKS_AT_OPENING = 32
# A priority function receives batches of about this many bytes.
_PRIORITY_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class FrameStore:
  """Frames, each stored once, and the windows of frames that are items.

  Attributes:
    spec: the spec of a frame, a `Trajectory`.
    rows: the frames.
    windows: the windows of frames that are items; None for complete episodes.
    episodes: all episodes.
    priorities: the priority of every item, float64 `[W]`; None if all are 1.
    fingerprint: a value that differs for any other content.
  """

  spec: Any
  rows: store_rows.RowStore
  windows: windows_lib.Windows | None
  episodes: store_items.Episodes
  priorities: np.ndarray | None
  fingerprint: str

  @property
  def num_frames(self) -> int:
    """The number of frames."""
    return int(self.episodes.num_rows.sum())

  def make_items(self) -> store_items.ItemIndex:
    """Returns the items."""
    return store_items.ItemIndex(self.episodes, self.windows, self.priorities)

  def all_rows(self) -> np.ndarray:
    """Returns the row of each frame, in the order of the data, int64 `[N]`."""
    return windows_lib.expand_ranges(*self.episodes[:2], 1)[1]

  def top_episodes(self, count: int) -> 'FrameStore':
    """Returns the episodes with the highest undiscounted returns.

    The frames are not copied. Of episodes with equal returns, the first
    episodes are kept. Episodes without an item are dropped.

    Args:
      count: how many episodes.

    Raises:
      ValueError: if `count` is not positive, or if episodes have no returns.
    """
    checks.check_positive('count', count)
    counts, returns = self.episodes[2:]
    with_items = np.flatnonzero(counts)
    crosses = self.windows is not None and self.windows.crosses_episodes
    if crosses or np.isnan(returns[with_items]).any():
      raise ValueError(
          'top_episodes chooses episodes by their returns, but these have none:'
          ' their items cross episodes, or their reward is not one number, or'
          ' is NaN.'
      )
    order = with_items[np.argsort(-returns[with_items], kind='stable')]
    best = np.isin(np.arange(len(counts)), order[:count])
    priorities = self.priorities
    if priorities is not None:
      priorities = priorities[np.repeat(best, counts)]
    return dataclasses.replace(
        self,
        episodes=store_items.Episodes(
            *[array[best] for array in self.episodes]
        ),
        priorities=priorities,
        fingerprint=f'{self.fingerprint} top {count}',
    )


def layout_of(spec: Any) -> store_rows.RowLayout:
  """Returns the layout of frames.

  Args:
    spec: the spec of a frame, a `Trajectory`.

  Raises:
    ValueError: if the shape of a field is not fixed.
  """
  return store_rows.RowLayout.of_spec(
      spec,
      'Pad it, or resize images (decode_images). Encoded images are stored'
      ' unchanged.',
  )


def step_type_column(layout: store_rows.RowLayout) -> int:
  """Returns the number of the column of step types."""
  return [column.name for column in layout.columns].index('step_type')


def padding_of(layout: store_rows.RowLayout) -> dict[int, Any]:
  """Returns the values of a frame of padding that are not 0, by columns."""
  return {step_type_column(layout): ts.StepType.LAST}


def load_frames(
    data: tf.data.Dataset,
    items: items_lib.TableItems,
    directory: files.PathLike | None = None,
    options: options_lib.ConversionOptions | None = None,
) -> FrameStore:
  """Reads a data set once, and stores its frames.

  Args:
    data: an RLDS data set; or a data set of sequences, see
      `frames.make_frame_source`.
    items: the windows of frames that are items.
    directory: a folder on the local disk for the frames. If the folder has the
      frames already, the data is not read again. If several processes need the
      folder, one prepares the frames and the others wait. By default frames are
      in memory.
    options: how the data is converted.

  Raises:
    ValueError: if there are no items, or an argument or the data is not valid.
    FileExistsError: if `directory` holds something else, or if it cannot be
      known whether it is the same.
    InvalidArgumentError: if an episode is invalid. Nothing is kept then.
  """
  source = frames_lib.make_frame_source(data, items, options)
  if directory is None:
    return _write(source, None, None)
  directory = files.expand_local(directory, _FOLDER)
  made_from, problem = fingerprints.fingerprint_pipeline(data)
  if made_from is not None:
    rules = source.options.rules
    settings = {'policy_info_fn': source.options.policy_info_fn, 'rules': rules}
    try:
      made_from = fingerprints.fingerprint(
          str(data.element_spec), made_from, items, settings
      )
    except ValueError as e:
      made_from, problem = None, str(e).rstrip('.')
  files.recover_interrupted_write(directory)
  marker = folders.read_marker(directory)
  if marker is None:
    with files.one_at_a_time(directory):
      # Another process may have prepared them since.
      marker = folders.read_marker(directory)
      if marker is None:
        with files.new_folder(directory, [folders.MARKER]) as folder:
          _write(source, folder, made_from)
        return open_frames(directory)
  if made_from is None:
    raise FileExistsError(
        f'{directory} holds frames, and it is unknown whether they are of this'
        f' data: {problem}. To use the existing frames, pass the directory'
        ' instead of the data. Or remove it, or choose another directory.'
    )
  if marker['meta'].get('made_from') != made_from:
    raise FileExistsError(
        f'{directory} holds frames of other data or with other items, or of'
        ' files that have changed or moved. Remove it, or choose another'
        ' directory. To use the existing frames, pass the directory instead of'
        ' the data.'
    )
  return open_frames(directory)


def open_frames(directory: files.PathLike) -> FrameStore:
  """Maps the files of a folder of prepared frames, once they are checked.

  Each file is checked for its size and for the checksums of 32 MB: all of a
  small file; the first and last MB of a large file, and others between them.
  That takes about 15 ms a file in the page cache, and otherwise as long as 32
  reads of 1 MB. `check_prepared_frames` checks all bytes.

  Raises:
    FileNotFoundError: if the folder does not exist or has no frames.
    OSError: if the folder is damaged, or of another version.
  """
  folder = files.expand_local(directory, _FOLDER)
  rows = store_rows.open_rows(folder, blocks=_BLOCKS_AT_OPENING)
  with folders.naming_damage(folder):
    store = _store(rows)
    _check_episodes(store)
    return store


def check_prepared_frames(directory: files.PathLike) -> None:
  """Reads a folder of prepared frames, and checks every byte.

  Opening the folder checks all metadata, but only 32 MB of each large file.

  Args:
    directory: the folder on the local disk that `EpisodesReplayBuffer` or
      `open_replay_buffer` has written, with `directory=`.

  Raises:
    FileNotFoundError: if the folder does not exist or has no frames.
    OSError: if the folder is damaged, or of another version.
  """
  store_rows.open_rows(files.expand_local(directory, _FOLDER), blocks=None)


def _check_episodes(store: FrameStore) -> None:
  """Raises a ValueError if items are not within the rows of a folder."""
  episodes, windows = store.episodes, store.windows
  first, num_rows, num_items = episodes[:3]
  shapes = {np.shape(array) for array in episodes}
  kinds = {array.dtype for array in episodes[:3]}
  if len(shapes) != 1 or np.ndim(first) != 1 or kinds != {np.dtype(np.int64)}:
    raise ValueError('the arrays of its episodes have other shapes or dtypes')
  if (
      (first < 0).any()
      or (num_rows < 0).any()
      or (num_rows > store.rows.num_rows - first).any()
  ):
    raise ValueError('its episodes are not within its rows')
  stride = 1 if windows is None else windows.stride
  if (num_items < 0).any() or (
      (num_items - 1) > (num_rows - 1) // stride
  ).any():
    raise ValueError('its items are not within its episodes')
  priorities = store.priorities
  if priorities is not None and priorities.shape != (num_items.sum(),):
    raise ValueError('it does not have one priority for each item')


def _store(rows) -> FrameStore:
  """Returns the frames of a written store."""
  rows.padding = padding_of(rows.layout)
  proto = text_format.Parse(rows.meta['spec'], struct_pb2.StructuredValue())
  windows = rows.meta['windows']
  return FrameStore(
      trajectory.Trajectory(*tensor_spec.from_proto(proto)),
      rows,
      windows and windows_lib.Windows(*windows),
      store_items.Episodes(
          *[rows.arrays[name] for name in store_items.Episodes._fields]
      ),
      rows.arrays.get('priorities'),
      rows.fingerprint,
  )


def _write(source, folder, made_from) -> FrameStore:
  """Stores the frames of a source, in memory if there is no folder."""
  [items] = source.tables
  spec, windows = source.spec, items.windows
  layout = layout_of(spec)
  lengths, returns, is_open = [np.zeros(0, np.int64)], [np.zeros(0)], False
  with contextlib.closing(store_rows.StoreWriter(layout, folder)) as writer:
    for segment in source.segments():
      writer.append(tf.nest.flatten(segment.frames))
      lengths.append(segment.length)
      returns.append(_returns(spec, segment))
      is_open = segment.is_open
    episodes = store_items.find_episodes(
        np.concatenate(lengths), windows, np.concatenate(returns), is_open
    )
    if not episodes.num_items.any():
      longest = int(episodes.num_rows.max(initial=0))
      if not longest:
        raise ValueError(
            'There are no frames in the data set, so there is nothing to'
            ' sample. Is it empty, or were all its episodes dropped?'
        )
      raise ValueError(
          f'No item fits: every episode has fewer than {items.sequence_length}'
          f' frames; the longest has {longest}. Choose shorter windows, or an'
          ' end of "pad".'
      )
    arrays = episodes._asdict()
    if items.priority != 1.0:
      arrays['priorities'] = _priorities(items, episodes, spec, writer)
    meta = {
        'made_from': made_from,
        'windows': windows and [windows.length, windows.stride, windows.end],
        'spec': text_format.MessageToString(tensor_spec.to_proto(spec)),
    }
    return _store(writer.finish(meta, arrays))


def _returns(spec, segment) -> np.ndarray:
  """Returns the sum of the rewards of each episode, float64 `[E]`."""
  reward = spec.reward
  is_number = isinstance(reward, tf.TypeSpec) and reward.shape.rank == 0
  if not (is_number and reward.dtype.is_floating):
    return np.full(len(segment.step), np.nan)
  is_last = segment.frames.step_type == ts.StepType.LAST
  rewards = np.where(is_last, 0.0, segment.frames.reward.astype(np.float64))
  return np.add.reduceat(rewards, segment.row_splits[:-1])


def _priorities(items, episodes, spec, writer) -> np.ndarray:
  """Returns the priorities of all items."""
  index = store_items.ItemIndex(episodes, items.windows)
  if not callable(items.priority):
    return np.full(index.num_items, float(items.priority))
  function = priorities_lib.batched(items.priority)
  rows = writer.rows(padding=padding_of(writer.layout))
  count = 1  # Episodes of different lengths have no common array.
  if index.length is not None:
    item_bytes = max(writer.layout.frame_bytes * index.length, 1)
    count = max(_PRIORITY_BYTES // item_bytes, 1)
  priorities = np.zeros(index.num_items)
  for begin in range(0, index.num_items, count):
    numbers = np.arange(begin, min(begin + count, index.num_items))
    leaves = index.read(rows, numbers)
    frames = tf.nest.pack_sequence_as(spec, rows.with_strings(leaves))
    priorities[numbers] = function(frames)
  priorities_lib.check(
      priorities,
      items.table_name,
      lambda item: index.episode_and_start(np.array([item]))[1][0],
  )
  return priorities
