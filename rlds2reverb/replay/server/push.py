"""Pushes RLDS data to a Reverb server, as a TF-Agents observer would."""

import dataclasses
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import tf_private
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.replay.server import insert as insert_lib
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

# Reverb's writers log a warning on every append once 50 items are pending.
_FRAMES_PER_FLUSH = 40
_TF_AGENTS_OBSERVERS = (
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
    policy_info_fn: specs.PolicyInfoFn | None = None,
    *,
    options: options_lib.ConversionOptions | None = None,
    method: str = 'auto',
    timeout: float = tables_lib.SECONDS_TO_CONFIRM,
) -> int:
  """Pushes RLDS data to a Reverb server, as TF-Agents trajectories.

  This function replaces the one of the same name in
  `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents 0.19.0). It returns when
  the server has confirmed every item, and logs the number of inserted items. An
  episode is validated completely before its first frame is written. After an
  error the table holds the episodes before the invalid one, and the observer is
  empty, so it can be used again.

  For the three TF-Agents observers this function writes the items itself, in
  bulk like `write_rlds_to_reverb`, many times faster than the observers write
  them frame by frame. The items are the same, with one exception: items of a
  `ReverbTrajectorySequenceObserver` contain no frames that the observer
  received before or receives afterwards. Short episodes may share chunks. Then
  `num_episodes` of the table is lower than with an observer;
  `one_episode_chunks=True` makes it equal.

  Warnings with counts report a table that was too small for the data, a
  discount other than 0 in the last transition of a terminal episode, NaN, and
  skipped episodes.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    reverb_observer: a `ReverbAddTrajectoryObserver`, `ReverbAddEpisodeObserver`
      or `ReverbTrajectorySequenceObserver`; or any callable that takes a frame
      and has their methods `get_table_signature`, `flush` and `reset`.
    policy_info_fn: see `convert_rlds_to_trajectories`. It is ignored, with a
      warning, if the table's signature has no `policy_info`.
    options: how the data is converted, and the identity of the items. Its
      `report` also counts the items that the server confirmed; `identity`,
      `episode_id` and `chunk_length` need the bulk method. The chunks of an
      observer always belong to one episode, unless its items cross episodes.
    method: how the items are written. `"bulk"` writes them in bulk.
      `"observer"` calls the observer with each frame. `"auto"` chooses bulk for
      the three TF-Agents observers, unless they hold frames of an unfinished
      episode.
    timeout: see `write_rlds_to_reverb`. The calls of an observer have no
      timeout.

  Returns:
    The number of frames: the steps of all episodes that were not skipped as
    invalid, also of those without an item, which are too short, or longer than
    the observer's `max_sequence_length`. `report.inserted_items` has the
    numbers of new items.

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
        'push_rlds_to_reverb converts RLDS data to trajectories, but the data'
        f' set already has trajectories: {rlds_data.element_spec.step_type}.'
        ' Pass the unconverted data set, or sequences [L, ...] to'
        ' write_rlds_to_reverb.'
    )
  options = options_lib.with_policy_info(options, policy_info_fn)
  report = options.report or report_lib.ConversionReport()
  options = dataclasses.replace(options, report=report)
  settings = tf_private.observer_settings(reverb_observer)
  is_bulk = _is_bulk(method, reverb_observer, settings, options)
  is_tf_agents = type(reverb_observer) in _TF_AGENTS_OBSERVERS
  get_infos = lambda: tables_lib.table_infos(
      reverb_observer.py_client, settings.table_names, timeout
  )
  infos = get_infos() if is_tf_agents else {}
  signatures = [info.signature for info in infos.values()]
  # The observer would ask the server without a timeout.
  signature = (signatures or [reverb_observer.get_table_signature()])[0]
  if options.policy_info_fn is not None and signature is not None:
    spec = specs.create_trajectory_data_spec(rlds_data, options.policy_info_fn)
    stored_info = getattr(signature, 'policy_info', ())
    if tf.nest.flatten(spec.policy_info) and not tf.nest.flatten(stored_info):
      logging.warning(
          'The signature of the table has no policy_info, so policy_info_fn is'
          ' ignored. To store it, create the table with'
          ' create_trajectory_data_spec(rlds_data, policy_info_fn).'
      )
      options = dataclasses.replace(options, policy_info_fn=None)
  if is_bulk:
    tables = _table_items(type(reverb_observer), settings)
    source = frames_lib.make_frame_source(rlds_data, tables, options)
    with tf_private.name_damaged_files(rlds_data):
      num_frames, [counts] = insert_lib.insert(
          source, [reverb_observer.py_client], timeout=timeout, infos=[infos]
      )
  else:
    spec = specs.create_trajectory_data_spec(rlds_data, options.policy_info_fn)
    specs.check_signature(signature, spec)
    for info in infos.values():
      priorities_lib.PriorityRange.of_table(info).check(settings.priority)
    blocks = conversion.trajectory_blocks(rlds_data, options)
    with tf_private.name_damaged_files(rlds_data):
      num_frames = _call_observer(blocks, reverb_observer, is_tf_agents)
    report.warn()
    new_infos = get_infos() if is_tf_agents else {}
    counts = tables_lib.count_written_items(infos, new_infos)
  report.inserted_items.update(
      {name: count.new for name, count in counts.items()}
  )
  is_strict = options.rules.validation == 'strict'
  if is_strict and not num_frames and not report.skipped_episodes:
    # The message of TF-Agents.
    raise ValueError('No dataset representing RLDS steps exist in the data.')
  return num_frames


def _is_bulk(method, observer, settings, options) -> bool:
  """Returns whether to write the items in bulk.

  Raises:
    TypeError: if the observer lacks a method that would be called.
    ValueError: if `method` or another argument is not possible.
  """
  checks.check_choice('method', method, _METHODS)
  if type(observer) not in _TF_AGENTS_OBSERVERS:
    reason = f'the items of a {type(observer).__name__} are unknown'
  elif settings.cached_steps or not settings.writer:
    reason = 'the observer is closed, or holds frames of an unfinished episode'
  elif method != 'observer':
    return True
  else:
    reason = 'method="observer" calls the observer with each frame'
  bulk_options = (options.identity, options.episode_id, options.chunk_length)
  if method == 'bulk' or bulk_options != (None, None, None):
    raise ValueError(
        'method="bulk", identity, episode_id and chunk_length need items that'
        f' are written in bulk, which is not possible: {reason}.'
    )
  missing = [name for name in _OBSERVER_METHODS if not hasattr(observer, name)]
  if missing:
    raise TypeError(
        f'reverb_observer must have {", ".join(_OBSERVER_METHODS)}, but'
        f' {observer!r} has no {", ".join(missing)}. write_rlds_to_reverb takes'
        ' a server or a client, and needs no observer.'
    )
  return False


def _table_items(observer_class, settings) -> list[items_lib.TableItems]:
  """Returns the items that a TF-Agents observer writes into its tables."""
  windows = max_length = None
  if observer_class is reverb_utils.ReverbAddEpisodeObserver:
    max_length = settings.max_sequence_length
  else:
    end = 'pad' if settings.pad_end_of_episodes else 'drop'
    if settings.tile_end_of_episodes:
      end = 'tile'
    if observer_class is reverb_utils.ReverbTrajectorySequenceObserver:
      end = 'cross'
    windows = windows_lib.Windows(
        settings.sequence_length, settings.stride_length, end
    )
  bypass = bool(settings.bypass_partial_episodes)
  return [
      items_lib.TableItems(name, windows, max_length, bypass, settings.priority)
      for name in settings.table_names
  ]


def _call_observer(
    blocks: tf.data.Dataset, observer: Observer, is_tf_agents: bool
) -> int:
  """Calls `observer` with each frame, and returns the number of frames.

  After an error the observer is empty.
  """
  if is_tf_agents:
    # A NumPy string would lose trailing zero bytes.
    convert = lambda leaf: (
        np.array(leaf, object) if isinstance(leaf, bytes) else leaf
    )
  else:  # Tensors, as the function of TF-Agents passes them.
    convert = tf.convert_to_tensor
  structure = blocks.element_spec.frames
  num_frames = 0
  try:
    for block in blocks.as_numpy_iterator():
      for leaves in zip(*tree.flatten(block.frames)):
        observer(tree.unflatten_as(structure, list(map(convert, leaves))))
        num_frames += 1
        if num_frames % _FRAMES_PER_FLUSH == 0:
          observer.flush()
    observer.flush()
  except BaseException:
    observer.reset(write_cached_steps=False)
    # After ReverbAddEpisodeObserver.reset the observer still believes that its
    # writer has data. Closing and opening it corrects this.
    if is_tf_agents:
      observer.close()
      observer.open()
    raise
  return num_frames
