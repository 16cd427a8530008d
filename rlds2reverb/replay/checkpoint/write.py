"""Writes RLDS data as a Reverb checkpoint, without a server."""

from __future__ import annotations

import dataclasses
import sys
from typing import (
    Any,
    Dict,
    Optional,
    Sequence,
    Union,
)

from absl import logging
import numpy as np
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.datasets import files
from rlds2reverb.episodes import private
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import new_checkpoint
from rlds2reverb.replay.checkpoint import part_keys
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs


@dataclasses.dataclass(frozen=True)
class TableSettings:
  """The settings of a Reverb table that a checkpoint will hold.

  Attributes:
    table_name: the name of the table.
    sampler: a Reverb selector. The default, None, samples uniformly.
    remover: a Reverb selector. The default, None, removes the oldest item.
    rate_limiter: a Reverb rate limiter. The default, None, is a `MinSize` of 1.
    max_size: the largest number of items that the table holds. The default is
      the number of items that are written.
    max_times_sampled: how often an item is sampled before it is removed; 0 for
      no limit.
  """

  table_name: str
  sampler: Optional[Any] = None
  remover: Optional[Any] = None
  rate_limiter: Optional[Any] = None
  max_size: Optional[int] = None
  max_times_sampled: int = 0


@options_lib.takes_options
def write_reverb_checkpoint(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    tables: Union[items_lib.TableItems, Sequence[items_lib.TableItems]],
    *,
    reverb_tables: Sequence[Union[reverb.Table, TableSettings]] = (),
    options: Optional[options_lib.ConversionOptions] = None,
) -> Dict[str, int]:
  """Writes RLDS data as a Reverb checkpoint, without a server.

  A server that starts from the checkpoint holds the items that
  `write_rlds_to_reverb` would have inserted into it:

      rlds2reverb.write_reverb_checkpoint(
          rlds_data, '/data/cartpole', rlds2reverb.TableItems('transitions'))
      server = rlds2reverb.restore_reverb_server('/data/cartpole')
      replay_buffer = rlds2reverb.open_replay_buffer(
          None, reverb_server=server)

  The memory that this takes does not grow with the data, apart from 8 bytes for
  each item and each chunk, by which duplicate keys are found.

  Args:
    rlds_data: the data, as in `write_rlds_to_reverb`.
    directory: where the checkpoint goes: a path, or a URL that TensorFlow can
      write to. The directory must not exist, or be empty.
    tables: which items go into which table.
    reverb_tables: the settings of the tables, for those that should not have
      the defaults of `TableSettings`. A `reverb.Table` keeps its signature; for
      a `TableSettings` the signature is inferred from the data.
    options: how the data is converted, and what the keys of items depend on.

  Returns:
    The number of items of each table, by the name of the table.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    OSError: if the checkpoint cannot be written. Nothing of it is left then.
    ValueError: if a table is described twice or no items go into it, if its
      signature does not fit the data, if it is too small, if two items have the
      same key, or if an argument or the data is not valid.
    InvalidArgumentError: if an episode is invalid. Nothing of the checkpoint is
      left then.
  """
  directory = files.expand(directory)
  source = frames_lib.make_frame_source(rlds_data, tables, options)
  layout = layout_lib.Layout.of(source)
  described = describe_tables(list(layout.num_items), reverb_tables)
  for table in described.values():
    if not isinstance(table, TableSettings):
      specs.check_signature(table.info.signature, source.spec)
  with new_checkpoint.new_checkpoint(directory) as path:
    keys_by_kind = new_checkpoint.write_batches(
        path, layout.batches(source.frames())
    )
    for kind, keys in keys_by_kind.items():
      part_keys.check_distinct(kind, np.sort(keys))
    new_checkpoint.write_tables(
        path,
        [
            table_checkpoint(table, layout.num_items[name], source.spec)
            for name, table in described.items()
        ],
    )
  for name, count in layout.num_items.items():
    logging.info('Wrote %d items of table %r to %s.', count, name, directory)
  return layout.num_items


def describe_tables(
    names: Sequence[str],
    described: Sequence[Union[reverb.Table, TableSettings]],
) -> Dict[str, Union[reverb.Table, TableSettings]]:
  """Returns the settings of each table.

  Args:
    names: the names of the tables.
    described: see `reverb_tables` of `write_reverb_checkpoint`.

  Returns:
    The `reverb.Table` or `TableSettings` of each of `names`.

  Raises:
    ValueError: if a table is described twice, or is not one of `names`.
  """
  tables = {name_of(table): table for table in described}
  if len(tables) != len(described):
    raise ValueError('reverb_tables describes a table twice.')
  unknown = sorted(tables.keys() - set(names))
  if unknown:
    raise ValueError(
        f'reverb_tables describes table {unknown[0]!r}, which no items go into.'
        f' The tables with items are {names}.'
    )
  return {name: tables.get(name) or TableSettings(name) for name in names}


def name_of(table: Union[reverb.Table, TableSettings]) -> str:
  """Returns the name of a table."""
  return table.table_name if isinstance(table, TableSettings) else table.name


def table_checkpoint(
    table: Union[reverb.Table, TableSettings], num_items: int, spec: Any
) -> protos.PriorityTableCheckpoint:
  """Returns the record of a table.

  Args:
    table: its settings.
    num_items: how many items it holds.
    spec: the spec of a frame, a `Trajectory`.

  Raises:
    ValueError: if the table is too small.
  """
  info = _table_info(table, num_items, spec)
  if num_items > info.max_size:
    raise ValueError(
        f'Table {info.name!r} is too small: its max_size is {info.max_size},'
        f' and the data makes {num_items} items. Raise max_size.'
    )
  limiter = info.rate_limiter_info
  checkpoint = protos.PriorityTableCheckpoint(
      table_name=info.name,
      max_size=info.max_size,
      max_times_sampled=info.max_times_sampled,
      rate_limiter=protos.RateLimiterCheckpoint(
          samples_per_insert=limiter.samples_per_insert,
          min_diff=limiter.min_diff,
          max_diff=limiter.max_diff,
          min_size_to_sample=limiter.min_size_to_sample,
          insert_count=num_items,
      ),
      sampler=info.sampler_options,
      remover=info.remover_options,
  )
  if info.HasField('signature'):
    checkpoint.signature.CopyFrom(info.signature)
  return checkpoint


def _table_info(table, num_items, spec) -> protos.TableInfo:
  """Returns the settings of a table as messages; see `table_checkpoint`."""
  if isinstance(table, TableSettings):
    max_size = table.max_size
    if max_size is None:
      max_size = max(num_items, 1)
    signature = tensor_spec.add_outer_dim(spec)
    if table.sampler is table.remover is table.rate_limiter is None:
      # The settings that a `reverb.Table` would have, without importing Reverb.
      return protos.TableInfo(
          name=table.table_name,
          sampler_options=protos.KeyDistributionOptions(uniform=True),
          remover_options=protos.KeyDistributionOptions(
              fifo=True, is_deterministic=True
          ),
          max_size=max_size,
          max_times_sampled=table.max_times_sampled,
          rate_limiter_info=protos.RateLimiterInfo(
              samples_per_insert=1,
              min_diff=-sys.float_info.max,
              max_diff=sys.float_info.max,
              min_size_to_sample=1,
          ),
          signature=private.encode_structure(signature),
      )
    table = reverb.Table(
        table.table_name,
        sampler=table.sampler or reverb.selectors.Uniform(),
        remover=table.remover or reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=table.rate_limiter or reverb.rate_limiters.MinSize(1),
        max_times_sampled=table.max_times_sampled,
        signature=signature,
    )
  return protos.TableInfo.FromString(table.internal_table.info())
