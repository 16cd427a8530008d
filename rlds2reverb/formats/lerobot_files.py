"""The files of LeRobot data sets v2.0, v2.1 and v3.0, with their episodes.

`lerobot` has a drawing of them.
"""

import json
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

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
  read_meta = _read_v3 if is_v3 else _read_v2
  rows, tasks = read_meta(os.path.join(directory, 'meta'), videos)
  rows.sort(key=lambda row: row[EPISODE_INDEX])

  def file_of(row: Dict[str, Any], template: str, prefix: str, **names) -> str:
    """Returns the path of the file that has an episode, alone or not."""
    index = row[EPISODE_INDEX]
    if is_v3:
      for name in 'chunk_index', 'file_index':
        names[name] = row[f'{prefix}/{name}']
    else:
      names['episode_chunk'] = index // info['chunks_size']
    path = info[template].format(episode_index=index, **names)
    return os.path.join(directory, path)

  def video_of(row: Dict[str, Any], video: str) -> Tuple[str, float]:
    prefix = f'videos/{video}'
    path = file_of(row, 'video_path', prefix, video_key=video)
    return path, row.get(f'{prefix}/from_timestamp', 0.0)

  of_each = lambda value_of: {row[EPISODE_INDEX]: value_of(row) for row in rows}
  return LeRobotData(
      directory,
      info,
      [*dict.fromkeys(file_of(row, 'data_path', 'data') for row in rows)],
      of_each(lambda row: row['length']),
      {
          video: of_each(lambda row, video=video: video_of(row, video))
          for video in videos
      },
      {number: text.encode() for number, text in tasks},
  )


# The rows of the episodes, and the numbers and texts of the tasks.
_Meta = Tuple[List[Dict[str, Any]], Iterable[Tuple[int, str]]]


def _read_v2(folder: str, unused_videos: List[str]) -> _Meta:
  def read_lines(name):
    with files.open_text(os.path.join(folder, name)) as f:
      return [json.loads(line) for line in f if line.strip()]

  has_tasks = os.path.exists(os.path.join(folder, 'tasks.jsonl'))
  tasks = read_lines('tasks.jsonl') if has_tasks else []
  return read_lines('episodes.jsonl'), [
      (line[TASK_INDEX], line[TASK]) for line in tasks
  ]


def _read_v3(folder: str, videos: List[str]) -> _Meta:
  prefixes = [f'videos/{video}' for video in videos]
  columns = [EPISODE_INDEX, 'length']
  for prefix in ('data', *prefixes):
    columns += [f'{prefix}/chunk_index', f'{prefix}/file_index']
  columns += [f'{prefix}/from_timestamp' for prefix in prefixes]
  episodes = []
  for path in files.local_files(os.path.join(folder, 'episodes')):
    with arrow.open_parquet(path) as file:
      episodes += file.read(columns).to_pylist()
  path = os.path.join(folder, 'tasks.parquet')
  if not os.path.exists(path):
    return episodes, ()
  table = arrow.read_table(path)
  # The texts are the index of a pandas frame. The name of that column differs
  # between versions.
  types = pa.string(), pa.large_string()
  [texts] = [field.name for field in table.schema if field.type in types]
  return episodes, zip(*(table[k].to_pylist() for k in (TASK_INDEX, texts)))
