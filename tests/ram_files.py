"""Registers TensorFlow's in-memory file system `ram://` with `etils.epath`.

Tests use it as a remote file system. TensorFlow supports it by default, but
TFDS reads through `etils.epath`, which does not.
"""

from etils import epath
from etils.epath import backend

_LOCAL = 'ram:/'  # The prefix after pathlib removed a slash.


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
