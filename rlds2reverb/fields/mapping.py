"""Maps the steps of a data set to those of RLDS."""

import dataclasses
from typing import Any, Union

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.episodes import batching
from rlds2reverb.episodes import data_sets
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import configs
from rlds2reverb.fields import step_mapping


def map_fields(
    rlds_data: tf.data.Dataset,
    mapping: Union[None, step_mapping.StepMapping, files.PathLike] = None,
    **changes: Any,
) -> tf.data.Dataset:
  """Maps the steps of a data set to RLDS steps.

      episodes = map_fields(load_episodes('bridge'), 'bridge', discount=None)

  Args:
    rlds_data: a data set of episodes. An episode is a dict whose `steps`, with
      any fields, are a nested `tf.data.Dataset` or stacked `[T, ...]`.
    mapping: says what the fields of a step are made from: a `StepMapping`; or
      the config that has one: its name, one of `config_names()`, the name that
      Octo or OpenVLA has for its data set, such as `bridge_orig`, or the path
      of a gin file, which ends in `.gin`. The gin bindings of the program have
      no effect on a config. By default it is `StepMapping()`, as gin binds it.
    **changes: fields of the `StepMapping` that take the place of its own.

  Returns:
    A data set of episodes whose `steps` are stacked and have the seven fields
    of RLDS. The other fields of an episode stay.

  Raises:
    FileNotFoundError: if there is no gin file at that path.
    SyntaxError: if it is not in gin's syntax.
    TypeError: if `changes` has a keyword that is no field of `StepMapping`.
    ValueError: if there is no config of that name, with the nearest names, or
      it binds no mapping, or something that does not exist; or if the mapping
      does not fit the spec of `rlds_data`. The message lists every path that
      does not exist, with the nearest names, and all paths that do.
  """
  episode = rlds_data.element_spec
  steps_lib.check_has_steps('An element of rlds_data', episode)
  if mapping is None:
    mapping = step_mapping.StepMapping()
  elif not isinstance(mapping, step_mapping.StepMapping):
    mapping = configs.load_mapping(mapping)
  mapping = dataclasses.replace(mapping, **changes)
  count = rlds_data.cardinality()
  if isinstance(episode[rlds.STEPS], tf.data.DatasetSpec):
    rlds_data = graphs.map_elements(
        rlds_data, mapping.stack_used, tf.data.AUTOTUNE
    )
  batches = data_sets.batches_of(rlds_data, with_faults=True)
  if mapping.takes_batches(episode):
    # Nothing but functions in a mapping could need AutoGraph.
    mapped = graphs.map_elements(batches, mapping.map_batch, tf.data.AUTOTUNE)
  else:
    mapped = batching.map_episodes(
        batches,
        lambda _, episodes: episodes.map(
            mapping, num_parallel_calls=tf.data.AUTOTUNE
        ),
    )
  made = data_sets.Episodes(mapped, count)
  steps_lib.steps_spec(made.element_spec)
  return made
