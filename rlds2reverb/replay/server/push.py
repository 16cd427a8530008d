"""Pushes RLDS data to a Reverb server, as a TF-Agents observer would."""

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Union

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import private
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.server import insert as insert_lib
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

# Reverb's writers log a complaint on every append when 50 items are pending.
_FRAMES_PER_FLUSH = 40
_KNOWN_OBSERVERS = (
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    reverb_utils.ReverbTrajectorySequenceObserver,
)
_METHODS = ('auto', 'observer', 'bulk')
_OBSERVER_METHODS = ('__call__', 'get_table_signature', 'flush', 'reset')

Observer = Union[
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    Callable[[trajectory.Trajectory], None],
]


@options_lib.takes_options
def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    reverb_observer: Observer,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    options: Optional[options_lib.ConversionOptions] = None,
    method: str = 'auto',
    timeout: float = tables_lib.SECONDS_TO_CONFIRM,
) -> int:
  """Pushes RLDS data to a Reverb server, as TF-Agents trajectories.

  This function takes the place of the one of the same name in
  `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents 0.19.0). It returns when
  the server has confirmed every item, and logs how many items were inserted. An
  episode is checked as a whole before any of it is handed over. After an error
  the episodes before it are in the table, and the observer is empty, so it can
  be used again.

  For the three TF-Agents observers this function writes the items itself, in
  bulk as `write_rlds_to_reverb` does, many times faster than the observers
  write them frame by frame. The items are the same, with one exception: items
  of a `ReverbTrajectorySequenceObserver` do not continue from frames that the
  observer was given before, nor into frames that it is given afterwards. Short
  episodes may share chunks. Then `num_episodes` of the table is lower than with
  an observer, and `one_episode_chunks=True` makes it the same.

  Warnings with numbers say if the table was too small for the data, if the last
  transition of a terminal episode has a discount other than 0, if there is NaN,
  and which episodes were skipped.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    reverb_observer: a `ReverbAddTrajectoryObserver`, `ReverbAddEpisodeObserver`
      or `ReverbTrajectorySequenceObserver`; or any callable that takes a frame
      and has the methods `get_table_signature`, `flush` and `reset` of these.
    policy_info_fn: see `convert_rlds_to_trajectories`. It is left out, with a
      warning, if the table's signature has no `policy_info`.
    options: how the data is converted, and to what keys. Its `report` also says
      how many items the server confirmed; `identity`, `episode_id`,
      `chunk_length` and `one_episode_chunks` need the bulk method. The chunks
      of an observer are always of one episode, unless its items cross episodes.
    method: how the items are written. `"bulk"` writes them in bulk.
      `"observer"` calls the observer with each frame. `"auto"` chooses bulk for
      the three TF-Agents observers, if they hold no frames of an unfinished
      episode.
    timeout: see `write_rlds_to_reverb`. The calls of an observer wait without a
      limit.

  Returns:
    The number of frames handed over, which is the number of steps of the
    episodes that were not skipped. `report.inserted_items` says how many items
    were made of them.

  Raises:
    TypeError: if the observer lacks a method, or `policy_info_fn` is not
      callable.
    ValueError: if `rlds_data` has no RLDS steps or no episodes at all (unless
      `validation="tf_agents"`), or they lack a feature; if the signature of the
      observer's table does not fit the data (a `SpecMismatchError`, which lists
      each difference by path); if an episode is longer than the observer's
      `max_sequence_length`; if `method="bulk"` is not possible; or if the
      observer raises it.
    ConnectionError: if the server does not answer.
    InsertError: if writing in bulk fails, see `write_rlds_to_reverb`.
    InvalidArgumentError: if an episode is invalid.
  """
  if isinstance(rlds_data.element_spec, trajectory.Trajectory):
    raise ValueError(
        'push_rlds_to_reverb makes trajectories of an RLDS data set, and these'
        f' are trajectories already: {rlds_data.element_spec.step_type}. Pass'
        ' the data set as it is before any conversion. Sequences [L, ...] go to'
        ' write_rlds_to_reverb.'
    )
  settings = options_lib.with_policy_info(options, policy_info_fn)
  policy_info_fn = settings.policy_info_fn
  if settings.report is None:
    settings = dataclasses.replace(
        settings, report=report_lib.ConversionReport()
    )
  is_bulk = _is_bulk(method, reverb_observer, settings)
  _check_observer(reverb_observer)
  tables = _tables(reverb_observer, timeout)
  signature = (
      next(iter(tables.values())).signature
      if tables
      else reverb_observer.get_table_signature()
  )
  spec = specs.create_trajectory_data_spec(rlds_data, policy_info_fn)
  if policy_info_fn and not _has_policy_info(signature):
    logging.warning(
        'The signature of the table has no policy_info, so that of'
        ' policy_info_fn is left out. Create the table with'
        ' create_trajectory_data_spec(rlds_data, policy_info_fn) to keep it.'
    )
    settings = dataclasses.replace(settings, policy_info_fn=None)
    spec = spec._replace(policy_info=())
  if is_bulk:
    source = frames_lib.make_frame_source(
        rlds_data, _items_of(reverb_observer), settings
    )
    frames, [counts] = insert_lib.insert(
        source, [reverb_observer.py_client], timeout=timeout, before=[tables]
    )
    inserted = {name: count.new for name, count in counts.items()}
  else:
    specs.check_signature(signature, spec)
    blocks = conversion.trajectory_blocks(rlds_data, settings)
    frames = _hand_over(blocks, reverb_observer)
    settings.report.warn()
    after = _tables(reverb_observer, timeout)
    inserted = tables_lib.count_inserted(tables, after)
  settings.report.inserted_items.update(inserted)
  if (
      not frames
      and not settings.report.skipped_episodes
      and settings.rules.validation == 'strict'
  ):
    raise ValueError('No dataset representing RLDS steps exist in the data.')
  return frames


def _check_observer(observer) -> None:
  """Raises a TypeError if an observer lacks a method that is called."""
  missing = [name for name in _OBSERVER_METHODS if not hasattr(observer, name)]
  if missing:
    raise TypeError(
        f'reverb_observer must have {", ".join(_OBSERVER_METHODS)}, but'
        f' {observer!r} has no {", ".join(missing)}. write_rlds_to_reverb takes'
        ' a server or a client, and needs no observer.'
    )


def _is_bulk(method, observer, options) -> bool:
  """Returns whether the items are written in bulk.

  Raises:
    ValueError: if `method` or another argument asks for something impossible.
  """
  checks.check_choice('method', method, _METHODS)
  settings = private.observer_settings(observer)
  reason = None
  if type(observer) not in _KNOWN_OBSERVERS:
    reason = f'what a {type(observer).__name__} writes is not known'
  elif settings.cached_steps or not settings.writer:
    reason = 'the observer is closed, or holds frames of an unfinished episode'
  if method == 'auto':
    method = 'observer' if reason else 'bulk'
  if method == 'bulk' and reason:
    raise ValueError(f'method="bulk" is not possible: {reason}.')
  of_bulk = (options.identity, options.episode_id, options.chunk_length)
  if method == 'observer' and of_bulk != (None, None, None):
    raise ValueError(
        'identity, episode_id and chunk_length go with the bulk way, but the'
        f' observer is called with each frame: {reason or "as method says"}.'
    )
  return method == 'bulk'


def _items_of(observer: Observer) -> List[items_lib.TableItems]:
  """Returns the `TableItems` of a TF-Agents observer's tables."""
  held = private.observer_settings(observer)
  settings = {'priority': held.priority}
  if type(observer) is reverb_utils.ReverbAddEpisodeObserver:
    settings.update(
        windows=None,
        max_sequence_length=held.max_sequence_length,
        bypass_longer_episodes=held.bypass_partial_episodes,
    )
  else:
    if type(observer) is reverb_utils.ReverbTrajectorySequenceObserver:
      end = 'cross'
    elif held.tile_end_of_episodes:
      end = 'tile'
    else:
      end = 'pad' if held.pad_end_of_episodes else 'drop'
    settings['windows'] = windows_lib.Windows(
        held.sequence_length, held.stride_length, end
    )
  return [items_lib.TableItems(name, **settings) for name in held.table_names]


def _hand_over(blocks: tf.data.Dataset, observer: Observer) -> int:
  """Calls `observer` with each frame, and returns the number of frames.

  After an error the observer is empty.
  """
  # An unknown observer gets tensors, as TF-Agents would give it.
  as_leaf = (
      _as_array if type(observer) in _KNOWN_OBSERVERS else tf.convert_to_tensor
  )
  structure = blocks.element_spec.frames
  frames = 0
  try:
    for block in blocks.as_numpy_iterator():
      for leaves in zip(*tree.flatten(block.frames)):
        observer(
            tree.unflatten_as(structure, [as_leaf(leaf) for leaf in leaves])
        )
        frames += 1
        if frames % _FRAMES_PER_FLUSH == 0:
          observer.flush()
    observer.flush()
  except BaseException:
    _empty(observer)
    raise
  return frames


def _as_array(leaf):
  # A numpy string would lose the zero bytes at its end.
  return np.array(leaf, object) if isinstance(leaf, bytes) else leaf


def _empty(observer: Observer) -> None:
  """Makes `observer` forget the frames that it holds."""
  observer.reset(write_cached_steps=False)
  # After ReverbAddEpisodeObserver.reset the observer still believes that its
  # writer has data. Closing and opening it corrects this.
  if type(observer) in _KNOWN_OBSERVERS:
    observer.close()
    observer.open()


def _tables(observer: Observer, timeout: float) -> Dict[str, Any]:
  """Returns the server's `TableInfo`s of the observer's tables, by name."""
  if type(observer) not in _KNOWN_OBSERVERS:
    return {}
  names = private.observer_settings(observer).table_names
  return tables_lib.table_infos(observer.py_client, names, timeout)


def _has_policy_info(signature) -> bool:
  return signature is None or bool(
      tf.nest.flatten(getattr(signature, 'policy_info', ()))
  )
