"""The folders of TFDS data sets, and the versions that they hold."""

import os

from absl import logging
import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity
from rlds2reverb.datasets import other_formats

# TFDS writes this file into the folder of every version of a data set.
INFO_FILE = 'dataset_info.json'
_HUGGINGFACE_FILE = 'state.json'


def find_folder(directory: str) -> str:
  """Returns the folder of a data set's version.

  Args:
    directory: that folder, or the one that holds the versions, of which the
      newest is taken; as `files.expand` returns it.

  Raises:
    FileNotFoundError: if it is neither.
  """
  names = files.names_in(directory)
  # HuggingFace has an INFO_FILE, too, but no format of episodes.
  if INFO_FILE in names and _HUGGINGFACE_FILE not in names:
    return directory
  versions = [
      name
      for name in names
      if tfds.core.Version.is_valid(name)
      and files.exists(os.path.join(directory, name, INFO_FILE))
  ]
  if not versions:
    raise FileNotFoundError(
        f'{directory} is not the folder of a data set: it has no'
        f' {INFO_FILE}, and no folder of a version such as 1.0.0 that has one.'
        f' It has {names}.{other_formats.hint(directory)}'
    )
  newest = max(versions, key=tfds.core.Version)
  # The log says which of several versions is read.
  log = logging.warning if len(versions) > 1 else logging.info
  log(
      'Reading version %s of %s, the newest of %s.', newest, directory, versions
  )
  return os.path.join(directory, newest)


def fingerprint(folder: str) -> str:
  """Returns a hash of what TFDS records about the data set in `folder`.

  TFDS records its name, version and splits, and the number of episodes in each
  file. Without a data set, it is the hash of nothing.
  """
  path = os.path.join(folder, INFO_FILE)
  if not files.exists(path):
    return identity.fingerprint()
  with files.open_text(path) as f:
    return identity.fingerprint(f.read())
