"""Refuses an output without items, for which samplers would wait for ever."""

from typing import Any, Mapping, Sequence

from rlds2reverb.jobs import plan as plan_lib


def check_items(
    tables: Sequence[Any], items: Mapping[str, int], longest: int
) -> None:
  """Raises a ValueError if a table has no items.

  Args:
    tables: the `TableItems`.
    items: how many items each table has, by its name.
    longest: the number of steps of the longest episode; 0 if there is none.
  """
  for table in tables:
    if not items[table.table_name]:
      raise ValueError(
          f'Table {table.table_name!r} would have no items, and samplers would'
          f' wait for ever: {_reason(table, longest)} If an empty table is what'
          ' you want, ask for it with allow_empty.'
      )


def check_episodes(output: plan_lib.Output, num_episodes: int) -> None:
  """Raises a ValueError if an output without tables has no episodes."""
  if not num_episodes:
    raise ValueError(
        f'{output.place} would be empty: there is no valid episode.'
    )


def _reason(table, longest) -> str:
  if not longest:
    return 'there is no valid episode.'
  if table.windows is None:
    return (
        f'an item is a whole episode of {table.max_sequence_length} steps at'
        f' most, and all are longer; the longest has {longest}.'
    )
  return (
      f'an item has {table.windows.length} steps, and the longest episode has'
      f' {longest}. Choose shorter windows, or pad short episodes: an end of'
      ' "pad".'
  )
