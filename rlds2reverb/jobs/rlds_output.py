"""RLDS data sets as outputs of jobs.

The record files of a task become files of the data set as hard links, or as
copies where the file system has no links.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import os
import pathlib
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import features as features_lib
from rlds2reverb.datasets import files
from rlds2reverb.datasets import loading
from rlds2reverb.datasets import saving
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib

_CREDIT = 'Episodes converted by rlds2reverb.'
# Features that add metadata to a plain tensor.
_NAMED_FEATURES = (tfds.features.ClassLabel, tfds.features.Text)
# A part without valid episodes has no files of TFDS.
_PART_MARKER = 'DONE'


class RldsOutput(outputs.FolderOutput):
  """A TFDS data set of the valid episodes. Each task writes its own files."""

  kind = 'RLDS data set'
  marker = loading.INFO_FILE
  part_marker = _PART_MARKER

  def write(self, number, episodes):
    arrays = _iterate(episodes)
    # TFDS writes no split without episodes.
    first = next(arrays, None)
    output: dict[str, Any] = {'files': [], 'bytes': 0}
    with files.new_folder(
        self.prepare_part(number), [_PART_MARKER], replace=True
    ) as path:
      if first is not None:
        opened = self.plan.open()
        name, version = saving.name_and_version(self.place)
        input_versions = {str(source.info.version) for source in opened}
        # If the folder is not named as a version, keeps the inputs' version.
        is_versioned = self.place.rstrip('/').endswith(f'/{version}')
        if not is_versioned and len(input_versions) == 1:
          version = input_versions.pop()
        saving.write_episodes(
            itertools.chain([first], arrays),
            path,
            name=name,
            version=version,
            description='A part.',
            features=_make_features(opened, episodes.read().element_spec),
            split=self.plan.output.split,
            file_format=self.plan.output.file_format,
        )
        split = _read_info(path).splits[self.plan.output.split]
        names = map(os.path.basename, split.filepaths)
        shards = map(list, zip(names, split.shard_lengths))
        output = {'files': list(shards), 'bytes': split.num_bytes}
      pathlib.Path(path, _PART_MARKER).touch()
    return {}, output

  def join(self, receipts):
    split = self.plan.output.split
    texts = _join_texts(self.plan.open())
    info, shards, num_bytes = None, [], 0
    if self.appends:
      info = _read_info(self.place)
      self._check_appendable(info)
      shards += zip(
          info.splits[split].filepaths, info.splits[split].shard_lengths
      )
      num_bytes += info.splits[split].num_bytes
      texts['description'] = info.description
    if self.plan.only_listed_in is not None:
      mark = f'Repaired by job {self.plan.hash}.'
      if mark in texts['description'].splitlines():
        return  # Added before an interruption.
      texts['description'] += f'\n{mark}'
    for number, receipt in sorted(receipts.items()):
      num_bytes += receipt['output']['bytes']
      shards += [
          (os.path.join(self.job.part(number), name), count)
          for name, count in receipt['output']['files']
      ]
    if not shards:
      raise ValueError('There are no valid episodes to write.')
    info = info or _read_info(os.path.dirname(shards[0][0]))
    self._link_files(info, shards, num_bytes, texts)

  def _check_appendable(self, info) -> None:
    """Raises a ValueError if files of this job do not fit a data set."""
    split, file_format = self.plan.output.split, self.plan.output.file_format
    if list(info.splits) != [split]:
      raise ValueError(
          f'Repaired episodes go into the split {split!r} of {self.place},'
          f' which has the splits {list(info.splits)}.'
      )
    if info.file_format and info.file_format.value != file_format:
      raise ValueError(
          f'The files of {self.place} have the format'
          f' {info.file_format.value}, but repaired episodes are written as'
          f' {file_format}. Run the job with'
          f' --rlds_file_format={info.file_format.value}.'
      )

  def _link_files(self, info, shards, num_bytes, texts) -> None:
    """Writes the data set of existing files with given lengths."""
    split = self.plan.output.split
    with files.new_folder(
        self.place, [loading.INFO_FILE], replace=self.appends
    ) as path:
      template = tfds.core.ShardedFileTemplate(
          data_dir=path,
          dataset_name=info.name,
          split=split,
          filetype_suffix=self.plan.output.file_format,
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


def _read_info(folder: str) -> tfds.core.DatasetInfo:
  return tfds.builder_from_directory(folder).info


def _iterate(episodes: Any) -> Iterator[dict[str, Any]]:
  """Yields the valid episodes of a task as NumPy arrays."""
  for block in episodes.blocks().prefetch(1).as_numpy_iterator():
    episodes.watch(block)
    splits = block.row_splits
    for index, (begin, end) in enumerate(zip(splits, splits[1:])):
      fields, steps = (
          tf.nest.map_structure(lambda leaf, rows=rows: leaf[rows], nest)
          for nest, rows in (
              (block.fields, index),
              (block.steps, slice(begin, end)),
          )
      )
      yield {**fields, rlds.STEPS: steps}


def _join_texts(opened: Sequence[sources_lib.OpenSource]) -> dict[str, str]:
  """Returns the description, citation, homepage and license of data sets.

  Distinct texts of several data sets are joined.

  Args:
    opened: the data sets.

  Returns:
    Arguments of `tfds.folder_dataset.write_metadata`.
  """
  infos = [source.info for source in opened]
  texts = {
      'description': [*(info.description for info in infos), _CREDIT],
      'citation': [info.citation for info in infos],
      'homepage': [info.homepage for info in infos],
      'license': [info.redistribution_info.license for info in infos],
  }
  return {
      name: '\n\n'.join(dict.fromkeys(map(str.strip, filter(None, parts))))
      for name, parts in texts.items()
  }


def _make_features(
    opened: Sequence[sources_lib.OpenSource], episode_spec: dict[str, Any]
) -> dict[str, Any]:
  """Returns the features of the new data set.

  Class labels and text keep their features if all inputs have the same ones,
  unless transforms may have changed the field.

  Args:
    opened: the input data sets.
    episode_spec: the spec of a written episode.
  """
  inputs = [
      dict(features_lib.feature_leaves(source.features)) for source in opened
  ]

  def restore(feature, *path):
    if isinstance(feature, tfds.features.Dataset):
      return tfds.features.Dataset(restore(feature.feature, *path))
    if isinstance(feature, (dict, tfds.features.FeaturesDict)):
      return {key: restore(part, *path, key) for key, part in feature.items()}
    originals = [
        features.get(_find_source_field(source, path))
        for source, features in zip(opened, inputs)
    ]
    first = originals[0]
    distinct = {(repr(f), str(getattr(f, 'names', None))) for f in originals}
    if len(distinct) > 1 or not isinstance(first, _NAMED_FEATURES):
      return feature
    has_same_type = (first.np_dtype, first.shape) == (
        feature.np_dtype,
        feature.shape,
    )
    return first if has_same_type else feature

  return restore(features_lib.features_from_spec(episode_spec))


def _find_source_field(source, path) -> str:
  """Returns the input field that a field copies, or ''."""
  if source.transforms:
    return ''
  if source.mapping is not None and path[0] == rlds.STEPS:
    field = getattr(source.mapping, path[1], None)
    if not isinstance(field, str):
      return ''
    path = [rlds.STEPS, field, *path[2:]]
  return '/'.join(path)
