"""The files of LeRobot data sets v2.0, v2.1 and v3.0, with their episodes.

`lerobot` has a drawing of them.
"""

import json
import os
from typing import Any, Dict, List, NamedTuple, Tuple

import pyarrow as pa

from rlds2reverb.datasets import files
from rlds2reverb.formats import parquet_files

_INFO_FILE = os.path.join('meta', 'info.json')
_VIDEO = 'video'
EPISODE_INDEX = 'episode_index'
TASK_INDEX = 'task_index'
TASK = 'task'


class LeRobotData(NamedTuple):
  """A data set, without its frames.

  Attributes:
    directory: its directory.
    info: the content of its info file.
    files: the paths of the parquet files, in the order of their episodes.
    lengths: the number of frames of each episode, by its index.
    videos: by feature, and by the index of an episode: the path of its video,
      and the second of the video at which it begins.
    tasks: the texts of the tasks by their numbers.
  """

  directory: str
  info: Dict[str, Any]
  files: List[str]
  lengths: Dict[int, int]
  videos: Dict[str, Dict[int, Tuple[str, float]]]
  tasks: Dict[int, bytes]


def open_data_set(name_or_directory: files.PathLike) -> LeRobotData:
  """Finds the episodes of a data set; see `lerobot.load_lerobot`.

  Raises:
    ValueError: if there is no such data set, or if it is of another version.
  """
  directory = _find_directory(name_or_directory)
  with files.open_text(os.path.join(directory, _INFO_FILE)) as f:
    info = json.load(f)
  version = str(info.get('codebase_version'))
  features = info['features']
  videos = [name for name in features if features[name]['dtype'] == _VIDEO]
  if version.startswith('v3.'):
    find, read_tasks = _episodes_of_v3, _read_tasks_of_v3
  elif version.startswith('v2.'):
    find, read_tasks = _episodes_of_v2, _read_tasks_of_v2
  else:
    raise ValueError(
        f'{directory} is a LeRobot data set of version {version}, but v2.0,'
        ' v2.1 and v3.0 are read. LeRobot has scripts that convert others.'
    )
  return LeRobotData(
      directory, info, *find(directory, info, videos), read_tasks(directory)
  )


def _find_directory(name_or_directory: files.PathLike) -> str:
  """Returns the directory of a data set that has its info file."""
  path = files.expand_local(name_or_directory, 'A LeRobot data set')
  if os.path.isfile(os.path.join(path, _INFO_FILE)):
    return path
  message = f'There is no LeRobot data set {path}: it has no {_INFO_FILE}.'
  name = os.fspath(name_or_directory)
  if not os.path.exists(path) and not os.path.isabs(name) and name[0] != '~':
    home = os.environ.get('HF_LEROBOT_HOME') or os.path.join(
        os.environ.get('HF_HOME') or os.path.join('~', '.cache', 'huggingface'),
        'lerobot',
    )
    by_name = os.path.join(files.expand(home), name)
    if os.path.isfile(os.path.join(by_name, _INFO_FILE)):
      return by_name
    message += f' Nor is there one at {by_name}.'
  raise ValueError(message)


def _episodes_of_v2(directory, info, videos) -> Tuple[Any, Any, Any]:
  """Finds the episodes of v2, which have a file each."""
  lengths = {
      line[EPISODE_INDEX]: line['length']
      for line in _read_lines(os.path.join(directory, 'meta', 'episodes.jsonl'))
  }

  def path(template, index, **names):
    chunk = index // info['chunks_size']
    names = {EPISODE_INDEX: index, 'episode_chunk': chunk, **names}
    return os.path.join(directory, template.format(**names))

  return (
      [path(info['data_path'], index) for index in sorted(lengths)],
      lengths,
      {
          video: {
              index: (path(info['video_path'], index, video_key=video), 0.0)
              for index in lengths
          }
          for video in videos
      },
  )


def _episodes_of_v3(directory, info, videos) -> Tuple[Any, Any, Any]:
  """Finds the episodes of v3, which share files."""
  folder = os.path.join(directory, 'meta', 'episodes')
  paths = [
      os.path.join(folder, chunk, name)
      for chunk in files.names_in(folder)
      for name in files.names_in(os.path.join(folder, chunk))
  ]
  lengths = {}
  in_data = {}
  in_videos = {video: {} for video in videos}

  def file_of(template, row, prefix, **names):
    numbers = {
        name: row[f'{prefix}/{name}'] for name in ('chunk_index', 'file_index')
    }
    return os.path.join(directory, template.format(**numbers, **names))

  prefixes = ['data', *(f'videos/{video}' for video in videos)]
  columns = [EPISODE_INDEX, 'length']
  for prefix in prefixes:
    columns += [f'{prefix}/chunk_index', f'{prefix}/file_index']
  columns += [f'{prefix}/from_timestamp' for prefix in prefixes[1:]]
  for path in paths:
    with parquet_files.open_file(path) as file:
      for row in file.read(columns).to_pylist():
        index = row[EPISODE_INDEX]
        lengths[index] = row['length']
        in_data[index] = file_of(info['data_path'], row, 'data')
        for video, prefix in zip(videos, prefixes[1:]):
          in_videos[video][index] = (
              file_of(info['video_path'], row, prefix, video_key=video),
              row[f'{prefix}/from_timestamp'],
          )
  in_order = dict.fromkeys(in_data[index] for index in sorted(in_data))
  return list(in_order), lengths, in_videos


def _read_tasks_of_v2(directory: str) -> Dict[int, bytes]:
  """Returns the texts of the tasks by their numbers."""
  path = os.path.join(directory, 'meta', 'tasks.jsonl')
  if not os.path.exists(path):
    return {}
  return {line[TASK_INDEX]: line[TASK].encode() for line in _read_lines(path)}


def _read_tasks_of_v3(directory: str) -> Dict[int, bytes]:
  """Returns the texts of the tasks by their numbers."""
  path = os.path.join(directory, 'meta', 'tasks.parquet')
  if not os.path.exists(path):
    return {}
  with parquet_files.open_file(path) as file:
    table = file.read()
  # The texts are the index of a pandas frame. The name of that column differs
  # between versions.
  (texts,) = [
      field.name
      for field in table.schema
      if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
  ]
  return {
      number: text.encode()
      for number, text in zip(
          table[TASK_INDEX].to_pylist(), table[texts].to_pylist()
      )
  }


def _read_lines(path: str) -> List[Dict[str, Any]]:
  with files.open_text(path) as f:
    return [json.loads(line) for line in f if line.strip()]
