"""Mixtures of a config: a source for each data set, and sampled episodes."""

from collections.abc import Sequence
import os
from typing import Any

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import mixtures as mixtures_lib
from rlds2reverb.fields import configs
from rlds2reverb.jobs import sources as sources_lib


def make_sources(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
) -> list[sources_lib.Source]:
  """Makes a source for each data set of a mixture.

  Args:
    mixture: the name of a mixture, one of `fields.config_names('mixtures')`, or
      the path of a gin file.
    data_dir: the directory in which each data set has a folder of its name.
    split: a TFDS split, the same for all data sets.
    bindings: gin bindings that take precedence over the configs of the data
      sets and over the mixture.

  Returns:
    The sources, in the order of the mixture. Each has the mapping and the
    transforms of its config, followed by the transforms of the mixture.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    SyntaxError: if the bindings are not in gin's syntax.
    ValueError: if the mixture, or the config of a data set, does not exist.
  """
  text, path = configs.read_config(mixture, configs.MIXTURES)
  text = '\n'.join([text, *bindings])
  loaded = configs.parse_dataclass(configs.Mixture, text, path)
  return [
      sources_lib.make_source(
          os.path.join(files.expand(data_dir), dataset),
          split,
          config=loaded.get_config(dataset),
          bindings=[text],
      )
      for dataset in loaded.weights
  ]


def compute_weights(
    opened: Sequence[sources_lib.OpenSource],
) -> dict[str, float]:
  """Returns the share of the episodes of each source in a mixture, by name.

  A mixture's weight multiplies the size of a data set, so the share is the
  weight times the number of episodes.

  Args:
    opened: the opened sources of `make_sources`.
  """
  weights = opened[0].source.get_arguments('Mixture')['weights']
  return {
      name: weight * source.num_episodes
      for (name, weight), source in zip(weights.items(), opened)
  }


def read_mixture(
    mixture: files.PathLike,
    data_dir: files.PathLike,
    split: str = 'train',
    *,
    bindings: Sequence[str] = (),
    **options: Any,
) -> tf.data.Dataset:
  """Samples episodes of a mixture's data sets by their weights.

  Args:
    mixture: see `make_sources`.
    data_dir: see `make_sources`.
    split: see `make_sources`.
    bindings: see `make_sources`.
    **options: arguments of `datasets.mix_datasets`: subbatch_size, stop_when,
      seed and start.

  Returns:
    A data set of mapped and transformed `Mixed` episodes. Episodes of a data
    set come in their order.

  Raises:
    FileNotFoundError: as `make_sources` does, and if a data set does not exist.
    SyntaxError: as `make_sources` does.
    ValueError: as `make_sources` does; if a config does not fit its data set;
      or if the data sets do not end up with the same spec.
  """
  sources = make_sources(mixture, data_dir, split, bindings=bindings)
  opened = list(map(sources_lib.open_source, sources))
  weights = compute_weights(opened)
  return mixtures_lib.mix_datasets(
      {name: source.read() for name, source in zip(weights, opened)},
      weights,
      **options,
  )
