"""Finds the episodes of a quarantine file again, to convert them alone."""

import json
from typing import Any, Dict, List, Sequence, Tuple

from rlds2reverb.datasets import files
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib


def read_ranges(
    path: files.PathLike, opened: Sequence[opened_lib.OpenSource]
) -> List[List[ranges_lib.Range]]:
  """Returns the episodes that a quarantine file lists, as ranges.

  Args:
    path: the file, as a job has written it.
    opened: the sources that they are looked for in.

  Returns:
    The ranges of each source, in the order of the data set.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a line is not of a quarantine file, or of none of the
      sources, or if there is no line.
  """
  path = files.expand(path)
  found: List[Dict[Tuple[str, int], None]] = [{} for _ in opened]
  with files.open_text(path) as f:
    for number, line in enumerate(f, 1):
      bad = _parse(path, number, line)
      for index, source in enumerate(opened):
        if source.directory == bad['directory'] and _has(
            source, bad['split'], bad['episode']
        ):
          found[index][bad['split'], bad['episode']] = None
          break
      else:
        raise ValueError(
            f'{path}, line {number}: episode {bad["episode"]} of split'
            f' {bad["split"]} of {bad["directory"]} is not in the data sets of'
            ' this job.'
        )
  if not any(found):
    raise ValueError(f'{path} lists no episodes, so there is nothing to do.')
  return [_join(sorted(episodes)) for episodes in found]


def _parse(path, number, line) -> Dict[str, Any]:
  try:
    bad = json.loads(line)
    return {
        'directory': str(bad['directory']),
        'split': str(bad['split']),
        'episode': int(bad['episode']),
    }
  except (KeyError, TypeError, ValueError) as e:
    raise ValueError(
        f'{path}, line {number} is not of a quarantine file: {line.strip()!r}.'
    ) from e


def _has(source, split, episode) -> bool:
  return any(
      part.split == split and part.begin <= episode < part.end
      for part in source.ranges
  )


def _join(episodes: Sequence[Tuple[str, int]]) -> List[ranges_lib.Range]:
  """Returns ranges of episodes that follow each other."""
  ranges: List[ranges_lib.Range] = []
  for split, episode in episodes:
    last = ranges[-1] if ranges else None
    if last is not None and (last.split, last.end) == (split, episode):
      ranges[-1] = last._replace(end=episode + 1)
    else:
      ranges.append(ranges_lib.Range(split, episode, episode + 1))
  return ranges
