"""Reverb tables by what they are for.

Each function returns an ordinary `reverb.Table`, for `reverb.Server` or for
`reverb_tables` of `write_reverb_checkpoint`. Which items go into it is said by
the `TableItems` of the same table name.

None of these tables holds an insert back: their rate limiter is `MinSize`. One
that does, such as `SampleToInsertRatio` or that of `reverb.Table.queue`, blocks
for ever when recorded data is written before anything samples it. So a table
that is full removes items. `write_rlds_to_reverb(..., overflow='refuse')` says
so before anything is written.
"""

from __future__ import annotations

import math
from typing import Any, List

from tf_agents.specs import tensor_spec

from rlds2reverb.episodes import checks
from rlds2reverb.replay import reverb


def uniform_table(
    table_name: str,
    data_spec: Any,
    max_size: int,
    *,
    min_size_to_sample: int = 1,
) -> reverb.Table:
  """Creates a table whose items are all equally likely, however often drawn.

  When it is full, it removes the oldest item: with `max_size=3` it holds items
  2, 3 and 4 after items 0 to 4 were written.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that the table holds.
    min_size_to_sample: how many items it must hold before it is sampled.

  Raises:
    ValueError: if an argument is not valid.
  """
  return _table(
      table_name,
      data_spec,
      max_size,
      sampler=reverb.selectors.Uniform(),
      min_size_to_sample=min_size_to_sample,
  )


def prioritized_table(
    table_name: str,
    data_spec: Any,
    max_size: int,
    *,
    priority_exponent: float = 0.6,
    min_size_to_sample: int = 1,
) -> reverb.Table:
  """Creates a table that draws items in proportion to their priorities.

  An item of priority p is drawn with probability `p**priority_exponent / sum`,
  as in "Prioritized Experience Replay" (Schaul et al., 2016): with priorities
  1, 4, 9, 16 and an exponent of 0.5, 0.1, 0.2, 0.3, 0.4. An item of priority 0
  is never drawn. If all priorities are 0, Reverb draws uniformly, which
  `sample_reverb_servers` refuses. When the table is full, it removes the oldest
  item.

  `TableItems.priority` gives the first priorities, `PriorityUpdater` later
  ones, and `importance_weights` what corrects the loss for them.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that the table holds.
    priority_exponent: the exponent, 0 (uniform) or more.
    min_size_to_sample: how many items it must hold before it is sampled.

  Raises:
    ValueError: if an argument is not valid.
  """
  if not 0 <= priority_exponent < math.inf:
    raise ValueError(
        f'priority_exponent of table {table_name!r} must be a number from 0'
        f' up, but is {priority_exponent}.'
    )
  return _table(
      table_name,
      data_spec,
      max_size,
      sampler=reverb.selectors.Prioritized(priority_exponent),
      min_size_to_sample=min_size_to_sample,
  )


def queue_table(table_name: str, data_spec: Any, max_size: int) -> reverb.Table:
  """Creates a table that gives every item once, in the order of writing.

  Unlike `reverb.Table.queue` it does not hold the writer back: when it is full,
  it removes the oldest item, which is then never sampled.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that the table holds.

  Raises:
    ValueError: if an argument is not valid.
  """
  return _table(
      table_name,
      data_spec,
      max_size,
      sampler=reverb.selectors.Fifo(),
      max_times_sampled=1,
  )


def one_pass_table(
    table_name: str, data_spec: Any, max_size: int
) -> reverb.Table:
  """Creates a table that gives every item once, in a random order.

  This is drawing without replacement: an item is removed when it is sampled.
  Each draw is uniform over the items that are left, so fill the table before
  you sample it.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that the table holds.

  Raises:
    ValueError: if an argument is not valid.
  """
  return _table(
      table_name,
      data_spec,
      max_size,
      sampler=reverb.selectors.Uniform(),
      max_times_sampled=1,
  )


def epoch_tables(
    table_name: str, data_spec: Any, max_size: int, num_epochs: int
) -> List[reverb.Table]:
  """Creates a `one_pass_table` for each epoch.

  Reverb itself knows only how often an item may be sampled. With
  `max_times_sampled=2` every item is sampled twice, but some come twice before
  others come at all. So each epoch is a table of its own, in an order of its
  own, and the tables are sampled one after the other:

      items        0 1 2 3
      name_0       2 0 3 1      every item once
      name_1       1 3 2 0      every item once more

  Fill them in one call of `write_rlds_to_reverb` or `write_reverb_checkpoint`,
  with `TableItems` for each: then the server stores the rows once for all of
  them, and an epoch costs the memory of its items alone.

  Args:
    table_name: the tables are called this, `_`, and the number of the epoch.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that each table holds.
    num_epochs: the number of tables.

  Raises:
    ValueError: if an argument is not valid.
  """
  checks.check_positive('num_epochs', num_epochs)
  return [
      one_pass_table(f'{table_name}_{epoch}', data_spec, max_size)
      for epoch in range(num_epochs)
  ]


def top_k_table(
    table_name: str,
    data_spec: Any,
    max_size: int,
    *,
    min_size_to_sample: int = 1,
) -> reverb.Table:
  """Creates a table that keeps the `max_size` items of the highest priority.

  The priority is the rank of an item, such as the return of its episode. Ranks
  5, 1, 3, 3, 9, 2 and `max_size=3` leave 5, 9, 3. Of items of equal rank Reverb
  keeps the newer, where TorchRL's `MaxValueWriter` keeps the older; so a table
  whose ranks are all equal is one that removes the oldest item. Items are
  sampled uniformly.

  Args:
    table_name: the name of the table.
    data_spec: the spec of a frame, from `create_trajectory_data_spec`.
    max_size: the largest number of items that the table holds.
    min_size_to_sample: how many items it must hold before it is sampled.

  Raises:
    ValueError: if an argument is not valid.
  """
  return _table(
      table_name,
      data_spec,
      max_size,
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.MinHeap(),
      min_size_to_sample=min_size_to_sample,
  )


def _table(
    table_name,
    data_spec,
    max_size,
    *,
    sampler,
    remover=None,
    min_size_to_sample=1,
    max_times_sampled=0,
):
  """Creates a table whose signature is that of runs of frames."""
  checks.check_positive(f'max_size of table {table_name!r}', max_size)
  checks.check_positive(
      f'min_size_to_sample of table {table_name!r}', min_size_to_sample
  )
  if min_size_to_sample > max_size:
    raise ValueError(
        f'Table {table_name!r} could never be sampled: it holds at most'
        f' {max_size} items, and min_size_to_sample is {min_size_to_sample}.'
    )
  return reverb.Table(
      table_name,
      sampler=sampler,
      remover=remover or reverb.selectors.Fifo(),
      max_size=max_size,
      max_times_sampled=max_times_sampled,
      rate_limiter=reverb.rate_limiters.MinSize(min_size_to_sample),
      signature=tensor_spec.add_outer_dim(data_spec),
  )
