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

from collections.abc import Sequence
from typing import Any, NamedTuple

import gin
import numpy as np
import pyarrow as pa
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import errors
from rlds2reverb.episodes import paths as paths_lib
from rlds2reverb.episodes import rlds
from rlds2reverb.formats import arrow
from rlds2reverb.formats import columns as columns_lib
from rlds2reverb.formats import depth_maps
from rlds2reverb.formats import gr00t
from rlds2reverb.formats import lerobot_files
from rlds2reverb.formats import python_episodes
from rlds2reverb.formats import video_frames

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
    depth_unit: str = depth_maps.MILLIMETRES,
    leave_out: Sequence[str] = (),
    modality: bool = False,
    episodes: Sequence[int] | None = None,
    frames_by: str = video_frames.EXACT_TIME,
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
      names are fields of their own, in the place of these features. Then only
      the cameras are read that it names, or that `cameras` names.
    episodes: the indices of the episodes that are read; all by default. Only
      their files have to be there, besides those in `meta`.
    frames_by: how the frame of a row is found in a video. `"exact_time"`: the
      nearest frame, which must be within half a frame of the row's timestamp.
      `"nearest_time"`: the nearest frame, however far. `"index"`: row `n` of an
      episode has its frame `n`, whatever its timestamp. GR00T's own readers do
      one of the last two, as some of its data begins at another time than its
      videos. These two need `decode_videos`.

  Returns:
    A data set of episodes, `{'episode_id': int64 [], 'steps': {...}}`, in the
    order of the files, with stacked steps. Names with a dot are nested:
    `observation.images.top` becomes `observation/images/top`. `next.reward` is
    `reward`, which is float32 zeros if there is none. `task` is the text of the
    frame's task. Frames of videos are uint8 `[T, height, width, 3]`. Images in
    parquet stay encoded, for `decode_images`. Depth maps, in videos or TIFF
    images, are `[T, height, width, 1]`, as LeRobot reads them: uint16
    millimetres, or float32 metres. Lists of dicts, as of `language_events`, are
    JSON text. Other features, such as `next.done` and `timestamp`, are step
    fields; all have the dtypes of their columns. With `modality`, `state.arm`
    is `observation/state/arm`, `action.arm` is `action/arm`, `video.top` is
    `observation/video/top`, and `annotation.human.task` is the text of a task
    in `annotation/human/task`.

  Raises:
    ValueError: if there is no such data set, feature or episode, if it is of
      another version, or if its metadata is damaged or incomplete. The message
      names the file and the key.
    OSError: if a file of metadata is not there.
    ImportError: if there are videos to decode, but PyAV is not installed.
    InvalidArgumentError: while iterating, if a file of an episode is missing or
      damaged, if an episode has not as many frames as its metadata says, if its
      frames are not in the order of their indices and timestamps, if the pixels
      of a video are neither an image nor depth, or if a video has no frame at a
      timestamp. The episodes after it can still be read.
  """
  info = lerobot_files.read_info(name_or_directory)
  features, directory = info.features, info.directory
  if cameras is not None:
    paths_lib.check_list('cameras', cameras)
    for camera in cameras:
      checks.check_known(directory, 'video', camera, info.videos)
  checks.check_choice('depth_unit', depth_unit, depth_maps.UNITS)
  checks.check_choice('frames_by', frames_by, video_frames.WAYS)
  if not decode_videos and frames_by != video_frames.EXACT_TIME:
    raise ValueError(
        f'frames_by={frames_by!r} needs decode_videos, as references to frames'
        ' have exact times.'
    )
  columns_lib.check_left_out(directory, features, leave_out)
  if is_terminal is not None:
    checks.check_known(directory, 'feature', is_terminal, features)
  unread = {lerobot_files.EPISODE_INDEX, *leave_out}
  named = gr00t.read_parts(directory, features) if modality else {}
  wanted = cameras
  if modality and cameras is None:
    wanted = [part.feature for part in named.values()]
  if wanted is not None:
    unread |= set(info.videos) - set(wanted)
  data = lerobot_files.open_data_set(
      info,
      [video for video in info.videos if video not in unread],
      episodes,
      lerobot_files.TASK_INDEX not in leave_out,
  )
  parts = _parts(data, features.keys() - unread, named)
  used = {part.feature for part in parts.values()}
  if is_terminal is not None:
    used.add(is_terminal)

  def read_rows(index: int, rows: pa.Table) -> python_episodes.PythonEpisode:
    if data.lengths[index] != len(rows):
      raise ValueError(
          f'Episode {index} of {directory} has {len(rows)} frames, but'
          f' {data.lengths[index]} in its metadata.'
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
      for index, rows in arrow.read_episodes(
          [path], lerobot_files.EPISODE_INDEX
      ):
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
  """Raises a ValueError if the frames of an episode are not in their order."""
  for name in _FRAME_INDEX, _TIMESTAMP:
    if name not in rows.column_names:
      continue
    values = rows[name].to_numpy().ravel()
    decreasing = np.flatnonzero(np.diff(values) < 0)
    if decreasing.size:
      row = int(decreasing[0]) + 1
      raise ValueError(
          f'Frame {row} of episode {episode} of {directory} has the {name}'
          f' {values[row]}, but the frame before has {values[row - 1]}. The'
          ' rows of an episode must be in the order of time.'
      )


def _check_columns(
    path: str,
    rows: pa.Table,
    features: set[str],
    data: lerobot_files.LeRobotData,
) -> None:
  """Raises a ValueError if a parquet file lacks the columns of features."""
  needed = {name for name in features if name not in data.videos}
  if data.videos:
    needed.add(_TIMESTAMP)
  if len(data.tasks) == 1:  # All frames have it.
    needed.discard(lerobot_files.TASK_INDEX)
  missing = sorted(needed - set(rows.column_names))
  if missing:
    raise ValueError(
        f'{path} has no column {" and no ".join(missing)}, but'
        f' {sorted(rows.column_names)}. Leave out features that'
        f' {data.info.path} lists without need.'
    )


def _parts(
    data: lerobot_files.LeRobotData,
    features: set[str],
    named: dict[str, gr00t.Part],
) -> dict[str, gr00t.Part]:
  """Returns the parts of features that are fields of a step, by their paths."""
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
    parts[lerobot_files.TASK] = gr00t.Part(
        lerobot_files.TASK_INDEX, is_task=True
    )
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

  data: lerobot_files.LeRobotData
  episode: int
  rows: pa.Table
  decode_videos: bool
  depth_unit: str
  frames_by: str

  def part(self, part: gr00t.Part) -> Any:
    """Returns the rows of a part of a feature, or the texts of its tasks."""
    if part.is_task:
      tasks = self.data.tasks
      if part.feature in self.rows.column_names:
        numbers = self.rows[part.feature].to_pylist()
      else:
        numbers = [*tasks] * len(self.rows)
      unknown = set(numbers) - tasks.keys()
      if unknown:
        raise ValueError(
            f'There is no task {list(unknown)[0]}, but tasks'
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
    assert fps is not None  # open_data_set requires it for videos.
    times = arrow.to_array(self.rows[_TIMESTAMP], None, _TIMESTAMP)
    if self.frames_by == video_frames.INDEX:
      times = np.arange(len(self.rows)) / fps
    times = begin + np.ravel(times).astype(np.float64)
    codes = depth_maps.codes_of(feature) if is_depth else None
    if not self.decode_videos:
      return video_frames.to_references(path, times, codes)
    depths = codes and codes.depths(self.depth_unit)
    return video_frames.column(path, times, fps, depths, self.frames_by)
