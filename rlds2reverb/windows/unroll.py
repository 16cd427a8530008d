"""Disjoint chunks of an episode for recurrent agents, and their burn-in."""

from typing import Any, Dict, NamedTuple, Optional

import rlds
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import gathering
from rlds2reverb.episodes import paths
from rlds2reverb.windows import rows as rows_lib
from rlds2reverb.windows import transitions

RESIDUALS = ('repeat_last', 'overlap', 'drop', 'null')
INITIAL_STATE = 'initial_state'

# Of these `split_burn_in` makes parts.
_FIELDS = (
    rlds.OBSERVATION, rlds.ACTION, rlds.REWARD, rlds.IS_TERMINAL, 'weight'
)


class BurnIn(NamedTuple):
  """The parts of sequences, after the R2D2 of DI-engine.

  Rows of a sequence of L, with a burn-in of b and n-step targets:

      burn_in_observation   [:b + n]    warms up the state of the target network
      main_observation      [b:L - n]   where the loss is
      target_observation    [b + n:]    n rows after the main ones
      action, reward        [b:L - n]
      is_terminal, weight   [b:]

  What the sequences do not have is `()`.
  """

  burn_in_observation: Any
  main_observation: Any
  target_observation: Any
  action: Any
  reward: Any
  is_terminal: Any
  weight: Any


def unroll(
    steps: Any,
    unroll_length: int,
    residual: str = 'repeat_last',
    *,
    state: Optional[str] = None,
    mask_name: str = transitions.MASK,
) -> Dict[str, Any]:
  """Cuts the transitions of one episode into disjoint chunks.

  After `get_train_sample` of DI-engine. Chunks of 4 of an episode of 6
  transitions; `.` is a row of zeros that `is_last`, and lower case is masked:

      "drop"           X1 X2 X3 X4
      "repeat_last"    X1 X2 X3 X4    X5 X6 x6 x6
      "overlap"        X1 X2 X3 X4    X3 X4 X5 X6
      "null"           X1 X2 X3 X4    X5 X6  .  .

  Where no rows are left over all four are the same. An episode shorter than a
  chunk makes none with `"drop"`, and with `"overlap"` the one of `"null"`.

  Args:
    steps: the steps of one episode, a nested data set or stacked `[T + 1, ...]`
      tensors.
    unroll_length: `L`, how many transitions a chunk has: an int that is known
      when the pipeline is built.
    residual: what becomes of the rows left over, one of the four above.
    state: the path of the field that holds the recurrent state with which each
      step's action was chosen.
    mask_name: another name for `mask`.

  Returns:
    The fields of `transition_rows`, every leaf `[C, L, ...]`; `mask`, bool
    `[C, L]`, True where a row is real; and with `state`, `initial_state`,
    `[C, ...]`: the state of each chunk's first row, zeros at the start of the
    episode. An episode without transitions has no chunks.

  Raises:
    ValueError: if `unroll_length` is not positive, `residual` is not one of the
      four, there is no field `state`, or there is one with the name of a column
      that is added.
  """
  checks.check_positive('unroll_length', unroll_length)
  checks.check_choice('residual', residual, RESIDUALS)
  rows = transitions.transition_rows(steps)
  states = None if state is None else paths.get(rows, state)
  length = gathering.num_rows(rows)
  chunks = length // unroll_length
  if residual != 'drop':
    chunks = (length + unroll_length - 1) // unroll_length
  starts = tf.range(chunks) * unroll_length
  if residual == 'overlap':
    starts = tf.minimum(starts, tf.maximum(length - unroll_length, 0))
  index = gathering.window_index(starts, unroll_length)
  mask = gathering.is_inside(index, length)
  if residual == 'drop':
    chunked = gathering.take(rows, index)
  else:
    chunked = gathering.take_filled(
        rows,
        index,
        length,
        after='repeat' if residual == 'repeat_last' else 'zeros',
    )
  if residual in ('overlap', 'null') and rlds.IS_LAST in rows:
    chunked[rlds.IS_LAST] |= ~mask
  rows_lib.add_column(chunked, mask_name, mask)
  if state is not None:
    initial = state_at(states, starts, starts > 0)
    rows_lib.add_column(chunked, INITIAL_STATE, initial)
  return chunked


def state_at(states: Any, starts: tf.Tensor, goes_on: tf.Tensor) -> Any:
  """Returns the states at `starts`, zeros where a chunk begins an episode.

  Args:
    states: a nest of `[N, ...]`.
    starts: `[C]`, the first row of each chunk.
    goes_on: bool `[C]`, False where the chunk begins an episode.

  Returns:
    The nest, every leaf `[C, ...]`.
  """
  return gathering.take_filled(
      states, tf.where(goes_on, starts, -1), gathering.num_rows(states)
  )


def split_burn_in(
    sequences: Dict[str, Any],
    burn_in: int,
    n_step: Optional[int] = None,
    *,
    time_major: bool = False,
) -> BurnIn:
  """Splits sequences into burn-in, main and target parts.

  After R2D2 in DI-engine. burn_in=2, n_step=2, L=6:

      row                    0  1  2  3  4  5
      burn_in_observation    o0 o1 o2 o3
      main_observation             o2 o3
      target_observation                 o4 o5
      action, reward               2  3
      is_terminal, weight          2  3  4  5

  Args:
    sequences: a dict with `observation`, `action` and, where there are any,
      `reward`, `is_terminal` and `weight`, every leaf `[B, L, ...]`, as
      batches of what `unroll` returns.
    burn_in: how many rows only warm up the recurrent state.
    n_step: how many rows the targets lie ahead. Without it there is no target
      part, and the main part is all that follows the burn-in.
    time_major: whether the leaves are `[L, B, ...]`.

  Returns:
    The `BurnIn`, in the same order of dimensions.

  Raises:
    ValueError: if `burn_in` is negative, `n_step` is not positive, or `L` is
      not known, not that of all fields, or less than `burn_in + 2 * n_step`
      (without n_step, `burn_in + 1`).
  """
  if not hasattr(burn_in, '__index__') or burn_in < 0:
    raise ValueError(
        f'burn_in must be an integer of 0 or more, but is {burn_in!r}.'
    )
  if n_step is not None:
    checks.check_positive('n_step', n_step)
  for field in (rlds.OBSERVATION, rlds.ACTION):
    paths.get(sequences, field)
  axis = 0 if time_major else 1
  length = tf.nest.flatten(sequences[rlds.OBSERVATION])[0].shape[axis]
  ahead = n_step or 0
  needed = burn_in + (2 * n_step if n_step else 1)
  if length is None or length < needed:
    raise ValueError(
        f'Sequences of length {length} are too short for burn_in={burn_in} and'
        f' n_step={n_step}: they need at least {needed} rows, known when the'
        ' pipeline is built. Choose longer sequences or a shorter burn-in.'
    )
  used = {field: sequences[field] for field in _FIELDS if field in sequences}
  for name, leaf in paths.leaves(used).items():
    if leaf.shape[axis] not in (length, None):
      raise ValueError(
          f'Sequences must have one length in all fields, but {name} has'
          f' {leaf.shape[axis]} rows, and observation has {length}.'
      )

  def part(field, start, stop):
    def cut(leaf):
      return leaf[start:stop] if time_major else leaf[:, start:stop]

    if field not in sequences:
      return ()
    return tf.nest.map_structure(cut, sequences[field])

  main = slice(burn_in, length - ahead)
  return BurnIn(
      burn_in_observation=part(rlds.OBSERVATION, 0, burn_in + ahead),
      main_observation=part(rlds.OBSERVATION, main.start, main.stop),
      target_observation=(
          part(rlds.OBSERVATION, burn_in + ahead, length) if n_step else ()
      ),
      action=part(rlds.ACTION, main.start, main.stop),
      reward=part(rlds.REWARD, main.start, main.stop),
      is_terminal=part(rlds.IS_TERMINAL, burn_in, length),
      weight=part('weight', burn_in, length),
  )
