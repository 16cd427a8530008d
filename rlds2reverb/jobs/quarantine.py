"""Finds the episodes of a quarantine file again, to convert them alone."""

import json
from typing import List, Sequence, Set, Tuple

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
  found: List[Set[Tuple[str, int]]] = [set() for _ in opened]
  with files.open_text(path) as f:
    for number, line in enumerate(f, 1):
      try:
        bad = json.loads(line)
        directory, split, episode = (
            str(bad['directory']), str(bad['split']), int(bad['episode']),
        )  # fmt: skip
      except (KeyError, TypeError, ValueError) as e:
        raise ValueError(
            f'{path}, line {number} is not of a quarantine file:'
            f' {line.strip()!r}.'
        ) from e
      for source, episodes in zip(opened, found):
        if source.directory == directory and any(
            part.split == split and part.begin <= episode < part.end
            for part in source.ranges
        ):
          episodes.add((split, episode))
          break
      else:
        raise ValueError(
            f'{path}, line {number}: episode {episode} of split {split} of'
            f' {directory} is not in the data sets of this job.'
        )
  if not any(found):
    raise ValueError(f'{path} lists no episodes, so there is nothing to do.')
  # Each is a range, and those that follow each other are one.
  return [
      [
          part
          for task in ranges_lib.cut(
              [ranges_lib.Range(split, at, at + 1) for split, at in one],
              len(one),
          )
          for part in task
      ]
      for one in map(sorted, found)
  ]
