"""RLDS on disk as the output of a job: files of every task, in one data set.

The files that a task writes become those of the data set by a second name (a
hard link), or by a copy where the file system has no such links.
"""

import itertools
import os
import pathlib
from typing import Any, Dict, Iterator, Sequence, Tuple

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import saving
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.trajectories import frame_blocks

_MADE_BY = 'Episodes converted by rlds2reverb.'
# These features are stored like a plain tensor, and say more about it.
_NAMED = (tfds.features.ClassLabel, tfds.features.Text)
# A part without valid episodes has no files of TFDS.
_PART_MARKER = 'DONE'


class RldsOutput(outputs.FolderOutput):
  """Writes the valid episodes as a TFDS data set, some files for each task."""

  kind = 'RLDS data set'
  marker = versions.INFO_FILE
  part_marker = _PART_MARKER

  def write(self, number, episodes):
    written = _episodes_of(episodes)
    # TFDS writes no split without episodes.
    first = next(written, None)
    opened = self.plan.open()
    part = self.new_part(number)
    output: Dict[str, Any] = {'files': [], 'bytes': 0}
    with whole.new_folder(part, [_PART_MARKER], replace=True) as path:
      if first is not None:
        name, version = _identity_of(self.place, opened)
        writing.write_episodes(
            itertools.chain([first], written),
            path,
            name=name,
            version=version,
            description='A part.',
            features=_features_of(opened, episodes.read().element_spec),
            split=self.plan.output.split,
        )
        split = _info(path).splits[self.plan.output.split]
        names = map(os.path.basename, split.filepaths)
        shards = map(list, zip(names, split.shard_lengths))
        output = {'files': list(shards), 'bytes': split.num_bytes}
      pathlib.Path(path, _PART_MARKER).touch()
    return {}, output

  def join(self, receipts):
    split = self.plan.output.split
    texts = _texts_of(self.plan.open())
    info, shards, num_bytes = None, [], 0
    if self.adds:
      info = _info(self.place)
      if list(info.splits) != [split]:
        raise ValueError(
            f'Repaired episodes go into the split {split!r} of {self.place},'
            f' which has the splits {list(info.splits)}.'
        )
      there = info.splits[split]
      shards += zip(there.filepaths, there.shard_lengths)
      num_bytes += there.num_bytes
      texts['description'] = info.description
    if self.plan.only is not None:
      mark = f'Repaired by job {self.plan.hash}.'
      if mark in texts['description'].splitlines():
        return  # An earlier start added them before it was interrupted.
      texts['description'] += f'\n{mark}'
    for number, receipt in sorted(receipts.items()):
      num_bytes += receipt['output']['bytes']
      shards += [
          (os.path.join(self.job.part(number), name), count)
          for name, count in receipt['output']['files']
      ]
    if not shards:
      raise ValueError('There are no valid episodes to write.')
    info = info or _info(os.path.dirname(shards[0][0]))
    self._write(info, shards, num_bytes, texts)

  def _write(self, info, shards, num_bytes, texts) -> None:
    """Writes the data set of files that are there, with their lengths."""
    split = self.plan.output.split
    with whole.new_folder(
        self.place, [versions.INFO_FILE], replace=self.adds
    ) as path:
      template = tfds.core.ShardedFileTemplate(
          data_dir=path,
          dataset_name=info.name,
          split=split,
          filetype_suffix='tfrecord',
      )
      for index, (source, _) in enumerate(shards):
        target = template.sharded_filepath(
            shard_index=index, num_shards=len(shards)
        )
        files.link(source, target)
      tfds.folder_dataset.write_metadata(
          data_dir=path,
          features=info.features,
          split_infos=[
              tfds.core.SplitInfo(
                  name=split,
                  shard_lengths=[count for _, count in shards],
                  num_bytes=num_bytes,
                  filename_template=template,
              )
          ],
          filename_template=template,
          version=info.version,
          **texts,
          check_data=False,
      )


def _info(folder: str) -> tfds.core.DatasetInfo:
  return tfds.builder_from_directory(folder).info


def _episodes_of(episodes: Any) -> Iterator[Dict[str, Any]]:
  """Yields the valid episodes of a task, one by one, as NumPy arrays."""
  for block in episodes.blocks().prefetch(1).as_numpy_iterator():
    episodes.watch(block)
    splits = block.row_splits
    for index, (begin, end) in enumerate(zip(splits, splits[1:])):
      fields = tf.nest.map_structure(
          lambda leaf, at=index: leaf[at], block.fields
      )
      steps = frame_blocks.slice_frames(block.steps, begin, end)
      yield {**fields, rlds.STEPS: steps}


def _texts_of(opened: Sequence[opened_lib.OpenSource]) -> Dict[str, str]:
  """Returns the description, citation, homepage and license of data sets.

  The texts of several data sets are joined, each once.

  Args:
    opened: the data sets.

  Returns:
    Arguments of `tfds.folder_dataset.write_metadata`.
  """
  infos = [source.info for source in opened]
  texts = {
      'description': [*(info.description for info in infos), _MADE_BY],
      'citation': [info.citation for info in infos],
      'homepage': [info.homepage for info in infos],
      'license': [info.redistribution_info.license for info in infos],
  }
  join = lambda found: '\n\n'.join(dict.fromkeys(map(str.strip, found)))
  return {name: join(filter(None, found)) for name, found in texts.items()}


def _identity_of(
    path: str, opened: Sequence[opened_lib.OpenSource]
) -> Tuple[str, str]:
  """Returns the name and the version of the data set that is written.

  The version is that of the folder, if it is one, or else that of the data set
  that it is made of, if it is one.

  Args:
    path: the folder of the new data set.
    opened: the data sets.
  """
  name, version = writing.name_and_version(path)
  known = {str(source.info.version) for source in opened}
  if not path.rstrip('/').endswith(f'/{version}') and len(known) == 1:
    version = known.pop()
  return name, version


def _features_of(
    opened: Sequence[opened_lib.OpenSource], episode_spec: Dict[str, Any]
) -> Dict[str, Any]:
  """Returns the features of the data set that is written.

  Class labels and text keep their features if all data sets have the same,
  unless transforms may have changed the field.

  Args:
    opened: the data sets.
    episode_spec: the spec of an episode that is written.
  """
  known = [dict(saving.feature_leaves(source.features)) for source in opened]

  def kept(feature, *path):
    if isinstance(feature, tfds.features.Dataset):
      return tfds.features.Dataset(kept(feature.feature, *path))
    if isinstance(feature, (dict, tfds.features.FeaturesDict)):
      return {key: kept(part, *path, key) for key, part in feature.items()}
    found = [
        features.get(_source_field(source, path))
        for source, features in zip(opened, known)
    ]
    first = found[0]
    looks = {(repr(one), str(getattr(one, 'names', None))) for one in found}
    if len(looks) > 1 or not isinstance(first, _NAMED):
      return feature
    form = feature.np_dtype, feature.shape
    return first if (first.np_dtype, first.shape) == form else feature

  return kept(saving.features_of(episode_spec))


def _source_field(source, path) -> str:
  """Returns the field of a data set whose values a field has unchanged."""
  if source.transforms:
    return ''
  if source.mapping is not None and path[0] == rlds.STEPS:
    field = getattr(source.mapping, path[1], None)
    if not isinstance(field, str):
      return ''
    path = [rlds.STEPS, field, *path[2:]]
  return '/'.join(path)
