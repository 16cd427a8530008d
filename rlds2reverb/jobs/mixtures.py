"""Reads the data sets of a mixture, as sources of a job or as one data set.

    mixed = read_mixture('oxe_magic_soup', '/data/open_x')
    for element, source, mask in mixed.take(10):
      element['steps']['action']  # [T, 7]

The mixtures are those of `fields.mixtures`.
"""

import os
from typing import Any, Dict, List, Sequence

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import mixtures as mixtures_lib
from rlds2reverb.fields import configs
from rlds2reverb.fields import mixtures as named_lib
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import sources as sources_lib


def make_sources(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
) -> List[sources_lib.Source]:
  """Makes a source for each data set of a mixture.

  Args:
    mixture: the name of a mixture, one of `fields.config_names('mixtures')`, or
      the path of a gin file.
    data_dir: the directory in which each data set has a folder of its name.
    split: a TFDS split, the same for all data sets.
    bindings: gin bindings that take precedence over those of the data sets'
      configs and of the mixture.

  Returns:
    The sources, in the order of the mixture. Each has the mapping and the
    transforms of its config, and those of the mixture after them.

  Raises:
    FileNotFoundError: if there is no such gin file.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if there is no mixture of that name, or no config of one of its
      data sets.
  """
  text, path = configs.read_config(mixture, configs.MIXTURES)
  text = '\n'.join([text, *bindings])
  loaded = configs.object_of(named_lib.Mixture, text, path)
  return [
      sources_lib.make_source(
          os.path.join(files.expand(data_dir), dataset),
          split,
          config=loaded.config_of(dataset),
          bindings=[text],
      )
      for dataset in loaded.weights
  ]


def weights_of(opened: Sequence[opened_lib.OpenSource]) -> List[float]:
  """Returns the share of the episodes of each source in a mixture.

  A mixture's weight is a factor of the size of its data set, so this is the
  product of the weight and of the number of episodes.

  Args:
    opened: the sources of `make_sources`, opened.
  """
  return [
      weight * source.num_episodes
      for weight, source in zip(_weights(opened[0]).values(), opened)
  ]


def read_mixture(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
    **options: Any,
) -> tf.data.Dataset:
  """Draws the episodes of a mixture's data sets by their weights.

  Args:
    mixture: see `make_sources`.
    data_dir: see `make_sources`.
    split: see `make_sources`.
    bindings: see `make_sources`.
    **options: arguments of `datasets.mix_datasets`: subbatch_size, stop_when,
      seed and start.

  Returns:
    A data set of `Mixed` episodes, each mapped and transformed. Each
    data set gives its episodes in their order.

  Raises:
    FileNotFoundError: as `make_sources` does, and if a data set is not on disk.
    SyntaxError: as `make_sources` does.
    ValueError: as `make_sources` does; if a config does not fit its data set;
      or if the data sets do not have one form in the end.
  """
  opened = [
      sources_lib.open_source(source)
      for source in make_sources(mixture, data_dir, split, bindings=bindings)
  ]
  names = list(_weights(opened[0]))
  return mixtures_lib.mix_datasets(
      {name: source.read() for name, source in zip(names, opened)},
      dict(zip(names, weights_of(opened))),
      **options,
  )


def _weights(source: opened_lib.OpenSource) -> Dict[str, float]:
  """Returns the weights of the mixture to which a source belongs."""
  return sources_lib.arguments_of('Mixture', source.source)['weights']
