"""Descriptions and names that a data set keeps when it is written again."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow_datasets as tfds
import tree

from rlds2reverb.datasets import saving
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import rlds
from rlds2reverb.jobs import opened as opened_lib

_MADE_BY = 'Episodes converted by rlds2reverb.'
# These features are stored like a plain tensor, and say more about it.
_NAMED = (tfds.features.ClassLabel, tfds.features.Text)


def texts_of(opened: Sequence[opened_lib.OpenSource]) -> Dict[str, str]:
  """Returns the description, citation, homepage and license of data sets.

  The texts of several data sets are joined, each once.

  Args:
    opened: the data sets.

  Returns:
    Arguments of `tfds.folder_dataset.write_metadata`.
  """
  infos = [source.info for source in opened]
  return {
      'description': _joined([*(info.description for info in infos), _MADE_BY]),
      'citation': _joined([info.citation for info in infos]),
      'homepage': _joined([info.homepage for info in infos]),
      'license': _joined([info.redistribution_info.license for info in infos]),
  }


def identity_of(
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


def features_of(
    opened: Sequence[opened_lib.OpenSource], episode_spec: Dict[str, Any]
) -> Dict[str, Any]:
  """Returns the features of the data set that is written.

  Class labels and text keep their features if all data sets have the same,
  unless transforms may have changed the field.

  Args:
    opened: the data sets.
    episode_spec: the spec of an episode that is written.
  """
  features = saving.features_of(episode_spec)
  steps = features[rlds.STEPS].feature
  kept = tree.map_structure_with_path(
      lambda path, feature: _kept(opened, path, feature),
      {**features, rlds.STEPS: _plain(steps)},
  )
  return {**kept, rlds.STEPS: tfds.features.Dataset(kept[rlds.STEPS])}


def _plain(features: Any) -> Any:
  """Returns features as dicts, to the leaves."""
  if isinstance(features, (tfds.features.FeaturesDict, dict)):
    return {key: _plain(feature) for key, feature in features.items()}
  return features


def _kept(opened, path, feature) -> Any:
  found = [_source_feature(source, path) for source in opened]
  first = found[0]
  if (
      isinstance(first, _NAMED)
      and (first.np_dtype, first.shape) == (feature.np_dtype, feature.shape)
      and all(repr(each) == repr(first) for each in found)
      and all(_names(each) == _names(first) for each in found)
  ):
    return first
  return feature


def _source_feature(source, path) -> Optional[Any]:
  """Returns the feature of a data set whose values a field has unchanged."""
  if source.transforms:
    return None
  keys: List[str] = list(path)
  if source.mapping is not None and keys[0] == rlds.STEPS:
    field = getattr(source.mapping, keys[1], None)
    if not isinstance(field, str):
      return None
    keys = [rlds.STEPS, *field.split('/'), *keys[2:]]
  feature = source.features
  for key in keys:
    if isinstance(feature, tfds.features.Dataset):
      feature = feature.feature
    if not isinstance(feature, tfds.features.FeaturesDict):
      return None
    if key not in feature:
      return None
    feature = feature[key]
  return feature


def _names(feature) -> Optional[List[str]]:
  is_label = isinstance(feature, tfds.features.ClassLabel)
  return feature.names if is_label else None


def _joined(texts: Sequence[Optional[str]]) -> str:
  return '\n\n'.join(dict.fromkeys(text.strip() for text in texts if text))
