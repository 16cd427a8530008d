"""RLDS data into a Reverb server, through a TF-Agents observer."""

from typing import Any, Callable, Dict, Optional, Union

from absl import logging
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory
import tree

from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

# With some more items pending Reverb's writers complain on every append.
_FRAMES_PER_FLUSH = 50
_SERVER_TIMEOUT_SECONDS = 30
_NUMPY_OBSERVERS = (
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    reverb_utils.ReverbTrajectorySequenceObserver,
)

Observer = Union[
    reverb_utils.ReverbAddEpisodeObserver,
    reverb_utils.ReverbAddTrajectoryObserver,
    Callable[[trajectory.Trajectory], None],
]


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    reverb_observer: Observer,
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    validation: str = 'strict',
    terminal_discount: str = 'step',
    invalid_episodes: str = 'raise',
    nan: str = 'report',
    report: Optional[report_lib.ConversionReport] = None,
) -> int:
  """Pushes RLDS data to a Reverb server, as TF-Agents trajectories.

  After `tf_agents.replay_buffers.rlds_to_reverb` (TF-Agents 0.19.0). Returns
  when the server has confirmed every item, and logs how many it inserted. An
  episode is checked whole before any of it is handed over. On an error the
  episodes before it are in the table, and the observer is empty: it can be
  used again.

  A warning, with numbers, says where the table was too small for the data,
  where a terminal episode's last transition has a discount other than 0, where
  there is NaN, and which episodes were skipped.

  Args:
    rlds_data: see `convert_rlds_to_trajectories`.
    reverb_observer: a `ReverbAddTrajectoryObserver`, `ReverbAddEpisodeObserver`
      or `ReverbTrajectorySequenceObserver`; or any callable that takes a frame
      and has `get_table_signature`, `flush` and `reset` as these have.
    policy_info_fn: see `convert_rlds_to_trajectories`. Left out, with a
      warning, where the table's signature has no `policy_info`.
    validation: see `convert_rlds_to_trajectories`.
    terminal_discount: see there.
    invalid_episodes: see there.
    nan: see there.
    report: a new `ConversionReport` to fill, see there; it also says what the
      server confirmed.

  Returns:
    The number of frames handed to the observer, which is the number of steps of
    the episodes that were not skipped. How many items the observer makes of
    them is its own affair; `report.inserted_items` says.

  Raises:
    ValueError: if `rlds_data` has no RLDS steps or no episodes at all (unless
      `validation="tf_agents"`), or they lack a feature; if the signature of
      the observer's table does not fit the data (a `SpecMismatchError`, which
      lists each difference by path); or what the observer raises.
    InvalidArgumentError: on an invalid episode.
  """
  report = report or report_lib.ConversionReport()
  tables = _tables(reverb_observer)
  signature = reverb_observer.get_table_signature()
  if policy_info_fn and not _has_policy_info(signature):
    logging.warning(
        'The signature of the table has no policy_info, so that of'
        ' policy_info_fn is left out. Create the table with'
        ' create_trajectory_data_spec(rlds_data, policy_info_fn) to keep it.'
    )
    policy_info_fn = None
  specs.check_signature(
      signature, specs.create_trajectory_data_spec(rlds_data, policy_info_fn)
  )
  blocks = conversion.trajectory_blocks(
      rlds_data,
      policy_info_fn,
      validation=validation,
      terminal_discount=terminal_discount,
      invalid_episodes=invalid_episodes,
      nan=nan,
      report=report,
  )
  try:
    frames = _hand_over(blocks, reverb_observer)
    reverb_observer.flush()
  except BaseException:
    _empty(reverb_observer)
    raise
  if not frames and not report.skipped_episodes and validation == 'strict':
    raise ValueError('No dataset representing RLDS steps exist in the data.')
  _say_what_happened(frames, tables, _tables(reverb_observer), report)
  return frames


def _hand_over(blocks: tf.data.Dataset, observer: Observer) -> int:
  """Calls `observer` with each frame of `blocks`; returns their number."""
  # What is not ours to know gets the tensors that TF-Agents gives it.
  as_leaf = (
      (lambda leaf: leaf)
      if type(observer) in _NUMPY_OBSERVERS
      else tf.convert_to_tensor
  )
  structure = blocks.element_spec.trajectory
  frames = 0
  unflushed = 0
  for block in blocks.as_numpy_iterator():
    for leaves in zip(*tree.flatten(block.trajectory)):
      observer(tree.unflatten_as(structure, [as_leaf(leaf) for leaf in leaves]))
      frames += 1
      unflushed += 1
      if unflushed == _FRAMES_PER_FLUSH:
        observer.flush()
        unflushed = 0
  return frames


def _empty(observer: Observer) -> None:
  """Leaves `observer` as it was when it was new: nothing cached."""
  observer.reset(write_cached_steps=False)
  # ReverbAddEpisodeObserver.reset still takes its writer to have data; closing
  # and opening the observer mends that.
  if type(observer) in _NUMPY_OBSERVERS:
    observer.close()
    observer.open()


def _tables(observer: Observer) -> Dict[str, Any]:
  """Returns the server's `TableInfo`s of the observer's tables, by name."""
  if type(observer) not in _NUMPY_OBSERVERS:
    return {}
  # TF-Agents has no public name for the tables of an observer.
  names = observer._table_names  # pylint: disable=protected-access
  infos = observer.py_client.server_info(timeout=_SERVER_TIMEOUT_SECONDS)
  return {name: infos[name] for name in names}


def _has_policy_info(signature) -> bool:
  return signature is None or bool(
      tf.nest.flatten(getattr(signature, 'policy_info', ()))
  )


def _say_what_happened(frames, before, after, report) -> None:
  """Logs the outcome of a push; notes in `report` what the tables took in."""
  logging.info('Handed %d trajectories to the Reverb observer.', frames)
  for name, table in after.items():
    inserted = _inserts(table) - _inserts(before[name])
    report.inserted_items[name] = inserted
    logging.info(
        'The server confirmed %d items inserted into table %r, which now holds'
        ' %d.', inserted, name, table.current_size,
    )
    evicted = before[name].current_size + inserted - table.current_size
    if evicted > 0 and table.current_size == table.max_size:
      logging.warning(
          'Table %r is too small: %d items were inserted beside the %d it held,'
          ' but its max_size is %d, so %d items were removed. Create the table'
          ' with a larger max_size.',
          name, inserted, before[name].current_size, table.max_size, evicted,
      )
  if report.bootstrapped_terminals:
    logging.warning(
        'In %d terminal episodes (the first is episode %d) the last transition'
        ' has a discount other than 0, so a learner bootstraps through the'
        ' terminal state. terminal_discount="transition" makes it 0.',
        len(report.bootstrapped_terminals), report.bootstrapped_terminals[0],
    )
  if report.nan_counts:
    logging.warning(
        'The data holds NaN: %s. nan="invalid" makes that an error.',
        ', '.join(f'{n} in {field}' for field, n in report.nan_counts.items()),
    )
  if report.skipped_episodes:
    logging.warning(
        'Skipped %d invalid episodes. The first: %s',
        len(report.skipped_episodes), report.skipped_episodes[0].reason,
    )


def _inserts(table) -> int:
  return table.rate_limiter_info.insert_stats.completed
