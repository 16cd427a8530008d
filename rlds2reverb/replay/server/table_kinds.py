"""Reverb tables for several purposes, and what their signatures say."""

from __future__ import annotations

import math
from typing import Any

from tf_agents.specs import tensor_spec
from tf_agents.trajectories import trajectory

from rlds2reverb.episodes import checks
from rlds2reverb.replay import reverb

_KINDS = ('uniform', 'prioritized', 'queue', 'one_pass', 'top_k')


def create_reverb_table(
    table_name: str,
    data_spec: Any,
    max_size: int,
    kind: str = 'uniform',
    *,
    priority_exponent: float = 0.6,
    min_size_to_sample: int = 1,
) -> reverb.Table:
  """Creates a `reverb.Table` whose items are runs of frames.

  It is for `reverb.Server`, or for `reverb_tables` of
  `write_reverb_checkpoint`. The `TableItems` of the same table name say which
  items go into it. There are five kinds:

  *   `"uniform"`: all items are equally likely, however often they were drawn.
  *   `"prioritized"`: an item of priority p is drawn with probability
      `p**priority_exponent / sum`, as in "Prioritized Experience Replay"
      (Schaul et al., 2016): with priorities 1, 4, 9, 16 and an exponent of 0.5,
      0.1, 0.2, 0.3, 0.4. An item of priority 0 is never drawn. If all
      priorities are 0, Reverb draws uniformly, which `sample_reverb_servers`
      refuses. `TableItems.priority` gives the first priorities,
      `PriorityUpdater` later ones.
  *   `"queue"`: every item comes once, in the order of writing.
  *   `"one_pass"`: every item comes once, in a random order. This is drawing
      without replacement: an item is removed when it is sampled. Each draw is
      uniform over the items that are left, so fill the table before you sample
      it. For several epochs, fill a table for each in one call: then the server
      stores the rows once for all of them. (With `max_times_sampled=2` in one
      table some items would come twice before others come at all.)
  *   `"top_k"`: the `max_size` items of the highest priority are kept, and
      sampled uniformly. The priority is the rank of an item, such as the return
      of its episode. Ranks 5, 1, 3, 3, 9, 2 and `max_size=3` leave 5, 9, 3. Of
      items of equal rank Reverb keeps the newer.

  The other kinds remove the oldest item when they are full: with `max_size=3` a
  table holds items 2, 3 and 4 after items 0 to 4 were written. None of them
  holds an insert back, because their rate limiter is `MinSize`. One that does,
  such as `SampleToInsertRatio` or that of `reverb.Table.queue`, blocks for ever
  when recorded data is written before anything samples it.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that the table holds.
    kind: how the table samples and removes items, see above.
    priority_exponent: how much priorities count in a `"prioritized"` table: 0,
      not at all, or more.
    min_size_to_sample: how many items it must hold before it is sampled.

  Raises:
    ValueError: if an argument is not valid.
  """
  checks.check_choice('kind', kind, _KINDS)
  of_table = f'of table {table_name!r}'
  checks.check_positive(f'max_size {of_table}', max_size)
  checks.check_positive(f'min_size_to_sample {of_table}', min_size_to_sample)
  if min_size_to_sample > max_size:
    raise ValueError(
        f'Table {table_name!r} could never be sampled: it holds at most'
        f' {max_size} items, and min_size_to_sample is {min_size_to_sample}.'
    )
  if not 0 <= priority_exponent < math.inf:
    raise ValueError(
        f'priority_exponent {of_table} must be a number from 0 up, but is'
        f' {priority_exponent}.'
    )
  samplers = {
      'prioritized': lambda: reverb.selectors.Prioritized(priority_exponent),
      'queue': reverb.selectors.Fifo,
  }
  is_top = kind == 'top_k'
  return reverb.Table(
      table_name,
      sampler=samplers.get(kind, reverb.selectors.Uniform)(),
      remover=reverb.selectors.MinHeap() if is_top else reverb.selectors.Fifo(),
      max_size=max_size,
      max_times_sampled=1 if kind in ('queue', 'one_pass') else 0,
      rate_limiter=reverb.rate_limiters.MinSize(min_size_to_sample),
      signature=tensor_spec.add_outer_dim(data_spec),
  )


def trajectory_signature(table_name: str, signature: Any) -> Any:
  """Returns the signature of a table, as a `Trajectory`.

  Raises:
    ValueError: if it is not the signature of trajectories.
  """
  if getattr(signature, '_fields', ()) != trajectory.Trajectory._fields:
    raise ValueError(
        f'The signature of table {table_name!r} is not of trajectories:'
        f' {signature}.'
    )
  return trajectory.Trajectory(*signature)
