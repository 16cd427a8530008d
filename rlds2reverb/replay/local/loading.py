"""Puts the frames of a data set into a store, in memory or on disk."""

from typing import Optional, Tuple

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.trajectories import time_step as ts

from rlds2reverb.datasets import files
from rlds2reverb.datasets import identity as identity_lib
from rlds2reverb.datasets import pipelines
from rlds2reverb.datasets import whole
from rlds2reverb.replay import arranging
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.local import prepared
from rlds2reverb.replay.local import store as store_lib
from rlds2reverb.trajectories import options as options_lib


def load_frames(
    data: tf.data.Dataset,
    items: items_lib.TableItems,
    directory: Optional[files.PathLike] = None,
    options: Optional[options_lib.ConversionOptions] = None,
) -> store_lib.FrameStore:
  """Reads a data set once, and stores its frames.

  Args:
    data: an RLDS data set; or a data set of sequences, see
      `frames.make_frame_source`.
    items: which items there will be.
    directory: a folder on the local disk that keeps the frames. If it holds
      them already, they are not read again. By default they are in memory.
    options: how the data is converted.

  Raises:
    ValueError: if there are no items, or an argument or the data is not valid.
    FileExistsError: if `directory` holds something else, or if it cannot be
      known whether it is the same.
    InvalidArgumentError: if an episode is invalid. Nothing is kept then.
  """
  source = frames_lib.make_frame_source(data, items, options)
  if directory is None:
    return _write(source, None, None)
  directory = files.expand_local(directory, 'The folder of prepared frames')
  fingerprint, problem = _fingerprint(data, items, source.options)
  whole.put_right(directory)
  marker = prepared.read_marker(directory)
  if marker is not None:
    if fingerprint is not None and marker['made_from'] == fingerprint:
      logging.info('Using the frames prepared in %s.', directory)
      return prepared.open_store(directory)
    raise FileExistsError(
        f'{directory} holds '
        + (
            'frames of other data or with other items, or of files that have'
            ' changed since.'
            if fingerprint is not None
            else 'frames of which it cannot be known whether they are these:'
            f' {problem}. Use them as they are: give the directory in place of'
            ' the data.'
        )
        + ' Remove it, or choose another directory.'
    )
  with whole.new_folder(directory, [prepared.MARKER]) as folder:
    _write(source, folder, fingerprint)
  return prepared.open_store(directory)


def _fingerprint(data, items, options) -> Tuple[Optional[str], str]:
  """Returns what tells the frames from others, or None and why not."""
  pipeline, problem = pipelines.fingerprint(data)
  if pipeline is None:
    return None, problem
  try:
    return (
        identity_lib.fingerprint(
            str(data.element_spec),
            pipeline,
            items,
            {'policy_info_fn': options.policy_info_fn, 'rules': options.rules},
        ),
        '',
    )
  except ValueError as e:
    return None, str(e).rstrip('.')


def _write(source, folder, fingerprint) -> store_lib.FrameStore:
  [items] = source.tables
  writer = store_lib.StoreWriter(source.spec, folder)
  logging.info(
      'Storing frames of %d bytes%s.',
      writer.format.frame_bytes,
      ' and their strings' if writer.format.has_strings else '',
  )
  arranger = arranging.Arranger([items], of_sequences=source.of_sequences)
  runs = _RunBuilder(items, source)
  try:
    for arranged in arranger.arrange(source.frames()):
      writer.append(arranged.frames)
      runs.add(arranged)
    form = store_lib.Form.of(items.windows)
    store, checksums = writer.finish(form, *runs.finish())
    if folder is not None:
      prepared.write_metadata(folder, store, checksums, fingerprint)
    return store
  finally:
    writer.close()


def check_has_items(
    num_frames: int,
    num_items: int,
    sequence_length: Optional[int],
    longest: Optional[int] = None,
) -> None:
  """Raises a ValueError if there is nothing to sample.

  Args:
    num_frames: how many frames there are.
    num_items: how many items.
    sequence_length: how many frames an item has.
    longest: the number of frames of the longest episode, if that is known.
  """
  if not num_frames:
    raise ValueError(
        'There are no frames in the data set, so there is nothing to sample. Is'
        ' it empty, or were all its episodes left out?'
    )
  if not num_items:
    raise ValueError(
        f'No item fits: every episode has fewer than {sequence_length} frames'
        + (f'; the longest has {longest}' if longest else '')
        + '. Choose shorter windows, or an end of "pad".'
    )


class _RunBuilder:
  """Collects the runs of items, and their priorities."""

  def __init__(self, items, source):
    self._items = items
    self._has_reward = (
        isinstance(source.spec.reward, tf.TypeSpec)
        and source.spec.reward.shape.rank == 0
        and source.spec.reward.dtype.is_floating
    )
    self._runs = []
    self._priorities = []
    # Whether the last run of items continues in the next block.
    self._goes_on = False

  def add(self, arranged) -> None:
    """Takes note of the items of a block."""
    pieces, [items], [priorities] = (
        arranged.pieces,
        arranged.items,
        arranged.priorities,
    )
    if callable(self._items.priority) or self._items.priority != 1.0:
      self._priorities.append(priorities)
    starts = [0]
    if not self._items.crosses_episodes:
      # A piece whose episode does not end continues in the next piece.
      starts = np.flatnonzero(np.concatenate([[True], pieces.is_end[:-1]]))
    runs = store_lib.Runs(
        pieces.origin[starts],
        *[
            np.add.reduceat(values, starts)
            for values in (
                pieces.num_frames,
                np.bincount(items.piece, minlength=len(pieces.index)),
                self._returns(arranged),
            )
        ],
    )
    if self._goes_on:
      last = self._runs[-1]
      for name in ('num_rows', 'num_items', 'undiscounted_return'):
        getattr(last, name)[-1] += getattr(runs, name)[0]
      runs = store_lib.Runs(*[values[1:] for values in runs])
    if len(runs.first_row):
      self._runs.append(runs)
    self._goes_on = self._items.crosses_episodes or not pieces.is_end[-1]

  def finish(self) -> Tuple[store_lib.Runs, Optional[np.ndarray]]:
    """Returns the runs that have items, and the priorities.

    Raises:
      ValueError: if there are no items.
    """
    if not self._runs:
      check_has_items(0, 0, None)
    runs = store_lib.Runs(*map(np.concatenate, zip(*self._runs)))
    check_has_items(
        runs.num_rows.sum(),
        runs.num_items.sum(),
        self._items.sequence_length,
        runs.num_rows.max(),
    )
    priorities = np.concatenate(self._priorities) if self._priorities else None
    return runs, priorities

  def _returns(self, arranged) -> np.ndarray:
    """Returns the sum of the rewards of each piece, float64 `[P]`."""
    pieces, frames = arranged.pieces, arranged.block.frames
    if not self._has_reward:
      return np.full(len(pieces.index), np.nan)
    is_transition = frames.step_type != ts.StepType.LAST
    rewards = np.where(is_transition, frames.reward.astype(np.float64), 0.0)
    return np.add.reduceat(rewards, pieces.begin)
