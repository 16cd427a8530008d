"""The files of LeRobot data sets v2.0, v2.1 and v3.0, with their episodes.

`lerobot` has a drawing of them.
"""

import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import pyarrow as pa

from rlds2reverb.datasets import files
from rlds2reverb.formats import arrow
from rlds2reverb.formats import downloads

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
  root = os.environ.get('HF_LEROBOT_HOME') or os.path.join(
      os.environ.get('HF_HOME') or '~/.cache/huggingface', 'lerobot'
  )
  directory = downloads.find(name_or_directory, 'LeRobot', root, _INFO_FILE)
  with files.open_text(os.path.join(directory, _INFO_FILE)) as f:
    info = json.load(f)
  version = str(info.get('codebase_version'))
  if not version.startswith(('v2.', 'v3.')):
    raise ValueError(
        f'{directory} is a LeRobot data set of version {version}, but v2.0,'
        ' v2.1 and v3.0 are read. LeRobot has scripts that convert others.'
    )
  features = info['features']
  videos = [name for name in features if features[name]['dtype'] == _VIDEO]
  is_v3 = version.startswith('v3.')
  rows = (
      _read_episodes(directory, ['data', *(f'videos/{one}' for one in videos)])
      if is_v3
      else _read_lines(os.path.join(directory, 'meta', 'episodes.jsonl'))
  )
  episodes = {row[EPISODE_INDEX]: row for row in rows}

  def file_of(index: int, template: str, prefix: str, **names: Any) -> str:
    """Returns the path of the file that has an episode, alone or not."""
    if is_v3:
      for name in 'chunk_index', 'file_index':
        names[name] = episodes[index][f'{prefix}/{name}']
    else:
      names[EPISODE_INDEX] = index
      names['episode_chunk'] = index // info['chunks_size']
    return os.path.join(directory, info[template].format(**names))

  def video_of(index: int, video: str) -> Tuple[str, float]:
    prefix = f'videos/{video}'
    return (
        file_of(index, 'video_path', prefix, video_key=video),
        episodes[index].get(f'{prefix}/from_timestamp', 0.0),
    )

  in_order = [file_of(one, 'data_path', 'data') for one in sorted(episodes)]
  return LeRobotData(
      directory,
      info,
      list(dict.fromkeys(in_order)),
      {index: row['length'] for index, row in episodes.items()},
      {
          video: {index: video_of(index, video) for index in episodes}
          for video in videos
      },
      _read_tasks(directory, is_v3),
  )


def _read_episodes(
    directory: str, prefixes: Sequence[str]
) -> Iterator[Dict[str, Any]]:
  """Yields a row for each episode of v3; `prefixes` begin names of columns."""
  columns = [EPISODE_INDEX, 'length']
  for prefix in prefixes:
    columns += [f'{prefix}/chunk_index', f'{prefix}/file_index']
  columns += [f'{prefix}/from_timestamp' for prefix in prefixes[1:]]
  for path in files.local_files(os.path.join(directory, 'meta', 'episodes')):
    with arrow.open_parquet(path) as file:
      yield from file.read(columns).to_pylist()


def _read_tasks(directory: str, is_v3: bool) -> Dict[int, bytes]:
  """Returns the texts of the tasks by their numbers."""
  path = os.path.join(
      directory, 'meta', 'tasks.parquet' if is_v3 else 'tasks.jsonl'
  )
  if not os.path.exists(path):
    return {}
  if not is_v3:
    return {line[TASK_INDEX]: line[TASK].encode() for line in _read_lines(path)}
  with arrow.open_parquet(path) as file:
    table = file.read()
  # The texts are the index of a pandas frame. The name of that column differs
  # between versions.
  [texts] = [
      field.name
      for field in table.schema
      if field.type in (pa.string(), pa.large_string())
  ]
  numbers = table[TASK_INDEX].to_pylist()
  return {
      number: text.encode()
      for number, text in zip(numbers, table[texts].to_pylist())
  }


def _read_lines(path: str) -> List[Dict[str, Any]]:
  with files.open_text(path) as f:
    return [json.loads(line) for line in f if line.strip()]
