"""Writing episodes to disk in the TFDS format, whole or not at all."""

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterable, Optional

import tensorflow_datasets as tfds

_MAX_EPISODES_PER_FILE = 1000


def write_episodes(
    episodes: Iterable[Dict[str, Any]],
    directory: str,
    *,
    name: str,
    description: str,
    features: Dict[str, Any],
    split: str = 'train',
    finish: Optional[Callable[[str], None]] = None,
) -> None:
  """Writes one split of a data set, beside `directory`, and moves it there.

  Until all is written there is nothing in `directory`, or what was there.

  Args:
    episodes: what TFDS can encode by `features`.
    directory: where the data set will be. What is there is removed.
    name: of the data set; made into one that TFDS allows.
    description: of the data set.
    features: the TFDS features of an episode.
    split: the name of the split.
    finish: called with the folder of the data set that is written, before it is
      moved to `directory`.

  Raises:
    ValueError: if there are no episodes: TFDS could not read such a split.
  """
  parent = os.path.dirname(directory)
  os.makedirs(parent, exist_ok=True)
  unfinished = tempfile.mkdtemp(prefix=os.path.basename(directory), dir=parent)
  try:
    info = tfds.core.DatasetInfo(
        builder=tfds.core.dataset_info.DatasetIdentity(
            name=_tfds_name(name),
            version=tfds.core.Version('1.0.0'),
            data_dir=unfinished,
            module_name=__name__,
        ),
        description=description,
        features=tfds.features.FeaturesDict(features),
    )
    writer = tfds.core.SequentialWriter(
        info, max_examples_per_shard=_MAX_EPISODES_PER_FILE
    )
    writer.initialize_splits([split])
    # It notes the splits anew at each call, so all episodes go in one.
    writer.add_examples({split: episodes})
    writer.close_all()
    if not info.splits[split].num_examples:
      raise ValueError(f'There are no episodes to write to {directory}.')
    if finish:
      finish(unfinished)
    os.chmod(unfinished, 0o755)
    _move(unfinished, directory)
  finally:
    shutil.rmtree(unfinished, ignore_errors=True)


def _tfds_name(name: str) -> str:
  return tfds.core.naming.camelcase_to_snakecase(
      name.replace('-', '_').replace('/', '_')
  )


def _move(unfinished: str, directory: str) -> None:
  if os.path.exists(directory):
    # A directory that is not empty cannot be replaced in one step.
    replaced = tempfile.mkdtemp(
        prefix=os.path.basename(directory), dir=os.path.dirname(directory)
    )
    os.replace(directory, replaced)
    os.replace(unfinished, directory)
    shutil.rmtree(replaced, ignore_errors=True)
  else:
    os.replace(unfinished, directory)
