"""LeRobot data sets: parquet files of frames, and MP4 videos.

    meta/info.json     the version, features, frame rate and paths
         tasks         .jsonl in v2, .parquet in v3
         episodes      .jsonl in v2; parquet files in v3, with the files of each
                       episode, and its start time in its videos
    data/chunk-000/    parquet files, for one episode in v2 and several in v3
    videos/            MP4 files for each camera, for one episode or several

The versions are v2.0, v2.1 and v3.0 of github.com/huggingface/lerobot, which
LeRobot 0.3.3, 0.4.4 and 0.6.1 write. Reading them requires neither LeRobot nor
torch.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import os
import re
import string
from typing import Any, NamedTuple

from etils import epy
import gin
import numpy as np
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import format_registry
from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import limits
from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import depth_maps
from rlds2reverb.formats import downloads
from rlds2reverb.formats import gr00t
from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import video_frames

with epy.lazy_imports(error_callback=format_registry.explain_missing_library):
  import pyarrow as pa

_INFO_FILE = os.path.join('meta', 'info.json')
_VIDEO = 'video'
_CHUNKS_SIZE = 1000
# The default paths of files, for v2 and v3.
_PATHS = {
    False: {
        'data_path': (
            'data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet'
        ),
        'video_path': (
            'videos/chunk-{episode_chunk:03d}/{video_key}/'
            'episode_{episode_index:06d}.mp4'
        ),
    },
    True: {
        'data_path': (
            'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
        ),
        'video_path': (
            'videos/{video_key}/chunk-{chunk_index:03d}/'
            'file-{file_index:03d}.mp4'
        ),
    },
}
_EPISODE_INDEX = 'episode_index'
_TASK_INDEX = 'task_index'
_TASK = 'task'
_LENGTH = 'length'


class _Info(NamedTuple):
  """The validated content of `meta/info.json`.

  Attributes:
    directory: the directory of the data set.
    path: the path of the file.
    is_v3: whether the version is v3.0 rather than v2.0 or v2.1.
    features: the features by name, each with `dtype` and `shape`.
    fps: the frame rate, if the file contains it.
    content: all keys of the file.
  """

  directory: str
  path: str
  is_v3: bool
  features: dict[str, dict[str, Any]]
  fps: float | None
  content: dict[str, Any]

  @property
  def videos(self) -> list[str]:
    """The names of the video features."""
    features = self.features
    return [name for name in features if features[name]['dtype'] == _VIDEO]

  def file_of(self, key: str, row: dict[str, Any], prefix: str) -> str:
    """Returns the path of the file of an episode.

    Args:
      key: the key of the template, `data_path` or `video_path`.
      row: the metadata of the episode.
      prefix: the prefix of the v3 columns with the indices of the file.
    """
    template = json_files.get_json_value(
        self.content, key, str, self.path, _PATHS[self.is_v3][key]
    )
    index = row[_EPISODE_INDEX]
    names = {_EPISODE_INDEX: index, 'video_key': prefix.partition('/')[2]}
    if self.is_v3:
      for name in 'chunk_index', 'file_index':
        names[name] = row[f'{prefix}/{name}']
    else:
      size = json_files.get_json_value(
          self.content, 'chunks_size', int, self.path, _CHUNKS_SIZE
      )
      if size < 1:
        raise ValueError(
            f"'chunks_size' of {self.path} must be positive, but is {size}."
        )
      names['episode_chunk'] = names['chunk_index'] = index // size
    path = _fill(template, names)
    if path is None:
      raise ValueError(
          f'{key!r} of {self.path} is {template!r}, but must be a path with'
          f' placeholders in {sorted(names)}, such as {{episode_index:06d}}.'
      )
    limits.check_place(f'{key!r} of {self.path}', path, self.directory)
    return os.path.join(self.directory, path)


class _LeRobotData(NamedTuple):
  """The metadata of a data set.

  Attributes:
    info: the content of the info file.
    files: the indices of the episodes in each parquet file, by path, in the
      order of the episodes.
    lengths: the number of frames of each episode, by index.
    videos: the path of the video and the start time in it, by feature and by
      the index of the episode.
    tasks: the texts of the tasks, by task index.
  """

  info: _Info
  files: dict[str, list[int]]
  lengths: dict[int, int]
  videos: dict[str, dict[int, tuple[str, float]]]
  tasks: dict[int, bytes]


def _read_info(name_or_directory: files.PathLike) -> _Info:
  """Finds a data set, and reads its `meta/info.json`.

  Raises:
    ValueError: if the data set does not exist or has another version, or if the
      file is damaged or incomplete.
  """
  root = os.environ.get('HF_LEROBOT_HOME') or os.path.join(
      os.environ.get('HF_HOME') or '~/.cache/huggingface', 'lerobot'
  )
  directory = downloads.find(name_or_directory, 'LeRobot', root, _INFO_FILE)
  path = os.path.join(directory, _INFO_FILE)
  content = json_files.read_json_object(path)
  version = json_files.get_json_value(content, 'codebase_version', str, path)
  if not version.startswith(('v2.', 'v3.')):
    raise ValueError(
        f'{directory} is a LeRobot data set of version {version}. Supported'
        ' are v2.0, v2.1 and v3.0. Convert it with the scripts of LeRobot.'
    )
  features = json_files.get_json_value(content, 'features', dict, path)
  for name in features:
    feature = json_files.get_json_value(
        features, name, dict, f"'features' of {path}"
    )
    place = f'the feature {name!r} of {path}'
    json_files.get_json_value(feature, 'dtype', str, place)
    shape = json_files.get_json_value(feature, 'shape', list, place)
    if not all(type(size) is int and size >= 0 for size in shape):
      raise ValueError(
          f"'shape' of {place} must be a list of sizes, but is {shape}."
      )
  fps = None
  if content.get('fps') is not None:
    fps = json_files.get_json_value(content, 'fps', float, path)
    if not fps > 0:
      raise ValueError(f"'fps' of {path} must be positive, but is {fps}.")
  is_v3 = version.startswith('v3.')
  return _Info(directory, path, is_v3, features, fps, content)


def _open_data_set(
    info: _Info,
    videos: Collection[str],
    episodes: Sequence[int] | None,
    with_tasks: bool,
) -> _LeRobotData:
  """Reads the metadata of episodes; see `load_lerobot`.

  Args:
    info: the content of the info file.
    videos: the video features to read.
    episodes: the indices of the episodes to read; None for all.
    with_tasks: whether to read the texts of tasks.

  Raises:
    ValueError: if the metadata is damaged or incomplete, or if an episode does
      not exist.
  """
  folder = os.path.join(info.directory, 'meta')
  if videos and info.fps is None:
    raise ValueError(
        f"{info.path} must have the key 'fps', because it has videos."
    )
  read_rows, read_tasks = (
      (_read_rows_v3, _read_tasks_v3)
      if info.is_v3
      else (_read_rows_v2, _read_tasks_v2)
  )
  path, rows = read_rows(folder, videos)
  by_index: dict[int, dict[str, Any]] = {}
  for row in rows:
    if by_index.setdefault(row[_EPISODE_INDEX], row) is not row:
      raise ValueError(f'{path} has episode {row[_EPISODE_INDEX]} twice.')
  if not by_index:
    raise ValueError(f'There is no episode in {path}.')
  if episodes is not None:
    by_index = {
        index: by_index[index] for index in _chosen(episodes, by_index, path)
    }
  by_file: dict[str, list[int]] = {}
  for index in sorted(by_index):
    file = info.file_of('data_path', by_index[index], 'data')
    by_file.setdefault(file, []).append(index)

  def video_of(row: dict[str, Any], video: str) -> tuple[str, float]:
    prefix = f'videos/{video}'
    begin = row.get(f'{prefix}/from_timestamp', 0.0)
    return info.file_of('video_path', row, prefix), begin

  tasks = read_tasks(folder) if with_tasks else {}
  if with_tasks and not tasks and info.content.get('total_tasks'):
    raise ValueError(
        f'{info.path} lists {info.content["total_tasks"]} tasks, but {folder}'
        ' has none. To read the data without tasks, pass'
        f' exclude=[{_TASK_INDEX!r}].'
    )
  return _LeRobotData(
      info,
      by_file,
      {index: row[_LENGTH] for index, row in by_index.items()},
      {
          video: {
              index: video_of(row, video) for index, row in by_index.items()
          }
          for video in videos
      },
      tasks,
  )


def _chosen(
    episodes: Sequence[int], available: Collection[int], path: str
) -> list[int]:
  """Validates and sorts the indices of the episodes to read."""
  is_list = isinstance(episodes, Sequence) and not isinstance(episodes, str)
  if not is_list or not all(
      isinstance(index, int) and not isinstance(index, bool)
      for index in episodes
  ):
    raise ValueError(
        f'episodes must be a list of indices of episodes, but is {episodes!r}.'
    )
  missing = [index for index in episodes if index not in available]
  if missing or not episodes or len(set(episodes)) < len(episodes):
    problem = f'has {missing[:10]}' if missing else f'is {list(episodes)[:10]}'
    raise ValueError(
        f'episodes must be distinct indices of the'
        f' {checks.counted(len(available), "episode")} in {path}, from'
        f' {min(available)} to {max(available)}, but {problem}.'
    )
  return sorted(episodes)


def _fill(template: str, names: dict[str, Any]) -> str | None:
  """Fills in a template of a path; returns None if the template is invalid.

  Names with attributes, and padding of more than two digits, are invalid.
  """
  try:
    for _, name, format_spec, conversion in string.Formatter().parse(template):
      is_plain = name in (*names, None) and not conversion
      if not is_plain or not re.fullmatch(
          r'(0?[0-9]{1,2}d)?', format_spec or ''
      ):
        return None
    return template.format(**names)
  except (AttributeError, TypeError, ValueError):
    return None


_Rows = tuple[str, list[dict[str, Any]]]


def _read_rows_v2(folder: str, unused_videos: Collection[str]) -> _Rows:
  path = os.path.join(folder, 'episodes.jsonl')
  rows = []
  for place, row in json_files.read_json_lines(path):
    for name in _EPISODE_INDEX, _LENGTH:
      json_files.get_json_value(row, name, int, place)
    rows.append(row)
  return path, rows


def _read_tasks_v2(folder: str) -> dict[int, bytes]:
  path = os.path.join(folder, 'tasks.jsonl')
  if not os.path.exists(path):
    return {}
  return {
      json_files.get_json_value(
          line, _TASK_INDEX, int, place
      ): json_files.get_json_value(line, _TASK, str, place).encode()
      for place, line in json_files.read_json_lines(path)
  }


def _read_rows_v3(folder: str, videos: Collection[str]) -> _Rows:
  prefixes = [f'videos/{video}' for video in videos]
  columns = [_EPISODE_INDEX, _LENGTH]
  for prefix in ('data', *prefixes):
    columns += [f'{prefix}/chunk_index', f'{prefix}/file_index']
  columns += [f'{prefix}/from_timestamp' for prefix in prefixes]
  place, rows = os.path.join(folder, 'episodes'), []
  for path in arrow.find_parquet(place):
    with arrow.open_parquet(path) as file, arrow.open_errors(path):
      columns_lib.check_has(path, columns, file.schema_arrow.names)
      table = file.read(columns)
    empty = [name for name in columns if table[name].null_count]
    if empty:
      raise ValueError(f'{path} has rows without {" and ".join(empty)}.')
    rows += table.to_pylist()
  return place, rows


def _read_tasks_v3(folder: str) -> dict[int, bytes]:
  path = os.path.join(folder, 'tasks.parquet')
  if not os.path.exists(path):
    return {}
  table = arrow.read_table(path)
  # The texts are the index of a pandas DataFrame, whose name depends on the
  # version.
  texts = [field.name for field in table.schema if arrow.is_text(field.type)]
  columns_lib.check_has(path, [_TASK_INDEX], table.column_names)
  if len(texts) != 1:
    raise ValueError(
        f'{path} must have one column with the texts of the tasks, but has'
        f' {texts or "none"} among {table.column_names}.'
    )
  numbers, texts_by_task = (
      table[name].to_pylist() for name in (_TASK_INDEX, *texts)
  )
  if None in numbers or None in texts_by_task:
    raise ValueError(f'{path} has tasks without an index or a text.')
  return {number: text.encode() for number, text in zip(numbers, texts_by_task)}


_TIMESTAMP = 'timestamp'
_FRAME_INDEX = 'frame_index'
_REWARD = 'next/reward'


@gin.configurable(module='rlds2reverb')
@python_episodes.naming_path
def load_lerobot(
    name_or_directory: files.PathLike,
    *,
    is_terminal: str | None = None,
    cameras: Sequence[str] | None = None,
    decode_videos: bool = True,
    depth_unit: str = depth_maps.MILLIMETERS,
    exclude: Sequence[str] = (),
    modality: bool = False,
    episodes: Sequence[int] | None = None,
    frames_by: str = video_frames.EXACT_TIME,
) -> tf.data.Dataset:
  """Reads the episodes of a LeRobot data set, v2.0, v2.1 or v3.0.

  LeRobot stores no observation after the last action, and does not distinguish
  terminal from truncated episodes. As with `from_flat_arrays`, an episode of
  `T` frames has `T` steps, and the action of the last step is ignored. A step
  of zeros is appended to episodes that are terminal according to `is_terminal`.

  Args:
    name_or_directory: the local directory of a data set; or the name of a
      downloaded data set, such as `lerobot/pusht`, in `$HF_LEROBOT_HOME` or
      else in `~/.cache/huggingface/lerobot`.
    is_terminal: the feature whose value in the last frame of an episode is the
      terminal flag, such as `next.success`. By default all episodes are
      truncated.
    cameras: the video features to read; all by default. Other videos are not
      decoded.
    decode_videos: whether to decode videos, with all frames of an episode in
      memory. Otherwise a frame is a reference, a string such as
      `/data/file-000.mp4#t=1.5`, for `transforms.decode_video_frames`.
    depth_unit: the unit of depth maps, `"mm"` or `"m"`.
    exclude: names of other features to skip.
    modality: whether to replace features by the parts that GR00T's
      `meta/modality.json` defines. By default, only the cameras in this file
      are read then.
    episodes: the indices of the episodes to read; all by default. Files of
      other episodes may be missing.
    frames_by: the method to find the frame of a row in a video. `"exact_time"`:
      the nearest frame, which must be within half a frame of the timestamp of
      the row. `"nearest_time"`: the nearest frame at any distance. `"index"`:
      frame `n` for row `n` of an episode. GR00T's readers use one of the last
      two, because some of its data has another start time than its videos. Both
      require `decode_videos`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the files, with stacked steps. Names with a dot are nested:
    `observation.images.top` becomes `observation/images/top`. `next.reward`
    becomes `reward`, which is float32 zeros if it is missing. `task` is the
    text of the task. Video frames are uint8 `[T, height, width, 3]`. Images in
    parquet stay encoded, for `decode_images`. Depth maps, in videos or TIFF
    images, are `[T, height, width, 1]` as in LeRobot: uint16 millimeters, or
    float32 meters. Lists of dicts, such as `language_events`, are JSON text.
    All other features, such as `next.done` and `timestamp`, are step fields.
    Dtypes are kept. With `modality`, `state.arm` becomes
    `observation/state/arm`, `action.arm` becomes `action/arm`, `video.top`
    becomes `observation/video/top`, and `annotation.human.task` becomes the
    text `annotation/human/task`.

  Raises:
    ValueError: if the data set, a feature or an episode does not exist, if the
      version is not supported, or if the metadata is damaged or incomplete. The
      message contains the file and the key.
    OSError: if a metadata file is missing.
    ImportError: if there are videos to decode, but PyAV is not installed.
    InvalidArgumentError: while iterating, if a file of an episode is missing or
      damaged, if the number of frames differs from the metadata, if the frames
      are not sorted by index and timestamp, if a video has an unsupported pixel
      format, or if it has no frame at a timestamp. The episodes after it can
      still be read.
  """
  info = _read_info(name_or_directory)
  features, directory = info.features, info.directory
  if cameras is not None:
    paths_lib.check_list('cameras', cameras)
    for camera in cameras:
      checks.check_known(directory, 'video', camera, info.videos)
  checks.check_choice('depth_unit', depth_unit, depth_maps.UNITS)
  checks.check_choice('frames_by', frames_by, video_frames.METHODS)
  if not decode_videos and frames_by != video_frames.EXACT_TIME:
    raise ValueError(
        f'frames_by={frames_by!r} requires decode_videos, because references'
        ' to frames have exact times.'
    )
  columns_lib.check_exclude(directory, features, exclude)
  if is_terminal is not None:
    checks.check_known(directory, 'feature', is_terminal, features)
  unread = {_EPISODE_INDEX, *exclude}
  named = gr00t.read_parts(directory, features) if modality else {}
  wanted = cameras
  if modality and cameras is None:
    wanted = [part.feature for part in named.values()]
  if wanted is not None:
    unread |= set(info.videos) - set(wanted)
  data = _open_data_set(
      info,
      [video for video in info.videos if video not in unread],
      episodes,
      _TASK_INDEX not in exclude,
  )
  parts = _parts(data, features.keys() - unread, named)
  used = {part.feature for part in parts.values()}
  if is_terminal is not None:
    used.add(is_terminal)

  def read_rows(index: int, rows: pa.Table) -> python_episodes.PythonEpisode:
    if data.lengths[index] != len(rows):
      raise ValueError(
          f'Episode {index} of {directory} has {len(rows)} frames, but'
          f' {data.lengths[index]} according to its metadata.'
      )
    _check_order(directory, index, rows)
    frames = _Frames(data, index, rows, decode_videos, depth_unit, frames_by)
    steps = {path: frames.part(part) for path, part in parts.items()}
    return python_episodes.make_episode(
        columns_lib.nest(steps),
        index,
        is_terminal is not None and frames.feature(is_terminal),
    )

  def read_file(path: str, indices: list[int]) -> python_episodes.Episodes:
    left = dict.fromkeys(indices)
    fault = None
    try:
      for index, rows in arrow.read_episodes([path], _EPISODE_INDEX):
        if index in left:
          del left[index]
          _check_columns(path, rows, used, data)
          place = f'episode {index} of {path}'
          yield python_episodes.attempt(
              read_rows, index, rows, place=place, file=path
          )
    except (OSError, ValueError) as e:
      fault = python_episodes.to_fault(e, file=path)
    for index in left:
      yield fault or errors.Fault(
          f'{path} has no row of episode {index}.', file=path
      )

  def read() -> python_episodes.Episodes:
    for path, indices in data.files.items():
      yield from read_file(path, indices)

  return python_episodes.to_dataset(read, len(data.lengths))


def _check_order(directory: str, episode: int, rows: pa.Table) -> None:
  """Raises a ValueError if the frames of an episode are not sorted."""
  for name in _FRAME_INDEX, _TIMESTAMP:
    if name not in rows.column_names:
      continue
    values = rows[name].to_numpy().ravel()
    decreasing = np.flatnonzero(np.diff(values) < 0)
    if decreasing.size:
      row = int(decreasing[0]) + 1
      raise ValueError(
          f'Frame {row} of episode {episode} of {directory} has the {name}'
          f' {values[row]}, but the previous frame has {values[row - 1]}. The'
          ' rows of an episode must be sorted by time.'
      )


def _check_columns(
    path: str,
    rows: pa.Table,
    features: set[str],
    data: _LeRobotData,
) -> None:
  """Raises a ValueError if a parquet file lacks the columns of features."""
  needed = {name for name in features if name not in data.videos}
  if data.videos:
    needed.add(_TIMESTAMP)
  if len(data.tasks) == 1:  # All frames have the same task.
    needed.discard(_TASK_INDEX)
  missing = sorted(needed - set(rows.column_names))
  if missing:
    raise ValueError(
        f'{path} has no column {" and no ".join(missing)}, but'
        f' {sorted(rows.column_names)}. To skip features of'
        f' {data.info.path}, pass exclude.'
    )


def _parts(
    data: _LeRobotData,
    features: set[str],
    named: dict[str, gr00t.Part],
) -> dict[str, gr00t.Part]:
  """Returns the parts of features that become step fields, by path."""
  features_info = data.info.features
  named = {
      path: column
      for path, column in named.items()
      if column.feature in features
  }
  in_parts = {column.feature for column in named.values() if not column.is_task}
  parts = {
      name.replace('.', '/'): gr00t.Part(name)
      for name in features_info
      if name in features - in_parts
  }
  if data.tasks:
    parts[_TASK] = gr00t.Part(_TASK_INDEX, is_task=True)
  parts |= named
  tops = {path.split('/')[0] for path in parts}
  missing = [
      required
      for required in (rlds.OBSERVATION, rlds.ACTION)
      if required not in tops
  ]
  if missing:
    raise ValueError(
        f'{data.info.directory} has no feature {" and no ".join(missing)}, but'
        f' {sorted(path.replace("/", ".") for path in parts)}.'
    )
  if _REWARD in parts:
    parts[rlds.REWARD] = parts.pop(_REWARD)
  return parts


class _Frames(NamedTuple):
  """Reads the frames of an episode."""

  data: _LeRobotData
  episode: int
  rows: pa.Table
  decode_videos: bool
  depth_unit: str
  frames_by: str

  def part(self, part: gr00t.Part) -> Any:
    """Returns the rows of a part of a feature, or the texts of tasks."""
    if part.is_task:
      tasks = self.data.tasks
      if part.feature in self.rows.column_names:
        numbers = self.rows[part.feature].to_pylist()
      else:
        numbers = [*tasks] * len(self.rows)
      unknown = set(numbers) - tasks.keys()
      if unknown:
        raise ValueError(
            f'There is no task {list(unknown)[0]}. The tasks are'
            f' {sorted(tasks)[:10]}.'
        )
      return np.array([tasks[number] for number in numbers], object)
    rows = self.feature(part.feature)
    return rows if part.columns is None else rows[:, part.columns]

  def feature(self, name: str) -> Any:
    """Returns the rows of a feature."""
    feature = self.data.info.features[name]
    is_depth = depth_maps.is_depth(feature)
    if name not in self.data.videos:
      rows = arrow.to_array(self.rows[name], feature['shape'], name)
      is_tiff = is_depth and rows.dtype == object
      if is_tiff and all(map(depth_maps.is_tiff, rows)):
        units = (feature.get('info') or {}).get('depth_unit'), self.depth_unit
        rows = np.stack([depth_maps.decode_tiff(row, *units) for row in rows])
      return rows
    path, begin = self.data.videos[name][self.episode]
    fps = self.data.info.fps
    assert fps is not None  # _open_data_set requires it for videos.
    times = arrow.to_array(self.rows[_TIMESTAMP], None, _TIMESTAMP)
    if self.frames_by == video_frames.INDEX:
      times = np.arange(len(self.rows)) / fps
    times = begin + np.ravel(times).astype(np.float64)
    codes = depth_maps.codes_of(feature) if is_depth else None
    if not self.decode_videos:
      return video_frames.to_references(path, times, codes)
    depths = codes and codes.depths(self.depth_unit)
    return video_frames.column(path, times, fps, depths, self.frames_by)
