"""Mixtures of data sets that are trained on together.

`jobs.sources` reads the data sets of one.
"""

import dataclasses
from typing import Any, Mapping, Sequence

import gin

from rlds2reverb.episodes import checks


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
