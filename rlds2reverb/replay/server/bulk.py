"""Writes RLDS data into a Reverb server, many items to a request."""

from __future__ import annotations

from typing import Dict, Iterable, Optional, Sequence, Tuple, Union

from absl import logging
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import reverb
from rlds2reverb.replay.server import insert_stream
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import frame_blocks
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import specs

_OVERFLOWS = ('warn', 'refuse')


@options_lib.takes_options
def write_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    client: Union[str, reverb.Client, reverb.Server],
    tables: Union[items_lib.TableItems, Sequence[items_lib.TableItems]],
    *,
    options: Optional[options_lib.ConversionOptions] = None,
    overflow: str = 'warn',
    timeout: float = tables_lib.SECONDS_TO_CONFIRM,
) -> Dict[str, tables_lib.WrittenItems]:
  """Writes RLDS data into the tables of a Reverb server, as trajectories.

  The items are the same that the TF-Agents observers write. But they are
  encoded in blocks, and a request holds many of them. Short episodes may share
  chunks: then `num_episodes` of a table is lower than with an observer; see
  `ConversionOptions.one_episode_chunks`. Several tables are filled in one pass,
  and share their rows, which the server stores once:

      rlds2reverb.write_rlds_to_reverb(
          rlds_data, 'localhost:8000',
          [rlds2reverb.TableItems('transitions'),
           rlds2reverb.TableItems('sequences', rlds2reverb.Windows(80))])

  Args:
    rlds_data: the data, as in `convert_rlds_to_trajectories`; or a data set of
      sequences, `Trajectory`s `[L, ...]`, each of which becomes an item.
    client: the server: its address, `host:port`, a client of it, or itself.
    tables: which items go into which table.
    options: how the data is converted, and what the keys of items depend on.
    overflow: `"warn"` logs a warning if a table was too small for the data.
      `"refuse"` reads the data an additional time, and raises an error before
      anything is written; also if the rate limiter of a table would block, as
      `SampleToInsertRatio` does where nothing is sampled meanwhile.
    timeout: how many seconds the server may take to answer, or to confirm
      another item; longer by default than elsewhere, as giving up leaves only a
      part of the data in the tables.

  Returns:
    How many items the server has confirmed, a `WrittenItems` for each table, by
    its name: new ones, and ones that were there before. The difference between
    the two is what the server counts, so items that others write into the table
    at the same time count as new items of this data.

  Raises:
    ConnectionError: if the server does not answer.
    InsertError: if it fails, or confirms nothing for `timeout` seconds. The
      message says what it had confirmed, and what its tables hold.
    ValueError: if there is no such table; if its signature does not fit the
      data (a `SpecMismatchError`); if it is too small or would block, and
      `overflow="refuse"`; if an episode is longer than `max_sequence_length`;
      if two episodes have the same `episode_id`; if a priority is not a number
      from 0 up; or if an argument is not valid.
    InvalidArgumentError: if an episode is invalid. After an error in the data
      the episodes before it are in the tables, and nothing of the episode at
      fault. There is one exception: if a priority function fails in an episode
      of more than 2 MiB, items of its first frames may be in the table.
  """
  client = tables_lib.client_of(client)
  source = frames_lib.make_frame_source(rlds_data, tables, options)
  _, counts = insert(source, client, overflow=overflow, timeout=timeout)
  return counts


def insert(
    source: frames_lib.FrameSource,
    client: reverb.Client,
    *,
    overflow: str = 'warn',
    timeout: float = tables_lib.SECONDS_TO_CONFIRM,
    blocks: Optional[Iterable[frame_blocks.FrameBlock]] = None,
) -> Tuple[int, Dict[str, tables_lib.WrittenItems]]:
  """Inserts the items of a `FrameSource`.

  The other arguments and the errors are those of `write_rlds_to_reverb`.

  Args:
    source: the frames, and which items to make of them.
    client: a client of the server.
    overflow: see `write_rlds_to_reverb`.
    timeout: see `write_rlds_to_reverb`.
    blocks: the blocks of `source` to insert; all by default.

  Returns:
    The number of frames, and what `write_rlds_to_reverb` returns.
  """
  checks.check_choice('overflow', overflow, _OVERFLOWS)
  tables_lib.check_timeout(timeout)
  layout = layout_lib.Layout.of(source)
  names = [table.table_name for table in source.tables]
  before = tables_lib.table_infos(client, names, timeout)
  for info in before.values():
    specs.check_signature(info.signature, source.spec)
  if overflow == 'refuse':
    _refuse_overflow(source, before)
  with insert_stream.InsertStream(client.server_address, timeout) as stream:
    try:
      try:
        for batch in layout.batches(
            source.frames() if blocks is None else blocks
        ):
          stream.write(
              encoding.encode_insert_request(
                  batch.chunks, batch.items, batch.keep_chunk_keys
              ),
              batch.num_items,
          )
      except Exception:
        # The episodes before the one at fault still arrive.
        stream.flush()
        raise
      stream.flush()
    except insert_stream.InsertError as error:
      raise insert_stream.InsertError(
          f'{error} {tables_lib.describe_contents(client, names)}',
          error.confirmed,
      ) from error
    except BaseException as error:
      what = 'Failed' if isinstance(error, Exception) else 'Interrupted'
      logging.error(
          f'{what} when the server had confirmed %d items. %s',
          stream.confirmed,
          tables_lib.describe_contents(client, names),
      )
      raise
  after = tables_lib.table_infos(client, names, timeout)
  tables_lib.say_what_was_inserted(before, after)
  counts = tables_lib.written_items(before, after, layout.num_items)
  for name, count in counts.items():
    if count.existing:
      logging.info(
          'Table %r held %d of the items already.', name, count.existing
      )
  return layout.frames, counts


def _refuse_overflow(source, infos) -> None:
  """Raises a ValueError if a table is too small for the items of `source`."""
  items = items_lib.count_items(source.tables, source.step_types())
  for name, count in items.items():
    info = infos[name]
    # Under an identity these may be the items that the table holds already.
    is_new = source.options.identity is None
    held = info.current_size if is_new else 0
    new = count if is_new else max(count - info.current_size, 0)
    tables_lib.check_not_blocking(info, new)
    if held + count > info.max_size:
      raise ValueError(
          f'Table {name!r} is too small: it holds {info.current_size} items,'
          f' and {count} are to go in, but its max_size is {info.max_size}.'
          ' Nothing was written. Create the table with a larger max_size, or'
          ' pass overflow="warn" to let it remove items.'
      )
