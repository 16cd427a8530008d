"""RLDS data into a Reverb server, many items a request."""

from typing import Any, Dict, Optional, Sequence, Tuple, Union

from absl import logging
import reverb
import tensorflow as tf

from rlds2reverb.episodes import checks
from rlds2reverb.replay import encoding
from rlds2reverb.replay import frames as frames_lib
from rlds2reverb.replay import items as items_lib
from rlds2reverb.replay.server import insert_stream
from rlds2reverb.replay.server import tables as tables_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

_OVERFLOWS = ('warn', 'refuse')


@report_lib.frees_report
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
) -> Dict[str, tables_lib.WrittenItems]:
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
    identity: what tells this data from other data: its name, its split and
      shard, and what was done to it: the mapping, the transforms, the
      `policy_info_fn`. A string, or a dict or list of strings, numbers,
      mappings and transforms. With one the keys of items are a function of it,
      of the dtypes and shapes of the frames, of `terminal_discount`, and of the
      item's table, length, episode and place: so what is written again is in
      the table once. A server does not compare the two: what differs under one
      key, because the identity does not tell it apart, stays as it was there.
      By default keys are random.
    episode_id: the name of a field of the episodes, an integer or string, that
      identifies them under `identity`. By default their number in the data set
      does, so two shards need two identities, or an `episode_id`. No two
      episodes may have the same.
    chunk_length: the most frames that are stored together, all their columns in
      one chunk. By default 8 KiB of them, and no more than 64; columns of 1 KiB
      a frame and more, images say, are in chunks of their own, of 8 KiB too.
      A sequence is always a chunk.
    overflow: `"warn"` says where a table was too small for the data; `"refuse"`
      reads the data once more to say so before anything is written.
    timeout: how many seconds the server may go without answering or confirming
      anything.
    **settings: those of `convert_rlds_to_trajectory_blocks`: validation,
      terminal_discount, invalid_episodes, nan and report.

  Returns:
    How many items the server has confirmed, by table: `WrittenItems`, those
    that were new and those that were there before. The two are told apart by
    what the server counts, so items that others write into the table at the
    same time are taken for new ones of this data.

  Raises:
    ConnectionError: if the server does not answer.
    InsertError: if it fails, or confirms nothing for `timeout` seconds. The
      message says what it had confirmed, and what its tables hold.
    ValueError: if there is no such table, its signature does not fit the data
      (a `SpecMismatchError`), it is too small and `overflow="refuse"`, an
      episode is longer than `max_sequence_length`, two have one `episode_id`, a
      priority is not a number from 0 up, or an argument is not valid.
    InvalidArgumentError: on an invalid episode. After an error in the data the
      episodes before are in the tables, and nothing of the episode at fault;
      only where a priority function fails on an episode of more than 2 MiB,
      items of its first frames may be.
  """
  if isinstance(client, str):
    client = reverb.Client(client)
  source = frames_lib.make_source(
      rlds_data, tables, policy_info_fn, chunk_length, episode_id, **settings
  )
  _, counts = insert(
      source,
      client,
      identity=identity,
      overflow=overflow,
      timeout=timeout,
  )
  return counts


def insert(
    source: frames_lib.Source,
    client: reverb.Client,
    *,
    identity: Optional[Any] = None,
    overflow: str = 'warn',
    timeout: float = 60.0,
) -> Tuple[int, Dict[str, tables_lib.WrittenItems]]:
  """Inserts the items of `source`.

  Args and errors are those of `write_rlds_to_reverb`.

  Returns:
    The number of frames, and what `write_rlds_to_reverb` returns.
  """
  checks.check_choice('overflow', overflow, _OVERFLOWS)
  if not timeout > 0:
    raise ValueError(f'timeout must be positive, but is {timeout}.')
  layout = source.layout(identity)
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
          'Of table %r the server had %d of the items already.',
          name, count.existing,
      )
  return layout.frames, counts


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
