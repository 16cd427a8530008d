"""An index of RLDS data: the small columns, and the places of images."""

import importlib
import os
from typing import Optional, Union

from rlds2reverb.store import rows as rows_lib

PathLike = Union[str, os.PathLike]


def expand_folder(folder: PathLike) -> str:
  """Returns the absolute path of the folder of an index.

  Raises:
    ValueError: if it is a URL.
  """
  folder = os.fspath(folder)
  if '://' in folder:
    raise ValueError(f'An index must be on the local disk, but is at {folder}.')
  return os.path.abspath(os.path.expanduser(folder))


def need_tensorflow(what: str) -> None:
  """Raises a ModuleNotFoundError that says what to do without TensorFlow.

  Args:
    what: what needs it, the subject of the error.
  """
  try:
    importlib.import_module('tensorflow')
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'{what} needs the full environment, with TensorFlow: {e.name} is not'
        ' installed here. `pip install .` in a clone makes it. Make the same'
        ' call there once; then it works here.',
        name=e.name,
    ) from e


class Index(rows_lib.RowStore):
  """The steps of a data set, for random access.

  It is made by `build_index`, and reads without TensorFlow. It pickles as its
  paths, and may be read by any number of threads and processes, whether they
  are forked or spawned.

  Attributes:
    lengths: int64 `[E]`: how many rows each episode has.
  """

  def __init__(
      self,
      folder: PathLike,
      data_dir: Optional[PathLike] = None,
      check: bool = True,
  ):
    """Opens an index.

    Args:
      folder: the folder of the index.
      data_dir: the folder of the data set, if it has moved since.
      check: whether all bytes of the index are compared with their checksums.

    Raises:
      FileNotFoundError: if there is no index, or a file of the data set is not
        there.
      OSError: if the index is damaged, or does not fit the data.
    """
    opened = rows_lib.open_rows(
        expand_folder(folder),
        rows_lib.INDEX,
        data_dir=os.fspath(data_dir) if data_dir else None,
        blocks=None if check else 0,
    )
    super().__init__(**vars(opened))
    self.lengths = self.arrays['lengths']

  def __reduce__(self):
    data_dir = self.files and self.files.folder
    return type(self), (self.folder, data_dir, False)
