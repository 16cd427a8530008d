"""RLDS data into a Reverb server, many items a request."""

from typing import Any, Dict, Optional, Sequence, Union

from absl import logging
import reverb
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.replay import encoding
from rlds2reverb.replay import insert_stream
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay import layout as layout_lib
from rlds2reverb.replay import source as source_lib
from rlds2reverb.replay import tables as tables_lib
from rlds2reverb.trajectories import specs

_OVERFLOWS = ('warn', 'refuse')


def write_rlds_to_reverb(
    rlds_data: tf.data.Dataset,
    client: Union[str, reverb.Client],
    tables: Union[items_lib.TableItems, Sequence[items_lib.TableItems]],
    policy_info_fn: Optional[specs.PolicyInfoFn] = None,
    *,
    identity: Optional[Any] = None,
    episode_id: Optional[str] = None,
    chunk_length: Optional[int] = None,
    overflow: str = 'warn',
    timeout: float = 60.0,
    **settings: Any,
) -> Dict[str, int]:
  """Writes RLDS data into the tables of a Reverb server, as trajectories.

  The items are those that the TF-Agents observers write, but encoded a block at
  a time and sent many to a request. Several tables are filled in one pass, over
  rows that are stored once:

      rlds2reverb.write_rlds_to_reverb(
          rlds_data, 'localhost:8000',
          [rlds2reverb.TableItems('transitions'),
           rlds2reverb.TableItems('sequences', 80, 40, 'pad')])

  Args:
    rlds_data: see `convert_rlds_to_trajectories`; or a data set of sequences,
      `Trajectory`s `[L, ...]`, each of which becomes an item.
    client: of the server, or its address, `host:port`.
    tables: which items go into which table.
    policy_info_fn: see `convert_rlds_to_trajectories`.
    identity: what tells this data from other data: its name, its split, the
      settings of the conversion; a JSON value, a dict or a string say. With one
      the keys of items are a function of it and of the item's table, episode
      and place, so what is written again is in the table once. By default keys
      are random.
    episode_id: the name of a field of the episodes, an integer or string, that
      identifies them under `identity`, where the order of the data set does
      not. No two episodes may have the same.
    chunk_length: the most frames that are stored together, all their columns in
      one chunk. By default 8 KiB of them, and no more than 64; columns of 1 KiB
      a frame and more, images say, are in chunks of their own, of 8 KiB too.
    overflow: `"warn"` says where a table was too small for the data; `"refuse"`
      reads the data once more to say so before anything is written.
    timeout: how many seconds the server may go without answering or confirming
      anything.
    **settings: those of `convert_rlds_to_trajectory_blocks`: validation,
      terminal_discount, invalid_episodes, nan and report.

  Returns:
    The number of items that the server has confirmed, by table.

  Raises:
    ConnectionError: if the server does not answer.
    InsertError: if it fails, or confirms nothing for `timeout` seconds. The
      message says what it had confirmed, and what its tables hold.
    ValueError: if there is no such table, its signature does not fit the data
      (a `SpecMismatchError`), it is too small and `overflow="refuse"`, or an
      argument or the data is not valid.
    InvalidArgumentError: on an invalid episode. The episodes before it are in
      the tables.
  """
  if isinstance(client, str):
    client = reverb.Client(client)
  source = source_lib.make_source(
      rlds_data, tables, policy_info_fn, chunk_length, episode_id, **settings
  )
  layout = insert(
      source,
      client,
      identity=identity,
      overflow=overflow,
      timeout=timeout,
  )
  return layout.num_items


def insert(
    source: source_lib.Source,
    client: reverb.Client,
    *,
    identity: Optional[Any] = None,
    overflow: str = 'warn',
    timeout: float = 60.0,
) -> layout_lib.Layout:
  """Inserts the items of `source`; returns the layout that counts them.

  Args and errors are those of `write_rlds_to_reverb`.
  """
  checks.check_choice('overflow', overflow, _OVERFLOWS)
  if not timeout > 0:
    raise ValueError(f'timeout must be positive, but is {timeout}.')
  layout = layout_lib.Layout(source.tables, identity, source.groups)
  names = [table.table for table in source.tables]
  before = tables_lib.table_infos(client, names, timeout)
  for info in before.values():
    specs.check_signature(info.signature, source.spec)
  if overflow == 'refuse':
    _refuse_overflow(source, before, identity)
  with insert_stream.InsertStream(client.server_address, timeout) as stream:
    try:
      try:
        for batch in layout.batches(source.frames()):
          stream.write(
              encoding.encode_insert_request(
                  batch.chunks, batch.items, batch.keep_chunk_keys
              ),
              batch.num_items,
          )
      except Exception:
        # What was sent before an invalid episode arrives.
        stream.flush()
        raise
      stream.flush()
    except insert_stream.InsertError as error:
      raise insert_stream.InsertError(
          f'{error} {tables_lib.describe_contents(client, names)}',
          error.confirmed,
      ) from error
    except BaseException:
      logging.error(
          'Interrupted when the server had confirmed %d items. %s',
          stream.confirmed,
          tables_lib.describe_contents(client, names),
      )
      raise
  after = tables_lib.table_infos(client, names, timeout)
  tables_lib.say_what_was_inserted(before, after)
  return layout


def _refuse_overflow(source, infos, identity) -> None:
  """Raises a ValueError if a table is too small for the items of `source`."""
  items = items_lib.count_items(source.tables, source.step_types())
  for name, count in items.items():
    info = infos[name]
    # Under an identity these may be the items that it holds.
    held = info.current_size if identity is None else 0
    if held + count > info.max_size:
      raise ValueError(
          f'Table {name!r} is too small: it holds {info.current_size} items,'
          f' and {count} are to go in, but its max_size is {info.max_size}.'
          ' Nothing was written. Create the table with a larger max_size, or'
          ' pass overflow="warn" to let it remove items.'
      )
