"""Views of a description: text, an HTML page, and TensorBoard summaries.

Text and page show the same rows. `page.html` is the template of the page, and
`page.js` draws its plots with Vega-Lite, which is embedded. Jinja2 and
vl-convert-python, which provides Vega-Lite, are imported when a page is made.
"""

import base64
from collections.abc import Iterator
from collections.abc import Sequence
import importlib
import os
from typing import Any

import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.jobs.descriptions import description as description_lib

_MAX_COLUMNS = 12  # Of a field, in the text.
_NUMBERS = ('mean', 'std', 'min', '0.05', '0.5', '0.95', 'max', 'not_finite')
HEADS = ('', *_NUMBERS[:-1], 'NaN, inf')


def to_text(description: description_lib.Description) -> str:
  """Returns a description as lines of text."""
  lines = [description.source, '']
  for name, value in about_rows(description.about):
    label = f'{name}:'
    for line in value.strip().splitlines():
      lines.append(f'{label:<13} {line}')
      label = ''
  if description.about:
    lines.append('')
  lines += count_lines(description)
  for table in description.tables:
    head, *rows = table_rows(table)
    lines += ['', ': '.join(head)]
    lines += [f'  {key:<18} {value}' for key, value in rows]
  if description.fields:
    lines += ['', 'Fields', *_align(field_rows(description))]
    parts = statistics_rows(description, _MAX_COLUMNS)
    rows = [[*HEADS], *(row for _, part in parts for row in part)]
    lines += ['', 'Statistics', *_align(rows), '', 'What is odd']
    lines += [f'  {message}' for message in list_messages(description)]
  return '\n'.join(lines)


def list_messages(description: description_lib.Description) -> list[str]:
  """Returns a sentence for each finding, or one if nothing was found."""
  messages = [finding['message'] for finding in description.oddities]
  return messages or ['Nothing was found.']


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
  """Yields the rows of a table, with the first column left-aligned."""
  widths = [max(map(len, column)) for column in zip(*rows)]
  for first, *values in rows:
    cells = [f'{cell:>{width}}' for cell, width in zip(values, widths[1:])]
    yield f'  {first:<{widths[0]}}  {"  ".join(cells)}'.rstrip()


def number(value: float | None) -> str:
  """Formats a number as an integer, or with four digits."""
  if value is None:
    return '-'
  if isinstance(value, int):
    return f'{value:,}'
  if abs(value) < 1e6 and (value.is_integer() or abs(value) >= 1e3):
    return f'{value:,.0f}'
  return f'{value:.4g}'


def _size(num_bytes: int) -> str:
  units = {10**9: 'GB', 10**6: 'MB', 10**3: 'kB'}
  for factor, unit in units.items():
    if num_bytes >= factor:
      return f'{num_bytes / factor:.3g} {unit}'
  return f'{num_bytes} bytes'


def about_rows(about: dict[str, Any]) -> list[tuple[str, str]]:
  """Returns labels and values of the metadata of a data set."""
  names = ('description', 'version', 'format', 'homepage', 'folder')
  rows = [(name, about.get(name)) for name in names]
  for split in about.get('splits', ()):
    text = f'{checks.counted(split["files"], "file")}, {_size(split["bytes"])}'
    if split['episodes'] is not None:
      text = f'{checks.counted(split["episodes"], "episode")} in {text}'
    rows.append((split['name'], text))
  for path, names in about.get('class_names', {}).items():
    rows.append((path, ', '.join(names)))
  rows.append(('citation', about.get('citation')))
  return [(label, value) for label, value in rows if value]


def count_lines(description: description_lib.Description) -> list[str]:
  """Returns lines with the numbers of read episodes and steps."""
  counts = description.counts
  if not counts:
    return []
  read = checks.counted(counts['episodes'], 'episode')
  if description.is_sample:
    if description.num_available is not None:
      available = checks.counted(description.num_available, 'episode')
      read = f'{number(counts["episodes"])} of {available}'
    read = f'a sample of {read}; all that follows is about the sample'
  steps, transitions = (
      checks.counted(counts[f'{n}s'], n) for n in ('step', 'transition')
  )
  return [
      read,
      f'{steps}, {transitions}; episodes that end in a terminal step:'
      f' {number(counts["terminal"])}, truncated:'
      f' {number(counts["truncated"])}, without steps:'
      f' {number(counts["empty"])}',
      *(
          f'steps removed by {name}: {number(count)}'
          for name, count in description.removed_steps.items()
      ),
  ]


def table_rows(table: dict[str, Any]) -> list[tuple[str, str]]:
  """Returns labels and settings of a table of a checkpoint, its size first."""
  size = checks.counted(table['num_items'], 'item')
  size = f'{size} of at most {number(table["max_size"])}'
  names = ('sampler', 'remover', 'rate_limiter', 'max_times_sampled')
  rows = [(name, table[name]) for name in names]
  return [(f'Table {table["name"]}', size), *rows, *table['signature'].items()]


def field_rows(description: description_lib.Description) -> list[list[str]]:
  """Returns a row for each field, after the names of the columns."""
  rows = [['field', 'dtype', 'shape', 'min', 'max']]
  for field in description.fields:
    shape = '?'
    if field['shape'] is not None:
      dims = ['?' if dim is None else str(dim) for dim in field['shape']]
      shape = f'({", ".join(dims)})'
    kind = field['dtype']
    if field['kind'] == 'image':
      kind += ' image'
    ends = number(field['min']), number(field['max'])
    rows.append([field['path'], kind, shape, *ends])
  return rows


def statistics_rows(
    description: description_lib.Description, max_columns: int
) -> Iterator[tuple[str, list[list[str]]]]:
  """Yields the name and the rows of returns and lengths, and of each field.

  Args:
    description: the description.
    max_columns: the maximum number of rows of a field.
  """
  yield '', [
      ['returns', *_numbers(description.returns)],
      ['transitions', *_numbers(description.lengths)],
  ]
  for field in description.fields:
    columns, name = field['columns'], field['path'].removeprefix('steps/')
    rows = [
        [f'{name}[{i}]' if len(columns) > 1 else name, *_numbers(column)]
        for i, column in enumerate(columns[:max_columns])
    ]
    if len(columns) > max_columns:
      rows.append([f'{name}: {len(columns) - max_columns} more', *([''] * 8)])
    if rows:
      yield name, rows


def _numbers(column: dict[str, Any]) -> list[str]:
  numbers = {**column, **column['quantiles']}
  return [number(numbers.get(name)) for name in _NUMBERS]


def import_page_libraries() -> list[Any]:
  """Returns the packages `jinja2` and `vl_convert`.

  Raises:
    ModuleNotFoundError: if one is not installed.
  """
  try:
    return [*map(importlib.import_module, ('jinja2', 'vl_convert'))]
  except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f'A page of a description needs {e.name}, which is not installed.'
        " Run `pip install '.[page]'` in a clone of rlds2reverb.",
        name=e.name,
    ) from e


def to_html(*descriptions: description_lib.Description) -> str:
  """Returns the page of a description, or of several side by side.

  Raises:
    ModuleNotFoundError: if Jinja2 or vl-convert-python is not installed.
  """
  jinja2, vl_convert = import_page_libraries()
  loader = jinja2.FileSystemLoader(os.path.dirname(__file__))
  environment = jinja2.Environment(
      loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
  )
  data = ', '.join(d.to_json(frames=True) for d in descriptions)
  # The text of an element `script` must not contain its end tag.
  return environment.get_template('page.html').render(
      views=globals(),
      counted=checks.counted,
      descriptions=descriptions,
      data=f'[{data}]'.replace('<', r'\u003c'),
      library=vl_convert.javascript_bundle().replace('</script', r'<\/script'),
  )


def write_summaries(
    description: description_lib.Description, directory: str
) -> None:
  """Writes a description for TensorBoard.

  Counts and statistics are scalars at step 0. Returns along the data set are
  scalars whose step is the episode. Histograms have the bins of the
  description. Findings and the description are text. The frames of each episode
  are an image summary.

  Args:
    description: the description.
    directory: the directory, which may exist.
  """
  writer = tf.summary.create_file_writer(directory)
  with writer.as_default(step=0):
    tf.summary.text('description', f'```\n{to_text(description)}\n```')
    findings = [f'- {message}' for message in list_messages(description)]
    tf.summary.text('findings', '\n'.join(findings))
    numbers = {
        'counts': description.counts,
        'returns': description.returns,
        'lengths': description.lengths,
        **{field['path']: field['columns'] for field in description.fields},
    }
    for keys, value in tree.flatten_with_path(numbers):
      if value is not None and keys[-2] not in ('min_at', 'max_at'):
        tf.summary.scalar('/'.join(map(str, keys)), value)
    # `tf.summary.histogram` would choose other bins.
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = 'histograms'
    for name, histogram in description.histograms.items():
      edges, counts = histogram['edges'], histogram['counts']
      if counts:
        bins = tf.stack([edges[:-1], edges[1:], counts], 1)
        bins = tf.cast(bins, tf.float64)
        tf.summary.write(f'histograms/{name}', bins, metadata=metadata)
    for part in description.order:
      name = 'returns along the data set'
      tf.summary.scalar(name, part['mean'], part['first'])
    for episode in description.episodes:
      for field, images in episode['frames'].items():
        for step, image in zip(episode['frame_steps'], images):
          decoded = tf.io.decode_jpeg(base64.b64decode(image))[None]
          tag = f'episode {episode["episode"]}/{field}'
          tf.summary.image(tag, decoded, step)
  writer.close()
