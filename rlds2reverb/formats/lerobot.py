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

from typing import AbstractSet, Any, Dict, NamedTuple, Optional, Sequence

import gin
import numpy as np
import pyarrow as pa
import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
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
_REWARD = 'next/reward'


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
    frame's task. Frames of videos are uint8 `[T, height, width, 3]`; each is
    within half a frame of its row's timestamp. Images in parquet stay encoded,
    for `decode_images`. Depth maps, in videos or TIFF images, are
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
  data = lerobot_files.open_data_set(name_or_directory)
  features = data.info['features']
  if cameras is not None:
    paths_lib.check_list('cameras', cameras)
    for camera in cameras:
      checks.check_known(data.directory, 'video', camera, data.videos)
  checks.check_choice('depth_unit', depth_unit, depth_maps.UNITS)
  columns_lib.check_left_out(data.directory, features, leave_out)
  if is_terminal is not None:
    checks.check_known(data.directory, 'feature', is_terminal, features)
  unread = {lerobot_files.EPISODE_INDEX, *leave_out}
  if cameras is not None:
    unread |= data.videos.keys() - set(cameras)
  parts = _parts(data, features.keys() - unread, modality)

  def read() -> python_episodes.Episodes:
    for index, rows in arrow.read_episodes(
        data.files, lerobot_files.EPISODE_INDEX
    ):
      length = data.lengths.get(index)
      if length != len(rows):
        raise ValueError(
            f'Episode {index} of {data.directory} has {len(rows)} frames, but'
            f' {length} in its metadata.'
        )
      frames = _Frames(data, index, rows, decode_videos, depth_unit)
      steps = {path: frames.part(part) for path, part in parts.items()}
      yield python_episodes.make_episode(
          columns_lib.nest(steps),
          index,
          is_terminal is not None and frames.feature(is_terminal),
      )

  return python_episodes.to_dataset(read, len(data.lengths))


def _parts(
    data: lerobot_files.LeRobotData, features: AbstractSet[str], modality: bool
) -> Dict[str, gr00t.Part]:
  """Returns the parts of features that are fields of a step, by their paths."""
  found = data.info['features']
  named = gr00t.read_parts(data.directory, found) if modality else {}
  named = {path: one for path, one in named.items() if one.feature in features}
  in_parts = {one.feature for one in named.values() if not one.is_task}
  parts = {
      name.replace('.', '/'): gr00t.Part(name)
      for name in found
      if name in features - in_parts
  }
  if data.tasks:
    parts[lerobot_files.TASK] = gr00t.Part(
        lerobot_files.TASK_INDEX, is_task=True
    )
  parts |= named
  tops = {path.split('/')[0] for path in parts}
  missing = [one for one in (rlds.OBSERVATION, rlds.ACTION) if one not in tops]
  if missing:
    raise ValueError(
        f'{data.directory} has no feature {" and no ".join(missing)}, but'
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

  def part(self, part: gr00t.Part) -> Any:
    """Returns the rows of a part of a feature, or the texts of its tasks."""
    if part.is_task:
      tasks, numbers = self.data.tasks, self.rows[part.feature].to_pylist()
      unknown = set(numbers) - tasks.keys()
      if unknown:
        raise ValueError(
            f'There is no task {min(unknown)}, but tasks {sorted(tasks)[:10]}.'
        )
      return np.array([tasks[number] for number in numbers], object)
    rows = self.feature(part.feature)
    return rows if part.columns is None else rows[:, part.columns]

  def feature(self, name: str) -> Any:
    """Returns the rows of a feature."""
    feature = self.data.info['features'][name]
    is_depth = depth_maps.is_depth(feature)
    if name not in self.data.videos:
      rows = arrow.to_array(self.rows[name], feature['shape'], name)
      is_tiff = is_depth and rows.dtype == object
      if is_tiff and all(map(depth_maps.is_tiff, rows)):
        units = (feature.get('info') or {}).get('depth_unit'), self.depth_unit
        rows = np.stack([depth_maps.decode_tiff(one, *units) for one in rows])
      return rows
    path, begin = self.data.videos[name][self.episode]
    times = begin + self.rows[_TIMESTAMP].to_numpy().astype(np.float64)
    codes = depth_maps.codes_of(feature) if is_depth else None
    if not self.decode_videos:
      return video_frames.to_references(path, times, codes)
    depths = codes and codes.depths(self.depth_unit)
    return video_frames.column(path, times, self.data.info['fps'], depths)
