"""GR00T's `meta/modality.json`, beside the files of a LeRobot data set.

    state       name -> start and end in `observation.state`
    action      name -> start and end in `action`
    video       name -> a feature of videos, by default `video.<name>`
    annotation  name -> a feature of numbers of tasks, by default
                `annotation.<name>`

Each may have an `original_key`, the feature that it is a part of.
"""

import os
from typing import Any, NamedTuple

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks

_FILE = os.path.join('meta', 'modality.json')
_ANNOTATION = 'annotation'
# By modality: the field of a step that holds its parts, and the feature that
# they are parts of.
_PLACES = {
    'state': ('observation/state', 'observation.state'),
    'action': ('action', 'action'),
    'video': ('observation/video', None),
    _ANNOTATION: (_ANNOTATION, None),
}


class Part(NamedTuple):
  """The part of a feature that becomes a field of a step.

  Attributes:
    feature: a feature of LeRobot's.
    columns: which numbers of it; None if it is all of it.
    is_task: whether it has numbers of tasks, which become their texts.
  """

  feature: str
  columns: slice | None = None
  is_task: bool = False


def read_parts(directory: str, features: dict[str, Any]) -> dict[str, Part]:
  """Returns the parts that the file names, by their places in a step.

  Args:
    directory: the directory of the data set.
    features: the features of the data set, as in its `meta/info.json`.

  Raises:
    ValueError: if there is no such file, or if it names a feature, a modality
      or numbers that are not there.
  """
  path = os.path.join(directory, _FILE)
  if not os.path.isfile(path):
    raise ValueError(
        f'There is no {path}, which GR00T asks for. Without modality=True the'
        ' features of LeRobot are read as they are.'
    )
  modalities = files.read_json_object(path)
  parts = {}
  for modality, named in modalities.items():
    if modality not in _PLACES:
      raise ValueError(
          f'{path} has the modality {modality!r}, but only {list(_PLACES)} are'
          ' read.'
      )
    place, default = _PLACES[modality]
    if named is None:
      continue
    named = files.get_json_value(modalities, modality, dict, path)
    for name in named:
      entry = files.get_json_value(named, name, dict, f'{modality} of {path}')
      feature = entry.get('original_key') or default or f'{modality}.{name}'
      field = f'{modality}.{name} of {path}'
      if feature not in features:
        raise ValueError(
            f'{field} is a part of {feature!r}, which is no feature.'
            f'{checks.did_you_mean(feature, features)} The features are'
            f' {sorted(features)}.'
        )
      columns, shape = None, features[feature]['shape']
      if default:
        columns = slice(entry.get('start'), entry.get('end'))
        if len(shape) != 1 or not _is_within(columns, shape[0]):
          raise ValueError(
              f'{field} goes from {columns.start} to {columns.stop}, but its'
              f' feature has the shape {list(shape)}.'
          )
      is_task = modality == _ANNOTATION
      place_in = f'{place}/{name.replace(".", "/")}'
      parts[place_in] = Part(feature, columns, is_task)
  return parts


def _is_within(columns: slice, size: int) -> bool:
  begin, end = columns.start, columns.stop
  are_known = isinstance(begin, int) and isinstance(end, int)
  return are_known and 0 <= begin < end <= size
