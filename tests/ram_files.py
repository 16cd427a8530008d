"""Files in memory, at `ram://`: a file system that is not the local one.

TensorFlow has it built in. `etils.epath`, through which TFDS reads, has to be
told of it.
"""

from etils import epath
from etils.epath import backend

_LOCAL = 'ram:/'  # What pathlib makes of the beginning.


@epath.register_path_cls('ram://')
class RamPath(type(epath.Path('/'))):
  """A path that begins with `ram://`."""

  @property
  def _path_str(self):
    path = super()._path_str
    return f'ram://{path[len(_LOCAL):]}' if path.startswith(_LOCAL) else path

  @property
  def _backend(self):
    return backend.tf_backend
