"""The files of LeRobot data sets v2.0, v2.1 and v3.0, with their episodes.

`lerobot` has a drawing of them.
"""

from collections.abc import Collection
from collections.abc import Sequence
import os
import re
import string
from typing import Any, NamedTuple

import pyarrow as pa

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import limits
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import downloads

_INFO_FILE = os.path.join('meta', 'info.json')
_VIDEO = 'video'
_CHUNKS_SIZE = 1000
# The paths of LeRobot's files, where info.json does not tell them.
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
EPISODE_INDEX = 'episode_index'
TASK_INDEX = 'task_index'
TASK = 'task'
_LENGTH = 'length'


class Info(NamedTuple):
  """The content of `meta/info.json`, checked.

  Attributes:
    directory: the directory of the data set.
    path: the path of the file.
    is_v3: whether the version is v3.0, and not v2.0 or v2.1.
    features: the features by their names, each with `dtype` and `shape`.
    fps: frames a second; None if it is not told.
    content: the whole content.
  """

  directory: str
  path: str
  is_v3: bool
  features: dict[str, dict[str, Any]]
  fps: float | None
  content: dict[str, Any]

  @property
  def videos(self) -> list[str]:
    """The names of the features that are videos."""
    features = self.features
    return [name for name in features if features[name]['dtype'] == _VIDEO]

  def file_of(self, key: str, row: dict[str, Any], prefix: str) -> str:
    """Returns the path of the file that has an episode, alone or not.

    Args:
      key: the key of the template, `data_path` or `video_path`.
      row: the metadata of the episode.
      prefix: how the columns of v3 begin that tell the file.
    """
    template = files.get_json_value(
        self.content, key, str, self.path, _PATHS[self.is_v3][key]
    )
    index = row[EPISODE_INDEX]
    names = {EPISODE_INDEX: index, 'video_key': prefix.partition('/')[2]}
    if self.is_v3:
      for name in 'chunk_index', 'file_index':
        names[name] = row[f'{prefix}/{name}']
    else:
      size = files.get_json_value(
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
          f'{key!r} of {self.path} is {template!r}, but must be a path that'
          f' only uses {sorted(names)}, such as {{episode_index:06d}}.'
      )
    limits.check_place(f'{key!r} of {self.path}', path, self.directory)
    return os.path.join(self.directory, path)


class LeRobotData(NamedTuple):
  """A data set, without its frames.

  Attributes:
    info: the content of its info file.
    files: the indices of the episodes in each parquet file, by its path, in the
      order of the episodes.
    lengths: the number of frames of each episode, by its index.
    videos: by feature, and by the index of an episode: the path of its video,
      and the second of the video at which it begins.
    tasks: the texts of the tasks by their numbers.
  """

  info: Info
  files: dict[str, list[int]]
  lengths: dict[int, int]
  videos: dict[str, dict[int, tuple[str, float]]]
  tasks: dict[int, bytes]


def read_info(name_or_directory: files.PathLike) -> Info:
  """Finds a data set, and reads its `meta/info.json`.

  Raises:
    ValueError: if there is no such data set, if it is of another version, or if
      the file is damaged or incomplete.
  """
  root = os.environ.get('HF_LEROBOT_HOME') or os.path.join(
      os.environ.get('HF_HOME') or '~/.cache/huggingface', 'lerobot'
  )
  directory = downloads.find(name_or_directory, 'LeRobot', root, _INFO_FILE)
  path = os.path.join(directory, _INFO_FILE)
  content = files.read_json_object(path)
  version = files.get_json_value(content, 'codebase_version', str, path)
  if not version.startswith(('v2.', 'v3.')):
    raise ValueError(
        f'{directory} is a LeRobot data set of version {version}, but v2.0,'
        ' v2.1 and v3.0 are read. LeRobot has scripts that convert others.'
    )
  features = files.get_json_value(content, 'features', dict, path)
  for name in features:
    feature = files.get_json_value(
        features, name, dict, f"'features' of {path}"
    )
    place = f'the feature {name!r} of {path}'
    files.get_json_value(feature, 'dtype', str, place)
    shape = files.get_json_value(feature, 'shape', list, place)
    if not all(type(size) is int and size >= 0 for size in shape):
      raise ValueError(
          f"'shape' of {place} must be a list of sizes, but is {shape}."
      )
  fps = None
  if content.get('fps') is not None:
    fps = files.get_json_value(content, 'fps', float, path)
    if not fps > 0:
      raise ValueError(f"'fps' of {path} must be positive, but is {fps}.")
  is_v3 = version.startswith('v3.')
  return Info(directory, path, is_v3, features, fps, content)


def open_data_set(
    info: Info,
    videos: Collection[str],
    episodes: Sequence[int] | None,
    with_tasks: bool,
) -> LeRobotData:
  """Finds the episodes of a data set; see `lerobot.load_lerobot`.

  Args:
    info: the content of its info file.
    videos: the features with videos that are read.
    episodes: the indices of the episodes that are read; None for all.
    with_tasks: whether the texts of tasks are read.

  Raises:
    ValueError: if the metadata is damaged or incomplete, or there is no such
      episode.
  """
  folder = os.path.join(info.directory, 'meta')
  if videos and info.fps is None:
    raise ValueError(f"{info.path} must have the key 'fps', as it has videos.")
  read_rows, read_tasks = (
      (_read_rows_v3, _read_tasks_v3)
      if info.is_v3
      else (_read_rows_v2, _read_tasks_v2)
  )
  path, rows = read_rows(folder, videos)
  by_index: dict[int, dict[str, Any]] = {}
  for row in rows:
    if by_index.setdefault(row[EPISODE_INDEX], row) is not row:
      raise ValueError(f'{path} has episode {row[EPISODE_INDEX]} twice.')
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
        f'{info.path} says that there are {info.content["total_tasks"]} tasks,'
        f' but {folder} has none. To read the data without them, leave out'
        f' {TASK_INDEX!r}.'
    )
  return LeRobotData(
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
  """Returns the indices of the episodes that are read, checked."""
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
        f'episodes must be different indices of the'
        f' {checks.counted(len(available), "episode")} in {path}, from'
        f' {min(available)} to {max(available)}, but {problem}.'
    )
  return sorted(episodes)


def _fill(template: str, names: dict[str, Any]) -> str | None:
  """Returns a path with values in place of names, or None if that fails.

  A name must not have attributes, and a number not be padded to any length.
  """
  try:
    for _, name, how, conversion in string.Formatter().parse(template):
      is_plain = name in (*names, None) and not conversion
      if not is_plain or not re.fullmatch(r'(0?[0-9]{1,2}d)?', how or ''):
        return None
    return template.format(**names)
  except (AttributeError, TypeError, ValueError):
    return None


_Rows = tuple[str, list[dict[str, Any]]]


def _read_rows_v2(folder: str, unused_videos: Collection[str]) -> _Rows:
  path = os.path.join(folder, 'episodes.jsonl')
  rows = []
  for place, row in files.read_json_lines(path):
    for name in EPISODE_INDEX, _LENGTH:
      files.get_json_value(row, name, int, place)
    rows.append(row)
  return path, rows


def _read_tasks_v2(folder: str) -> dict[int, bytes]:
  path = os.path.join(folder, 'tasks.jsonl')
  if not os.path.exists(path):
    return {}
  return {
      files.get_json_value(line, TASK_INDEX, int, place): files.get_json_value(
          line, TASK, str, place
      ).encode()
      for place, line in files.read_json_lines(path)
  }


def _read_rows_v3(folder: str, videos: Collection[str]) -> _Rows:
  prefixes = [f'videos/{video}' for video in videos]
  columns = [EPISODE_INDEX, _LENGTH]
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
  # The texts are the index of a pandas frame. The name of that column differs
  # between versions.
  types = pa.string(), pa.large_string()
  texts = [field.name for field in table.schema if field.type in types]
  columns_lib.check_has(path, [TASK_INDEX], table.column_names)
  if len(texts) != 1:
    raise ValueError(
        f'{path} must have one column with the texts of the tasks, but has'
        f' {texts or "none"} among {table.column_names}.'
    )
  numbers, texts_by_task = (
      table[name].to_pylist() for name in (TASK_INDEX, *texts)
  )
  if None in numbers or None in texts_by_task:
    raise ValueError(f'{path} has tasks without a number or a text.')
  return {number: text.encode() for number, text in zip(numbers, texts_by_task)}
