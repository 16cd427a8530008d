"""Pushes RLDS data to a Reverb server, as a TF-Agents observer would."""

import dataclasses
from typing import Any, Dict, List, Optional

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

# A TF-Agents observer, or a callable with its methods.
Observer = Any


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
      how many items the server confirmed; `identity`, `episode_id` and
      `chunk_length` need the bulk method. The chunks of an observer are always
      of one episode, unless its items cross episodes.
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
  options = options_lib.with_policy_info(options, policy_info_fn)
  report = options.report or report_lib.ConversionReport()
  options = dataclasses.replace(options, report=report)
  held = private.observer_settings(reverb_observer)
  is_known = type(reverb_observer) in _KNOWN_OBSERVERS
  is_bulk = _is_bulk(method, reverb_observer, held, options)
  ask = lambda: tables_lib.table_infos(
      reverb_observer.py_client, held.table_names, timeout
  )
  before = ask() if is_known else {}
  signatures = [info.signature for info in before.values()]
  signature = (signatures or [reverb_observer.get_table_signature()])[0]
  spec = specs.create_trajectory_data_spec(rlds_data, options.policy_info_fn)
  if tf.nest.flatten(spec.policy_info) and not (
      signature is None
      or tf.nest.flatten(getattr(signature, 'policy_info', ()))
  ):
    logging.warning(
        'The signature of the table has no policy_info, so that of'
        ' policy_info_fn is left out. Create the table with'
        ' create_trajectory_data_spec(rlds_data, policy_info_fn) to keep it.'
    )
    options = dataclasses.replace(options, policy_info_fn=None)
    spec = spec._replace(policy_info=())
  if is_bulk:
    tables = _items_of(type(reverb_observer), held)
    source = frames_lib.make_frame_source(rlds_data, tables, options)
    frames, [counts] = insert_lib.insert(
        source, [reverb_observer.py_client], timeout=timeout, before=[before]
    )
  else:
    specs.check_signature(signature, spec)
    blocks = conversion.trajectory_blocks(rlds_data, options)
    frames = _hand_over(blocks, reverb_observer, is_known)
    report.warn()
    counts = tables_lib.written_items(before, ask() if is_known else {})
  report.inserted_items.update(
      {name: count.new for name, count in counts.items()}
  )
  is_strict = options.rules.validation == 'strict'
  if is_strict and not frames and not report.skipped_episodes:
    raise ValueError('No dataset representing RLDS steps exist in the data.')
  return frames


def _is_bulk(method, observer, held, options) -> bool:
  """Returns whether the items are written in bulk.

  Raises:
    TypeError: if the observer lacks a method that is called.
    ValueError: if `method` or another argument asks for something impossible.
  """
  checks.check_choice('method', method, _METHODS)
  missing = [name for name in _OBSERVER_METHODS if not hasattr(observer, name)]
  reason = 'the observer is called with each frame'
  if type(observer) not in _KNOWN_OBSERVERS:
    reason = f'what a {type(observer).__name__} writes is not known'
  elif held.cached_steps or not held.writer:
    reason = 'the observer is closed, or holds frames of an unfinished episode'
  elif method != 'observer':
    return True
  of_bulk = (options.identity, options.episode_id, options.chunk_length)
  if method == 'bulk' or of_bulk != (None, None, None):
    raise ValueError(
        'method="bulk", identity, episode_id and chunk_length go with the bulk'
        f' way, which is not possible: {reason}.'
    )
  if missing:
    raise TypeError(
        f'reverb_observer must have {", ".join(_OBSERVER_METHODS)}, but'
        f' {observer!r} has no {", ".join(missing)}. write_rlds_to_reverb takes'
        ' a server or a client, and needs no observer.'
    )
  return False


def _items_of(kind, held) -> List[items_lib.TableItems]:
  """Returns the items that an observer of a kind writes into its tables."""
  settings: Dict[str, Any] = {'priority': held.priority}
  if kind is reverb_utils.ReverbAddEpisodeObserver:
    settings['windows'] = None
    settings['max_sequence_length'] = held.max_sequence_length
    settings['bypass_longer_episodes'] = held.bypass_partial_episodes
  else:
    end = 'pad' if held.pad_end_of_episodes else 'drop'
    if held.tile_end_of_episodes:
      end = 'tile'
    if kind is reverb_utils.ReverbTrajectorySequenceObserver:
      end = 'cross'
    length, stride = held.sequence_length, held.stride_length
    settings['windows'] = windows_lib.Windows(length, stride, end)
  return [items_lib.TableItems(name, **settings) for name in held.table_names]


def _hand_over(blocks: tf.data.Dataset, observer: Observer, is_known) -> int:
  """Calls `observer` with each frame, and returns the number of frames.

  After an error the observer is empty.
  """
  # An unknown observer gets tensors, as TF-Agents would give it. A NumPy string
  # would lose the zero bytes at its end.
  as_array = lambda leaf: (
      np.array(leaf, object) if isinstance(leaf, bytes) else leaf
  )
  as_leaf = as_array if is_known else tf.convert_to_tensor
  structure = blocks.element_spec.frames
  frames = 0
  try:
    for block in blocks.as_numpy_iterator():
      for leaves in zip(*tree.flatten(block.frames)):
        observer(tree.unflatten_as(structure, list(map(as_leaf, leaves))))
        frames += 1
        if frames % _FRAMES_PER_FLUSH == 0:
          observer.flush()
    observer.flush()
  except BaseException:
    observer.reset(write_cached_steps=False)
    # After ReverbAddEpisodeObserver.reset the observer still believes that its
    # writer has data. Closing and opening it corrects this.
    if is_known:
      observer.close()
      observer.open()
    raise
  return frames
