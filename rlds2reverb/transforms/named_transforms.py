"""Loads the transforms of well-known data sets by name.

A config may name transforms as well as a mapping:

    transform_episodes.transforms = [@RelativeToAbsoluteGripper()]
"""

from typing import Any, List

from rlds2reverb.datasets import files
from rlds2reverb.fields import bindings as bindings_lib
from rlds2reverb.fields import named_mappings

_TRANSFORMS = 'transform_episodes'


def load_transforms(name_or_path: files.PathLike) -> List[Any]:
  """Reads the transforms of a well-known data set, or of your own gin file.

      episodes = map_fields(load_episodes(name), load_mapping(name))
      episodes = transform_episodes(episodes, load_transforms(name))

  Args:
    name_or_path: the name of a config, one of `fields.config_names()`, or the
      path of a gin file, which ends in `.gin`.

  Returns:
    The transforms and filters, for `transform_episodes`; an empty list if the
    config has none.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    ValueError: if there is no config of that name, with the names that come
      nearest; or if a binding is of something that does not exist.
  """
  return transforms_from(*named_mappings.read_config(name_or_path))


def transforms_from(text: str, path: str) -> List[Any]:
  """Returns the transforms and filters that gin bindings describe.

  Args:
    text: the bindings, in gin's syntax.
    path: the name of the file that they are from, for messages.

  Raises:
    SyntaxError: as `load_transforms` does.
    ValueError: as `load_transforms` does.
  """
  bound = bindings_lib.read_one(_TRANSFORMS, text, path)
  unknown = bound.keys() - {'transforms'}
  if unknown:
    raise ValueError(
        f'{path} binds {_TRANSFORMS}.{min(unknown)}, but only'
        f' {_TRANSFORMS}.transforms can be bound.'
    )
  return list(bound.get('transforms', ()))
