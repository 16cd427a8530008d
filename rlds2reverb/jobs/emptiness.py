"""Says why tables have no items, for which samplers would wait for ever."""

from typing import Any, Mapping, Sequence


def reason(
    tables: Sequence[Any], items: Mapping[str, int], longest: int
) -> str:
  """Returns why a table has no items; an empty string if all have some.

  Args:
    tables: the `TableItems`.
    items: how many items each table has, by its name.
    longest: the number of steps of the longest episode; 0 if there is none.
  """
  for table in tables:
    if not items[table.table_name]:
      return (
          f'Table {table.table_name!r} would have no items, and samplers would'
          f' wait for ever: {_of_table(table, longest)} If an empty table is'
          ' what you want, ask for it with allow_empty.'
      )
  return ''


def _of_table(table, longest) -> str:
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
