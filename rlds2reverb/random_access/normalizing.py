"""Makes the normaliser of an index, whose statistics are kept in a file."""

import json
import os
from typing import Any, Dict, Mapping

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import checks
from rlds2reverb.random_access import index as index_lib


def open_normalizer(
    index: index_lib.Index,
    fields: Mapping[str, normalization.Normalize],
    path: str,
) -> normalization.Normalizer:
  """Returns the normaliser of an index.

  The statistics are computed once, with TensorFlow, and kept in a file.

  Args:
    index: the index.
    fields: how each field is normalised, by its path.
    path: the file.

  Raises:
    ModuleNotFoundError: if statistics are missing, and TensorFlow is, too.
    ValueError: if there is no such field of floats.
  """
  columns = index.layout.columns
  floats = [one.name for one in columns if one.dtype.startswith('float')]
  for field in fields:
    checks.check_known(index.folder, 'field of floats', field, floats)
  known: Dict[str, Any] = {'fingerprint': index.fingerprint, 'fields': {}}
  if os.path.exists(path):
    with open(path, encoding='utf-8') as f:
      found = json.load(f)
    if found['fingerprint'] == index.fingerprint:
      known = found
  missing = sorted(set(fields) - set(known['fields']))
  if missing:
    with index_lib.made_once(
        f'{path} has no statistics of {", ".join(missing)} yet, and computing'
        ' them'
    ):
      # pylint: disable-next=g-import-not-at-top
      from rlds2reverb.random_access import indexed_statistics

    known['fields'].update(indexed_statistics.compute(index, missing))
    with open(f'{path}.unfinished', 'w', encoding='utf-8') as f:
      json.dump(known, f)
    os.replace(f.name, path)
  return normalization.Normalizer(
      fields, {name: known['fields'][name] for name in fields}
  )
