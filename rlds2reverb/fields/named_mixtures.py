"""Loads mixtures of well-known data sets by name.

A mixture is a gin file in `configs/mixtures/`, such as `oxe_magic_soup.gin`.
`jobs.mixtures` reads the data sets of one.
"""

import dataclasses
from typing import Any, Mapping, Sequence

import gin

from rlds2reverb.datasets import files
from rlds2reverb.episodes import checks
from rlds2reverb.fields import bindings as bindings_lib
from rlds2reverb.fields import named_mappings

GROUP = 'mixtures'
_MIXTURE = 'Mixture'


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class Mixture:
  """Data sets that are trained on together.

  Attributes:
    weights: a dict from the names of the data sets to their weights. A weight
      is a factor of the data set's size: one of weight 2 is seen twice as often
      as one of weight 1 that has as many steps.
    configs: a dict from the names of data sets to the names of their configs,
      for those whose config has another name.
    transforms: the transforms of the episodes of every data set after its own,
      which give all data sets the same fields.
  """

  weights: Mapping[str, float]
  configs: Mapping[str, str] = dataclasses.field(default_factory=dict)
  transforms: Sequence[Any] = ()

  def __post_init__(self):
    checks.check_weights(self.weights, are_positive=True)
    unknown = set(self.configs) - set(self.weights)
    if unknown:
      raise ValueError(
          f'The mixture has configs of {sorted(unknown)}, which have no weight.'
      )

  def config_of(self, dataset: str) -> str:
    """Returns the name of a data set's config."""
    return self.configs.get(dataset, dataset)


def load_mixture(name_or_path: files.PathLike) -> Mixture:
  """Reads a mixture of well-known data sets, or of your own gin file.

      load_mixture('oxe_magic_soup').weights['taco_play']  # 2.0

  Args:
    name_or_path: the name of a mixture, one of `config_names('mixtures')`, or
      the path of a gin file, which ends in `.gin`.

  Returns:
    The mixture.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if the file is not in gin's syntax.
    ValueError: if there is no mixture of that name, with the names that come
      nearest; or if the file does not bind one.
  """
  return mixture_from(*named_mappings.read_config(name_or_path, GROUP))


def mixture_from(text: str, path: str) -> Mixture:
  """Returns the mixture that gin bindings describe.

  Args:
    text: the bindings, in gin's syntax.
    path: the name of the file that they are from, for messages.

  Raises:
    SyntaxError: as `load_mixture` does.
    ValueError: as `load_mixture` does.
  """
  arguments = bindings_lib.read_one(_MIXTURE, text, path)
  fields = [field.name for field in dataclasses.fields(Mixture)]
  if 'weights' not in arguments or not set(arguments) <= set(fields):
    raise ValueError(
        f'{path} must bind {_MIXTURE}.weights, and may bind of {fields} the'
        f' others, but binds {sorted(arguments)}.'
    )
  # The program's own bindings do not count.
  return Mixture(**{'configs': {}, 'transforms': (), **arguments})
