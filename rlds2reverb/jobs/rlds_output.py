"""RLDS on disk as the output of a job: files of every task, in one data set.

The files that a task writes become those of the data set by a second name (a
hard link), or by a copy where the file system has no such links.
"""

import itertools
import os
from typing import Any, Dict, Iterator

import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import versions
from rlds2reverb.datasets import whole
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import kept_info
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.trajectories import frame_blocks

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
    name, version = kept_info.identity_of(self.plan.output.place, opened)
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
            features=kept_info.features_of(
                opened, episodes.read().element_spec
            ),
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

  def merges(self):
    """Returns none: the files of parts are not merged."""
    return []

  def finish(self, folder, spec, receipts):
    numbers = range(len(self.plan.tasks))
    parts = [
        (part, receipts[number].output)
        for number, part in zip(numbers, self.parts(folder, numbers))
    ]
    shards = [
        (os.path.join(part, name), count)
        for part, output in parts
        for name, count in output['files']
    ]
    num_bytes = sum(output['bytes'] for _, output in parts)
    texts = kept_info.texts_of(
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
