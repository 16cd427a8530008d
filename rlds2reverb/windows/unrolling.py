"""Chunks of an episode for recurrent agents, and their burn-in."""

from typing import Any, NamedTuple

import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import rows as rows_lib
from rlds2reverb.episodes import windows as windows_lib
from rlds2reverb.windows import transitions

_REFUSED_ENDS = {
    windows_lib.EndOfEpisode.CROSS: (
        'Chunks are of one episode. For chunks across episodes use'
        ' convert_rlds_to_fragments.'
    )
}
_WEIGHT = 'weight'


class Chunks(NamedTuple):
  """Chunks of `L` consecutive transition rows.

  `unroll` returns the chunks of one episode; `dataset.unbatch().batch(B)` makes
  batches of them, which `split_burn_in` takes.

  Attributes:
    columns: the columns of the rows, every leaf `[C, L, ...]`.
    mask: bool `[C, L]`: True where a row is real, False for padding.
    initial_state: a nest of `[C, ...]`: the recurrent state at the first row of
      each chunk; or `()`.
  """

  columns: dict[str, Any]
  mask: tf.Tensor
  initial_state: Any = ()

  def swap_time(self) -> 'Chunks':
    """Returns batch-major chunks time-major, `[L, C, ...]`, or vice versa."""
    return self._replace(
        columns=rows_lib.swap_time(self.columns),
        mask=rows_lib.swap_time(self.mask),
    )


class BurnIn(NamedTuple):
  """The result of `split_burn_in`."""

  burn_in_observation: Any
  main_observation: Any
  target_observation: Any
  action: Any
  reward: Any
  is_terminal: Any
  weight: Any
  columns: dict[str, Any]
  mask: tf.Tensor
  initial_state: Any


def unroll(
    episode: Any,
    windows: windows_lib.Windows,
    *,
    state: paths.Path | None = None,
    time_major: bool = False,
) -> Chunks:
  """Cuts the transition rows of one episode into chunks of one length.

  This is the last function of a chain on rows. Chunks are disjoint, as in
  `get_train_sample` of DI-engine, or overlap, as in R2D2:

      Windows(80, stride=80, end='repeat_last')
      Windows(80, stride=40, end='repeat_last')

  A row of padding has `is_last`, and is zero otherwise.

  Args:
    episode: the `TransitionRows` of one episode, or its steps, a nested data
      set or stacked `[T + 1, ...]` tensors.
    windows: the chunks to cut, of `L` transitions, with any end but `"cross"`.
    state: the path of the column of the recurrent state from which each row's
      action was computed.
    time_major: whether columns and mask are `[L, C, ...]`.

  Returns:
    The `Chunks`, with every column of the rows, and with an initial state if
    `state` is given: the state stored with each chunk's first row, or zeros at
    the start of the episode. An episode without transitions has no chunks.

  Raises:
    ValueError: if `windows` has another type or crosses episodes, if there is
      no column `state`, or if `episode` is neither rows nor steps.
    InvalidArgumentError: if fields or columns differ in length.
  """
  windows_lib.check_windows(windows, _REFUSED_ENDS)
  columns = transitions.as_rows(episode).columns
  states = None if state is None else paths.get(columns, state)
  length = rows_lib.num_rows(columns)
  starts = windows.find(length[tf.newaxis]).start
  fill = windows.fill if windows.pads_episodes else 'repeat'
  chunked, mask = windows_lib.take_windows(
      columns, starts, windows.length, length, fill=fill
  )
  if fill == 'zeros' and rlds.IS_LAST in chunked:
    chunked[rlds.IS_LAST] |= ~mask
  initial_state = ()
  if states is not None:
    has_state = starts > 0
    if rlds.IS_FIRST in columns:
      # If rows were cropped, the first one may be in mid-episode.
      has_state = ~rows_lib.take(columns[rlds.IS_FIRST], starts)
    initial_state = rows_lib.fill_unless(
        has_state, rows_lib.take(states, starts)
    )
  chunks = Chunks(chunked, mask, initial_state)
  return chunks.swap_time() if time_major else chunks


def split_burn_in(
    chunks: Chunks,
    burn_in: int,
    n_step: int | None = None,
    *,
    time_major: bool = False,
) -> BurnIn:
  """Splits chunks into burn-in, main and target parts.

  After R2D2 in DI-engine. burn_in=2, n_step=2, L=6:

      row                     0  1  2  3  4  5
      burn_in_observation     o0 o1 o2 o3
      main_observation              o2 o3
      target_observation                  o4 o5
      action, reward, mask          2  3
      all other columns             2  3
      is_terminal, weight           2  3  4  5

  `n_step` only defines how far ahead the targets' observations are. To sum
  rewards, apply `n_step_transitions` to the episode before `unroll`.

  Args:
    chunks: the `Chunks` that `unroll` returns, or batches of them: every leaf
      `[B, L, ...]`, or of a single chunk `[L, ...]`. They must have
      `observation` and `action`.
    burn_in: the number of rows that only warm up the recurrent state.
    n_step: how many rows the targets lie ahead. Without it there is no target
      part, and the main part is everything after the burn-in.
    time_major: whether the leaves are `[L, B, ...]`.

  Returns:
    A named tuple of the parts, in the same order of dimensions. Missing parts
    are `()`. For a sequence of L rows, a burn-in of b and targets n rows ahead,
    the parts have these rows:

    * burn_in_observation: `[:b + n]`: warms up the state of the target network.
    * main_observation: `[b:L - n]`: the rows of the loss.
    * target_observation: `[b + n:]`: n rows after the main ones.
    * action, reward, mask, and columns, the dict of all others: `[b:L - n]`.
    * is_terminal, weight: `[b:]`.
    * initial_state: unchanged: the state before the burn-in.

  Raises:
    ValueError: if `chunks` is of another type, `burn_in` is negative, `n_step`
      is not positive, or `L` is not static, differs between columns, or is less
      than `burn_in + 2 * n_step` (without n_step, `burn_in + 1`).
  """
  if not isinstance(chunks, Chunks):
    raise ValueError(
        'split_burn_in takes the Chunks that unroll returns, but was given a'
        f' {type(chunks).__name__}. Make Chunks of other sequences:'
        ' Chunks(columns, mask, initial_state).'
    )
  checks.check_not_negative('burn_in', burn_in)
  if n_step is not None:
    checks.check_positive('n_step', n_step)
  columns = dict(chunks.columns)
  for field in (rlds.OBSERVATION, rlds.ACTION):
    paths.get(columns, field)
  is_batched = chunks.mask.shape.rank == 2
  axis = 1 if is_batched and not time_major else 0
  length = chunks.mask.shape[axis]
  ahead = n_step or 0
  min_length = burn_in + (2 * n_step if n_step else 1)
  if length is None or length < min_length:
    raise ValueError(
        f'Sequences of length {length} are too short for burn_in={burn_in} and'
        f' n_step={n_step}: they need at least {min_length} rows, known when'
        ' the pipeline is built. Choose longer sequences or a shorter burn-in.'
    )
  for name, leaf in paths.leaves(columns).items():
    if leaf.shape[axis] not in (length, None):
      raise ValueError(
          f'Sequences must have one length in all fields, but {name} has'
          f' {leaf.shape[axis]} rows, and the mask has {length}.'
      )

  def part(nest, start, stop):
    return tf.nest.map_structure(
        lambda leaf: leaf[:, start:stop] if axis else leaf[start:stop], nest
    )

  observation = columns.pop(rlds.OBSERVATION)
  is_terminal = columns.pop(rlds.IS_TERMINAL, ())
  weight = columns.pop(_WEIGHT, ())
  main = part(columns, burn_in, length - ahead)
  return BurnIn(
      burn_in_observation=part(observation, 0, burn_in + ahead),
      main_observation=part(observation, burn_in, length - ahead),
      target_observation=(
          part(observation, burn_in + ahead, length) if n_step else ()
      ),
      action=main.pop(rlds.ACTION),
      reward=main.pop(rlds.REWARD, ()),
      is_terminal=part(is_terminal, burn_in, length),
      weight=part(weight, burn_in, length),
      columns=main,
      mask=part(chunks.mask, burn_in, length - ahead),
      initial_state=chunks.initial_state,
  )
