"""GR00T's `meta/modality.json`, an additional file of a LeRobot data set.

    state       name -> start and end in `observation.state`
    action      name -> start and end in `action`
    video       name -> a video feature, by default `video.<name>`
    annotation  name -> a feature of task indices, by default
                `annotation.<name>`

An entry may have an `original_key`, the name of another feature.
"""

import os
from typing import Any, NamedTuple

from rlds2reverb.datasets import json_files
from rlds2reverb.episodes import checks

_FILE = os.path.join('meta', 'modality.json')
_ANNOTATION = 'annotation'
# By modality: the parent of its step fields, and the default feature.
_MODALITIES = {
    'state': ('observation/state', 'observation.state'),
    'action': ('action', 'action'),
    'video': ('observation/video', None),
    _ANNOTATION: (_ANNOTATION, None),
}


class Part(NamedTuple):
  """A part of a feature that becomes a step field.

  Attributes:
    feature: the name of a LeRobot feature.
    columns: a slice of the feature; None for the entire feature.
    is_task: whether the feature is a task index, which becomes the task text.
  """

  feature: str
  columns: slice | None = None
  is_task: bool = False


def read_parts(directory: str, features: dict[str, Any]) -> dict[str, Part]:
  """Reads the parts of features from the file.

  Args:
    directory: the directory of the data set.
    features: the features of the data set, as in `meta/info.json`.

  Returns:
    The parts, by the paths of their step fields.

  Raises:
    ValueError: if the file does not exist, or if it contains an unknown
      feature or modality, or a range outside of a feature.
  """
  path = os.path.join(directory, _FILE)
  if not os.path.isfile(path):
    raise ValueError(
        f'modality=True requires {path}, which does not exist. Without it, the'
        ' features of LeRobot are read unchanged.'
    )
  modalities = json_files.read_json_object(path)
  parts = {}
  for modality, entries in modalities.items():
    if modality not in _MODALITIES:
      raise ValueError(
          f'{path} has the modality {modality!r}. Supported are'
          f' {list(_MODALITIES)}.'
      )
    parent, default = _MODALITIES[modality]
    if entries is None:
      continue
    entries = json_files.get_json_value(modalities, modality, dict, path)
    for name in entries:
      entry = json_files.get_json_value(
          entries, name, dict, f'{modality} of {path}'
      )
      feature = entry.get('original_key') or default or f'{modality}.{name}'
      field = f'{modality}.{name} of {path}'
      if feature not in features:
        raise ValueError(
            f'{field} refers to {feature!r}, which is not a feature.'
            f'{checks.did_you_mean(feature, features)} The features are'
            f' {sorted(features)}.'
        )
      columns, shape = None, features[feature]['shape']
      if default:
        begin, end = entry.get('start'), entry.get('end')
        is_range = isinstance(begin, int) and isinstance(end, int)
        if len(shape) != 1 or not (is_range and 0 <= begin < end <= shape[0]):
          raise ValueError(
              f'{field} ranges from {begin} to {end}, but its feature has the'
              f' shape {list(shape)}.'
          )
        columns = slice(begin, end)
      is_task = modality == _ANNOTATION
      step_field = f'{parent}/{name.replace(".", "/")}'
      parts[step_field] = Part(feature, columns, is_task)
  return parts
