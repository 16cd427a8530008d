"""Maps the steps of a data set to RLDS steps."""

import dataclasses
from typing import Any

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.episodes import pipelines
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import configs
from rlds2reverb.fields import step_mapping


def map_fields(
    rlds_data: tf.data.Dataset,
    mapping: None | step_mapping.StepMapping | files.PathLike = None,
    **changes: Any,
) -> tf.data.Dataset:
  """Maps the steps of a data set to RLDS steps.

      episodes = map_fields(load_episodes('bridge'), 'bridge', discount=None)

  Args:
    rlds_data: a data set of episodes. An episode is a dict whose `steps`, with
      any fields, are a nested `tf.data.Dataset` or stacked `[T, ...]`.
    mapping: the mapping; or the config to load it from: the name of a config,
      one of `config_names()`; the name of the data set in Octo or OpenVLA, such
      as `bridge_orig`; or the path of a gin file, which ends in `.gin`. Gin
      bindings of the program do not affect a config. By default
      `StepMapping()`, as configured by gin.
    **changes: fields of the `StepMapping` to replace.

  Returns:
    A data set of episodes with stacked `steps` that have the seven fields of
    RLDS. Other fields of the episodes are not changed.

  Raises:
    FileNotFoundError: if the gin file does not exist.
    SyntaxError: if the gin file is not valid gin.
    TypeError: if `changes` has a name that is not a field of `StepMapping`.
    ValueError: if there is no such config, or it binds no mapping or something
      that does not exist; or if the mapping does not fit the spec of
      `rlds_data`. The error lists every missing path with similar names, and
      all existing paths.
  """
  episode = rlds_data.element_spec
  steps_lib.check_has_steps('An element of rlds_data', episode)
  if mapping is None:
    mapping = step_mapping.StepMapping()
  elif not isinstance(mapping, step_mapping.StepMapping):
    mapping = configs.load_mapping(mapping)
  mapping = dataclasses.replace(mapping, **changes)
  num_episodes = rlds_data.cardinality()
  if isinstance(episode[rlds.STEPS], tf.data.DatasetSpec):
    rlds_data = pipelines.map_elements(
        rlds_data, mapping.stack_used, tf.data.AUTOTUNE
    )
  batches = episode_dataset.batches_of(rlds_data, with_faults=True)
  if mapping.supports_batches(episode):
    mapped = pipelines.map_elements(
        batches, mapping.map_batch, tf.data.AUTOTUNE
    )
  else:
    # With AutoGraph, for functions of the user.
    mapped = episode_dataset.map_episodes(
        batches,
        lambda _, episodes: episodes.map(
            mapping, num_parallel_calls=tf.data.AUTOTUNE
        ),
    )
  mapped = episode_dataset.EpisodeDataset(mapped, num_episodes)
  steps_lib.get_steps_spec(mapped.element_spec)
  return mapped
