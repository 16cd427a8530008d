"""A description as text, for a terminal."""

from typing import Any, Dict, Iterable, Iterator, List, Optional

from rlds2reverb.episodes import checks
from rlds2reverb.jobs.descriptions import description as description_lib

_MAX_COLUMNS = 12  # of a field, in the table of statistics
_SHOWN_QUANTILES = ('0.05', '0.5', '0.95')


def to_text(description: description_lib.Description) -> str:
  """Returns a description as lines of text."""
  lines = [description.source, '', *_about(description.about)]
  lines += _counts(description)
  for table in description.tables:
    lines += _table(table)
  if description.fields:
    lines += ['', 'Fields', *_indented(_field_rows(description))]
    lines += ['', 'Statistics', *_indented(_statistics_rows(description))]
    lines += ['', 'What is odd']
    lines += [f'  {oddity["message"]}' for oddity in description.oddities] or [
        '  Nothing was found.'
    ]
  return '\n'.join(lines)


def number(value: Optional[float]) -> str:
  """Returns a number as it is shown everywhere: with four digits, or whole."""
  if value is None:
    return '-'
  if isinstance(value, int):
    return f'{value:,}'
  if abs(value) < 1e6 and (value.is_integer() or abs(value) >= 1e3):
    return f'{value:,.0f}'
  return f'{value:.4g}'


def size(num_bytes: int) -> str:
  """Returns a number of bytes as it is shown: `1.5 MB`."""
  for unit, factor in (('GB', 10**9), ('MB', 10**6), ('kB', 10**3)):
    if num_bytes >= factor:
      return f'{num_bytes / factor:.3g} {unit}'
  return f'{num_bytes} bytes'


def shape(dims: Optional[List[Optional[int]]]) -> str:
  """Returns the shape of a field: `(3, ?)`."""
  if dims is None:
    return '?'
  return f'({", ".join("?" if dim is None else str(dim) for dim in dims)})'


def how_many(description: description_lib.Description) -> str:
  """Says how many episodes were read, and whether these are all."""
  count = description.counts['episodes']
  sample = checks.counted(count, 'episode')
  if not description.is_sample:
    return sample
  if description.num_available is not None:
    available = checks.counted(description.num_available, 'episode')
    sample = f'{number(count)} of {available}'
  return f'a sample of {sample}; all that follows is about the sample'


def _about(about: Dict[str, Any]) -> Iterator[str]:
  facts = [
      (name, about.get(name))
      for name in ('description', 'version', 'format', 'homepage', 'folder')
  ]
  for split in about.get('splits', ()):
    content = (
        f'{checks.counted(split["files"], "file")}, {size(split["bytes"])}'
    )
    if split['episodes'] is not None:
      content = f'{checks.counted(split["episodes"], "episode")} in {content}'
    facts.append((split['name'], content))
  for path, names in about.get('class_names', {}).items():
    facts.append((path, ', '.join(names)))
  for label, value in [*facts, ('citation', about.get('citation'))]:
    for line in value.strip().splitlines() if value else ():
      yield f'{label + ":" * bool(label):<13} {line}'
      label = ''
  if about:
    yield ''


def _counts(description) -> Iterator[str]:
  counts = description.counts
  if counts:
    yield how_many(description)
    yield (
        f'{checks.counted(counts["steps"], "step")},'
        f' {checks.counted(counts["transitions"], "transition")}; episodes that'
        f' end in a terminal step: {number(counts["terminal"])}, truncated:'
        f' {number(counts["truncated"])}, without steps:'
        f' {number(counts["empty"])}'
    )


def _table(table: Dict[str, Any]) -> Iterator[str]:
  yield ''
  yield (
      f'Table {table["name"]}: {checks.counted(table["num_items"], "item")} of'
      f' at most {number(table["max_size"])}'
  )
  for key in ('sampler', 'remover', 'rate_limiter', 'max_times_sampled'):
    yield f'  {key:<18} {table[key]}'
  for path, spec in table['signature'].items():
    yield f'  {path:<18} {spec}'


def _field_rows(description) -> Iterator[List[str]]:
  yield ['field', 'dtype', 'shape', 'min', 'max']
  for field in description.fields:
    kind = field['dtype'] + ' image' * (field['kind'] == 'image')
    ends = number(field['min']), number(field['max'])
    yield [field['path'], kind, shape(field['shape']), *ends]


def _statistics_rows(description) -> Iterator[List[str]]:
  yield ['', 'mean', 'std', 'min', *_SHOWN_QUANTILES, 'max', 'NaN, inf']
  yield ['returns', *_numbers(description.returns)]
  yield ['transitions', *_numbers(description.lengths)]
  for field in description.fields:
    columns = field['columns']
    name = field['path'].removeprefix('steps/')
    for index, column in enumerate(columns[:_MAX_COLUMNS]):
      label = name if len(columns) == 1 else f'{name}[{index}]'
      yield [label, *_numbers(column)]
    if len(columns) > _MAX_COLUMNS:
      yield [f'{name}: {len(columns) - _MAX_COLUMNS} more', *([''] * 8)]


def _numbers(column: Dict[str, Any]) -> List[str]:
  numbers = {**column, **column['quantiles']}
  names = ('mean', 'std', 'min', *_SHOWN_QUANTILES, 'max', 'not_finite')
  return [number(numbers.get(name)) for name in names]


def _indented(rows: Iterable[List[str]]) -> Iterator[str]:
  """Yields the rows of a table, the first column to the left."""
  rows = list(rows)
  widths = [max(map(len, column)) for column in zip(*rows)]
  for first, *rest in rows:
    cells = [f'{cell:>{width}}' for cell, width in zip(rest, widths[1:])]
    yield f'  {first:<{widths[0]}}  {"  ".join(cells)}'.rstrip()
