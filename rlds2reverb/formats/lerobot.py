"""Data sets of LeRobot: parquet files of frames, and MP4 videos beside them.

    meta/info.json     the version, the features, frames a second, the paths
         tasks         .jsonl in v2, .parquet in v3
         episodes      .jsonl in v2; parquet files in v3, which tell the files
                       of each episode, and when it begins in its videos
    data/chunk-000/    parquet; in v2 a file an episode, in v3 several in a file
    videos/            MP4; likewise, for each camera

These are versions v2.0, v2.1 and v3.0 of github.com/huggingface/lerobot, as
LeRobot 0.3.3, 0.4.4 and 0.6.1 write them. They are read without LeRobot and
torch.
"""

import json
import os
from typing import (
    Any,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import gin
import numpy as np
import pyarrow as pa
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import other_formats
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow_columns
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import depth_maps
from rlds2reverb.formats import gr00t
from rlds2reverb.formats import parquet_files
from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import video_frames

_INFO_FILE = os.path.join('meta', 'info.json')
_VIDEO = 'video'
_EPISODE_INDEX = 'episode_index'
_TASK_INDEX = 'task_index'
_TASK = 'task'
_TIMESTAMP = 'timestamp'
_REWARD = 'next.reward'


class _Episodes(NamedTuple):
  """Where the episodes are.

  Attributes:
    files: the paths of the parquet files, in the order of their episodes.
    lengths: by the index of an episode, how many frames it has.
    videos: by feature, by the index of an episode, the path of its video, and
      the second at which it begins there.
  """

  files: List[str]
  lengths: Dict[int, int]
  videos: Dict[str, Dict[int, Tuple[str, float]]]


@gin.configurable(module='rlds2reverb')
def load_lerobot(
    name_or_directory: files.PathLike,
    *,
    is_terminal: Optional[str] = None,
    cameras: Optional[Sequence[str]] = None,
    decode_videos: bool = True,
    depth_unit: str = depth_maps.MILLIMETRES,
    leave_out: Sequence[str] = (),
    modality: bool = False,
) -> tf.data.Dataset:
  """Reads the episodes of a LeRobot data set, v2.0, v2.1 or v3.0.

  LeRobot stores no observation after the last action, and does not tell
  terminal from truncated. So, as with `from_flat_arrays`, an episode of `T`
  frames has `T` steps, and the action of the last one does not count; where
  `is_terminal` says that it is terminal, it gets a step of zeros.

  Args:
    name_or_directory: the directory of a data set, on the local disk; or the
      name of one that LeRobot has downloaded, such as `lerobot/pusht`. A name
      is looked up in `$HF_LEROBOT_HOME`, or else in
      `~/.cache/huggingface/lerobot`.
    is_terminal: the feature that says, in the last frame of an episode, whether
      it ends in a terminal state: `next.success`, for example. By default all
      episodes are truncated.
    cameras: the features with videos that are read; all by default. Other
      cameras are not decoded.
    decode_videos: whether the frames of videos are decoded. All frames of an
      episode are then in memory. Otherwise a frame is a reference, a string
      such as `/data/file-000.mp4#t=1.5`, for `transforms.decode_video_frames`.
    depth_unit: the unit of depth maps, `"mm"` or `"m"`.
    leave_out: other features that are not read.
    modality: whether the parts of features that GR00T's `meta/modality.json`
      names are fields of their own, in the place of these features.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the files, with stacked steps. Names with a dot are nested:
    `observation.images.top` becomes `observation/images/top`. `next.reward` is
    `reward`, which is float32 zeros if there is none. `task` is the text of the
    frame's task. Frames of videos are uint8 `[T, height, width, 3]`, those that
    are within half a frame of the row's timestamp. Images in parquet stay
    encoded, for `decode_images`. Depth maps, in videos or TIFF images, are
    `[T, height, width, 1]`, as LeRobot reads them: uint16 millimetres, or
    float32 metres. Lists of dicts, as of `language_events`, are JSON text.
    Other features, such as `next.done` and `timestamp`, are step fields; all
    have the dtypes of their columns. With `modality`, `state.arm` is
    `observation/state/arm`, `action.arm` is `action/arm`, `video.top` is
    `observation/video/top`, and `annotation.human.task` is the text of a task
    in `annotation/human/task`.

  Raises:
    ValueError: if there is no such data set, if it is of another version, if it
      has no such feature, if a file is not there or is damaged, or if the
      pixels of a video are neither an image nor depth.
    ImportError: if there are videos to decode, but PyAV is not installed.
    InvalidArgumentError: while iterating, if an episode has not as many frames
      as its metadata says, or if a video has no frame at a timestamp.
  """
  directory = _find_directory(name_or_directory)
  with files.open_text(os.path.join(directory, _INFO_FILE)) as f:
    info = json.load(f)
  version = str(info.get('codebase_version'))
  features = info['features']
  videos = [name for name in features if features[name]['dtype'] == _VIDEO]
  if cameras is not None:
    paths_lib.check_list('cameras', cameras)
    for camera in cameras:
      _check_feature(directory, camera, videos, 'feature with videos')
  checks.check_choice('depth_unit', depth_unit, depth_maps.UNITS)
  paths_lib.check_list('leave_out', leave_out)
  for name in leave_out:
    _check_feature(directory, name, features, 'feature')
  if is_terminal is not None:
    _check_feature(directory, is_terminal, features, 'feature')
  if version.startswith('v3.'):
    episodes = _episodes_of_v3(directory, info, videos)
  elif version.startswith('v2.'):
    episodes = _episodes_of_v2(directory, info, videos)
  else:
    raise ValueError(
        f'{directory} is a LeRobot data set of version {version}, but v2.0,'
        ' v2.1 and v3.0 are read. LeRobot has scripts that convert others.'
    )
  tasks = _read_tasks(directory, version)
  kept = [
      name
      for name in features
      if name != _EPISODE_INDEX
      and name not in leave_out
      and not (name in videos and cameras is not None and name not in cameras)
  ]
  codes = {
      name: depth_maps.codes_of(features[name])
      for name in videos
      if depth_maps.is_depth(features[name])
  }
  parts = gr00t.read_parts(directory, features) if modality else {}
  parts = {path: part for path, part in parts.items() if part.feature in kept}
  in_parts = {part.feature for part in parts.values() if not part.is_task}
  named = [name for name in kept if name not in in_parts]
  named += [_TASK] if tasks else []
  names = _names(
      directory,
      {
          **{name.replace('.', '/'): name for name in named},
          **{path: path for path in parts},
      },
  )

  def read() -> python_episodes.Episodes:
    for index, frames in parquet_files.read_episodes(
        episodes.files, _EPISODE_INDEX
    ):
      length = episodes.lengths.get(index)
      if length != len(frames):
        raise ValueError(
            f'Episode {index} of {directory} has {len(frames)} frames, but'
            f' {length} in its metadata.'
        )

      def column(name, index=index, frames=frames):
        if name in parts:
          part = parts[name]
          if part.is_task:
            return _texts(tasks, frames[part.feature])
          rows = column(part.feature)
          return rows if part.columns is None else rows[:, part.columns]
        if name == _TASK and tasks:
          return _texts(tasks, frames[_TASK_INDEX])
        if name not in videos:
          return _read_column(frames[name], features[name], name, depth_unit)
        path, begin = episodes.videos[name][index]
        times = begin + frames[_TIMESTAMP].to_numpy().astype(np.float64)
        if not decode_videos:
          return video_frames.to_references(path, times, codes.get(name))
        depth = None
        if name in codes:
          depth = video_frames.DepthVideo(codes[name], depth_unit)
        return video_frames.VideoColumn(path, times, info['fps'], depth)

      steps = tf.nest.map_structure(column, names)
      steps.setdefault(rlds.REWARD, np.zeros(length, np.float32))
      ends = is_terminal is not None and bool(
          np.ravel(column(is_terminal)[-1:]).any()
      )
      yield python_episodes.PythonEpisode(steps, length + ends, ends, index)

  return python_episodes.to_dataset(read, len(episodes.lengths))


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
  raise ValueError(message + other_formats.hint(path))


def _check_feature(directory, name, names, what) -> None:
  if name not in names:
    raise ValueError(
        f'{directory} has no {what} {name!r}.'
        f'{checks.did_you_mean(name, names)} It has {sorted(names)}.'
    )


def _read_column(column, feature, name, depth_unit) -> np.ndarray:
  """Returns the rows of a feature that is no video."""
  if arrow_columns.is_json(column.type):
    return arrow_columns.to_json(column)
  rows = arrow_columns.to_array(column, feature['shape'], name)
  is_depth = rows.dtype == object and depth_maps.is_depth(feature)
  if is_depth and all(map(depth_maps.is_tiff, rows)):
    stored_unit = (feature.get('info') or {}).get('depth_unit')
    return np.stack(
        [depth_maps.decode_tiff(row, stored_unit, depth_unit) for row in rows]
    )
  return rows


def _texts(tasks: Dict[int, bytes], numbers: pa.ChunkedArray) -> np.ndarray:
  """Returns the texts of the tasks of some frames."""
  found = [tasks.get(number) for number in numbers.to_pylist()]
  if None in found:
    number = numbers[found.index(None)].as_py()
    raise ValueError(
        f'There is no task {number}, but tasks {sorted(tasks)[:10]}.'
    )
  return np.array(found, object)


def _names(directory: str, by_path: Dict[str, str]) -> Dict[str, Any]:
  """Returns the fields of a step; every leaf is the name of its feature."""
  found = {
      top: tf.nest.map_structure(by_path.get, columns_lib.below(top, by_path))
      for top in dict.fromkeys(path.split('/')[0] for path in by_path)
  }
  missing = [
      name for name in (rlds.OBSERVATION, rlds.ACTION) if name not in found
  ]
  if missing:
    raise ValueError(
        f'{directory} has no feature {" and no ".join(missing)}, but'
        f' {sorted(by_path.values())}.'
    )
  if _REWARD in by_path.values():
    found[rlds.REWARD] = found['next'].pop('reward')
  return {name: nest for name, nest in found.items() if nest}


def _episodes_of_v2(directory, info, videos) -> _Episodes:
  """Finds the episodes of v2, which have a file each."""
  lengths = {
      line[_EPISODE_INDEX]: line['length']
      for line in _read_lines(os.path.join(directory, 'meta', 'episodes.jsonl'))
  }

  def path(template, index, **names):
    chunk = index // info['chunks_size']
    names = {_EPISODE_INDEX: index, 'episode_chunk': chunk, **names}
    return os.path.join(directory, template.format(**names))

  return _Episodes(
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


def _episodes_of_v3(directory, info, videos) -> _Episodes:
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
  columns = [_EPISODE_INDEX, 'length']
  columns += [
      f'{prefix}/{name}'
      for prefix in prefixes
      for name in ('chunk_index', 'file_index')
  ]
  columns += [f'{prefix}/from_timestamp' for prefix in prefixes[1:]]
  for path in paths:
    with parquet_files.open_file(path) as file:
      for row in file.read(columns).to_pylist():
        index = row[_EPISODE_INDEX]
        lengths[index] = row['length']
        in_data[index] = file_of(info['data_path'], row, 'data')
        for video, prefix in zip(videos, prefixes[1:]):
          in_videos[video][index] = (
              file_of(info['video_path'], row, prefix, video_key=video),
              row[f'{prefix}/from_timestamp'],
          )
  in_order = dict.fromkeys(in_data[index] for index in sorted(in_data))
  return _Episodes(list(in_order), lengths, in_videos)


def _read_tasks(directory: str, version: str) -> Dict[int, bytes]:
  """Returns the texts of the tasks by their numbers."""
  if version.startswith('v2.'):
    path = os.path.join(directory, 'meta', 'tasks.jsonl')
    if not os.path.exists(path):
      return {}
    return {
        line[_TASK_INDEX]: line[_TASK].encode() for line in _read_lines(path)
    }
  path = os.path.join(directory, 'meta', 'tasks.parquet')
  if not os.path.exists(path):
    return {}
  with parquet_files.open_file(path) as file:
    table = file.read()
  # The texts are the index of a pandas frame, whose name differs.
  (texts,) = [
      name
      for name in table.column_names
      if pa.types.is_string(table.schema.field(name).type)
      or pa.types.is_large_string(table.schema.field(name).type)
  ]
  return {
      number: text.encode()
      for number, text in zip(
          table[_TASK_INDEX].to_pylist(), table[texts].to_pylist()
      )
  }


def _read_lines(path: str) -> List[Dict[str, Any]]:
  with files.open_text(path) as f:
    return [json.loads(line) for line in f if line.strip()]
