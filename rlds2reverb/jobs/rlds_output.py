"""RLDS on disk as the output of a job: files of every task, in one data set.

The files that a task writes become those of the data set by a second name (a
hard link), or by a copy where the file system has no such links.
"""

import itertools
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow as tf
import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import files
from rlds2reverb.datasets import saving
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib
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

  def space(self, folder, left, total):
    # The files of the parts become those of the result.
    place = self.plan.output.place
    is_linked = not files.is_url(folder) and not files.is_url(place)
    return {folder: left} if is_linked else {folder: left, place: total}

  def is_finished(self, folder, receipts):
    """Returns whether there is a data set with the episodes of all receipts."""
    place = self.plan.output.place
    if len(receipts) < len(self.plan.tasks) or not files.exists(
        os.path.join(place, versions.INFO_FILE)
    ):
      return False
    if self.adds:
      return self._is_added() and not self.has_parts(folder)
    splits = tfds.builder_from_directory(place).info.splits
    # Repaired episodes may have been added later.
    return self.plan.output.split in splits and (
        splits[self.plan.output.split].num_examples
        >= sum(receipt.episodes for receipt in receipts.values())
    )

  def write(self, number, folder, episodes):
    written = _episodes_of(episodes)
    # TFDS writes no split without episodes.
    first = next(written, None)
    part = self.new_part(folder, number)
    opened = [sources_lib.open_source(each) for each in self.plan.sources]
    name, version = _identity_of(self.plan.output.place, opened)
    with whole.new_folder(part, [_PART_MARKER], replace=True) as path:
      shards = []
      num_bytes = 0
      if first is not None:
        writing.write_episodes(
            itertools.chain([first], written),
            path,
            name=name,
            version=version,
            description='A part.',
            features=_features_of(opened, episodes.read().element_spec),
            split=self.plan.output.split,
        )
        split = tfds.builder_from_directory(path).info.splits[
            self.plan.output.split
        ]
        shards = [
            [os.path.basename(file), count]
            for file, count in zip(split.filepaths, split.shard_lengths)
        ]
        num_bytes = split.num_bytes
      with open(os.path.join(path, _PART_MARKER), 'wb'):
        pass
    return outputs.Written({}, {'files': shards, 'bytes': num_bytes})

  def finish(self, folder, spec, receipts):
    parts = [
        (part, receipts[number].output)
        for number, part in enumerate(self.parts(folder))
    ]
    shards = [
        (os.path.join(part, name), count)
        for part, output in parts
        for name, count in output['files']
    ]
    num_bytes = sum(output['bytes'] for _, output in parts)
    texts = _texts_of(
        [sources_lib.open_source(each) for each in self.plan.sources]
    )
    if self.adds:
      if self._is_added():
        return  # An earlier start added them before it was interrupted.
      info = tfds.builder_from_directory(self.plan.output.place).info
      there = info.splits[self.plan.output.split]
      shards = [*zip(there.filepaths, there.shard_lengths), *shards]
      num_bytes += there.num_bytes
      texts['description'] = info.description
    elif shards:
      first = next(part for part, output in parts if output['files'])
      info = tfds.builder_from_directory(first).info
    else:
      raise ValueError('There are no valid episodes to write.')
    if self.plan.only is not None:
      texts['description'] += f'\n{self._mark}'
    with whole.new_folder(
        self.plan.output.place, [versions.INFO_FILE], replace=self.adds
    ) as path:
      template = tfds.core.ShardedFileTemplate(
          data_dir=path,
          dataset_name=info.name,
          split=self.plan.output.split,
          filetype_suffix='tfrecord',
      )
      for index, (source, _) in enumerate(shards):
        target = os.fspath(
            template.sharded_filepath(shard_index=index, num_shards=len(shards))
        )
        _link(source, target)
      tfds.folder_dataset.write_metadata(
          data_dir=path,
          features=info.features,
          split_infos=[
              tfds.core.SplitInfo(
                  name=self.plan.output.split,
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

  @property
  def _mark(self) -> str:
    """The sentence in the data set's description that says what was added."""
    return f'Repaired by job {self.plan.hash}.'

  def _is_added(self) -> bool:
    info = tfds.builder_from_directory(self.plan.output.place).info
    return self._mark in info.description.splitlines()

  def check_addition(self, spec) -> None:
    place = self.plan.output.place
    if not files.exists(os.path.join(place, versions.INFO_FILE)):
      raise FileExistsError(
          f'{place} is not empty, and no RLDS data set that repaired episodes'
          ' could be added to.'
      )
    splits = list(tfds.builder_from_directory(place).info.splits)
    if splits != [self.plan.output.split]:
      raise ValueError(
          f'Repaired episodes go into the split {self.plan.output.split!r} of'
          f' {place}, which has the splits {splits}.'
      )


def _episodes_of(episodes: Any) -> Iterator[Dict[str, Any]]:
  """Yields the valid episodes of a task, one by one, as NumPy arrays."""
  for block in episodes.blocks().prefetch(1).as_numpy_iterator():
    episodes.watch(block)
    for index, (begin, end) in enumerate(
        zip(block.row_splits, block.row_splits[1:])
    ):
      yield {
          **tf.nest.map_structure(
              lambda leaf, at=index: leaf[at], block.fields
          ),
          rlds.STEPS: frame_blocks.slice_frames(block.steps, begin, end),
      }


def _link(source: str, target: str) -> None:
  try:
    os.link(source, target)
  except OSError:
    with files.os_errors(source):
      tf.io.gfile.copy(source, target)


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
  return {
      name: '\n\n'.join(dict.fromkeys(text.strip() for text in each if text))
      for name, each in texts.items()
  }


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
  versions = {str(source.info.version) for source in opened}
  if not path.rstrip('/').endswith(f'/{version}') and len(versions) == 1:
    version = versions.pop()
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

  def keep(path, feature):
    found = [
        features.get(_source_field(source, path))
        for source, features in zip(opened, known)
    ]
    first = found[0]
    is_same = len({(repr(each), str(_names(each))) for each in found}) == 1
    if (
        isinstance(first, _NAMED)
        and is_same
        and (first.np_dtype, first.shape) == (feature.np_dtype, feature.shape)
    ):
      return first
    return feature

  features = saving.features_of(episode_spec)
  plain = {**features, rlds.STEPS: _plain(features[rlds.STEPS].feature)}
  kept = tree.map_structure_with_path(keep, plain)
  return {**kept, rlds.STEPS: tfds.features.Dataset(kept[rlds.STEPS])}


def _plain(features: Any) -> Any:
  """Returns features as dicts, to the leaves."""
  if isinstance(features, (tfds.features.FeaturesDict, dict)):
    return {key: _plain(feature) for key, feature in features.items()}
  return features


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


def _names(feature) -> Optional[List[str]]:
  is_label = isinstance(feature, tfds.features.ClassLabel)
  return feature.names if is_label else None
