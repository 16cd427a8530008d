"""Writes RLDS data as a Reverb checkpoint, without a server."""

from __future__ import annotations

from collections.abc import Sequence
import os
import sys
from typing import Any

from absl import logging
from google.protobuf import text_format
import tensorflow as tf
from tf_agents.specs import tensor_spec

from rlds2reverb.datasets import files
from rlds2reverb.episodes import tf_private
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import priorities as priorities_lib
from rlds2reverb.replay import protos
from rlds2reverb.replay import reverb
from rlds2reverb.replay.checkpoint import records as records_lib
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs

# Samples uniformly, removes the oldest item first, with a `MinSize` of 1.
_DEFAULT_TABLE = f"""
    sampler_options {{ uniform: true }}
    remover_options {{ fifo: true is_deterministic: true }}
    rate_limiter_info {{
      samples_per_insert: 1 min_size_to_sample: 1
      min_diff: {-sys.float_info.max} max_diff: {sys.float_info.max}
    }}"""


@options_lib.takes_options
def write_reverb_checkpoint(
    rlds_data: tf.data.Dataset,
    directory: files.PathLike,
    tables: items_lib.TableItems | Sequence[items_lib.TableItems],
    *,
    reverb_tables: Sequence[reverb.Table] = (),
    options: options_lib.ConversionOptions | None = None,
) -> dict[str, int]:
  """Writes RLDS data as a Reverb checkpoint, without a server.

  A server that starts from the checkpoint holds the items that
  `write_rlds_to_reverb` would have inserted into it:

      rlds2reverb.write_reverb_checkpoint(
          rlds_data, '/data/cartpole', rlds2reverb.TableItems('transitions'))
      server = rlds2reverb.restore_reverb_server('/data/cartpole')
      replay_buffer = rlds2reverb.open_replay_buffer(
          None, reverb_server=server)

  Memory use does not grow with the data.

  Args:
    rlds_data: the data, as in `write_rlds_to_reverb`.
    directory: where the checkpoint goes: a path, or a URL that TensorFlow can
      write to. The directory must not exist, or be empty.
    tables: the items of each table.
    reverb_tables: tables, for example of `create_reverb_table`, whose settings
      and signatures replace the defaults: a `max_size` of the number of items,
      uniform sampling, a `MinSize` of 1, and the signature of the data.
    options: how the data is converted, and the identity of the items.

  Returns:
    The number of items of each table, by the name of the table.

  Raises:
    BlockingIOError: if another process is writing to `directory`.
    FileExistsError: if `directory` is not empty.
    OSError: if the checkpoint cannot be written. Nothing of it remains then.
    ValueError: if `reverb_tables` has a table twice or a table without items,
      if its signature does not fit the data, if it is too small, or if an
      argument or the data is not valid.
    InvalidArgumentError: if an episode is invalid. Nothing of the checkpoint
      remains then.
  """
  directory = files.expand(directory)
  source = frames_lib.make_frame_source(rlds_data, tables, options)
  num_items = write_checkpoint(source, directory, reverb_tables=reverb_tables)
  for name, count in num_items.items():
    logging.info('Wrote %d items of table %r to %s.', count, name, directory)
  return num_items


def write_checkpoint(
    source: frames_lib.FrameSource,
    directory: str,
    *,
    reverb_tables: Sequence[reverb.Table] = (),
    inserted_at: int | None = None,
    replace: bool = False,
) -> dict[str, int]:
  """Writes the items of a `FrameSource`; see `write_reverb_checkpoint`.

  Args:
    source: the frames, and the items to create from them.
    directory: where the checkpoint goes.
    reverb_tables: tables whose settings replace the defaults.
    inserted_at: the time of the first item; see `layout.Layout`.
    replace: whether to replace an existing checkpoint.

  Returns:
    The number of items of each table, by its name.
  """
  tables: dict[str, reverb.Table | None] = {
      table.table_name: None for table in source.tables
  }
  ranges = {}
  for table in reverb_tables:
    if table.name in ranges:
      raise ValueError(f'reverb_tables has table {table.name!r} twice.')
    if table.name not in tables:
      raise ValueError(
          f'reverb_tables has table {table.name!r}, which gets no items. The'
          f' tables with items are {list(tables)}.'
      )
    specs.check_signature(table.info.signature, source.spec)
    tables[table.name] = table
    ranges[table.name] = priorities_lib.PriorityRange.of_table(table.info)
  layout = layout_lib.Layout(source, inserted_at, priority_ranges=ranges)
  with records_lib.new_checkpoint(directory, replace=replace) as path:
    open_file = lambda name: records_lib.RecordFile(os.path.join(path, name))
    with (
        open_file(records_lib.CHUNKS) as chunks,
        open_file(records_lib.ITEMS) as items,
    ):
      for batch in layout.batches():
        chunks.write(batch.chunks)
        items.write(batch.items)
    with open_file(records_lib.TABLES) as file:
      for name, table in tables.items():
        record = table_checkpoint(
            name, table, layout.num_items[name], source.spec
        )
        file.write([record.SerializeToString()])
  return layout.num_items


def table_checkpoint(
    name: str, table: reverb.Table | None, num_items: int, spec: Any
) -> protos.PriorityTableCheckpoint:
  """Returns the record of a table.

  Args:
    name: the name of the table.
    table: its settings; None for the defaults, which do not need Reverb.
    num_items: the number of its items.
    spec: the spec of a frame, a `Trajectory`. Only used for the defaults.

  Raises:
    ValueError: if the table is too small.
  """
  if table is not None:
    info = protos.TableInfo.FromString(table.internal_table.info())
  else:
    info = text_format.Parse(_DEFAULT_TABLE, protos.TableInfo())
    info.max_size = max(num_items, 1)
    signature = tf_private.encode_structure(tensor_spec.add_outer_dim(spec))
    info.signature.CopyFrom(signature)
  if num_items > info.max_size:
    raise ValueError(
        f'Table {name!r} is too small: its max_size is {info.max_size}, and the'
        f' data has {num_items} items. Increase max_size.'
    )
  limits = ('samples_per_insert', 'min_diff', 'max_diff', 'min_size_to_sample')
  return protos.PriorityTableCheckpoint(
      table_name=name,
      max_size=info.max_size,
      max_times_sampled=info.max_times_sampled,
      rate_limiter=protos.RateLimiterCheckpoint(
          insert_count=num_items,
          **{limit: getattr(info.rate_limiter_info, limit) for limit in limits},
      ),
      sampler=info.sampler_options,
      remover=info.remover_options,
      signature=info.signature if info.HasField('signature') else None,
  )
