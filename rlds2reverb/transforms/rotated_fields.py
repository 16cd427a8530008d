"""The transform that converts a rotation in a field."""

import dataclasses

import gin

from rlds2reverb.episodes import paths
from rlds2reverb.transforms import base
from rlds2reverb.transforms import rotations
from rlds2reverb.transforms import values


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class ConvertRotation(base.EpisodeTransform):
  """Replaces a rotation in a field by another representation of it.

  The inverse converts back, to the form that `rotations` says.

  Attributes:
    field: the path of the leaf of floats.
    start: the number of the field with which the rotation begins.
    source: the representation that the data has; see `rotations`.
    target: the representation that comes out.
  """

  is_step_wise = True

  field: paths.Path
  start: int
  source: str
  target: str

  def __post_init__(self):
    super().__post_init__()
    for representation in (self.source, self.target):
      rotations.size_of(representation)

  def transform(self, steps):
    return self._convert(steps, self.source, self.target)

  def invert(self, steps):
    if not paths.contains(steps, self.field):
      return steps
    return self._convert(steps, self.target, self.source)

  def _convert(self, steps, source, target):
    size = rotations.size_of(source)
    found = values.take(steps, self.field, self.start, size)
    new = rotations.convert(found, source, target, paths.name_of(self.field))
    return values.replace(steps, self.field, self.start, size, new)
