"""Divides the episodes of sources among tasks."""

from typing import Any, List, Sequence, Tuple

from rlds2reverb.episodes import checks
from rlds2reverb.jobs import opened as opened_lib
from rlds2reverb.jobs import ranges as ranges_lib


def check_distinct(opened, ranges) -> None:
  """Raises a ValueError if two sources have an episode in common."""
  parts = sorted(
      (source.name, source.directory, source.treatment, part)
      for source, shards in zip(opened, ranges)
      for part in shards
  )
  for before, after in zip(parts, parts[1:]):
    if (
        before[:3] == after[:3]
        and before[3].split == after[3].split
        and after[3].begin < before[3].end
    ):
      raise ValueError(
          f'Episodes of {before[0]} in {before[1]}, split {before[3].split},'
          ' are in two sources, and would be converted twice.'
      )


def first_by_weights(
    ranges: List[List[ranges_lib.Range]], weights: Sequence[float]
) -> List[List[ranges_lib.Range]]:
  """Returns the first episodes of each source, as many as its weight says."""
  checks.check_count(weights, len(ranges))
  checks.check_weights(weights, are_positive=True)
  sizes = [sum(part.num_episodes for part in parts) for parts in ranges]
  unit = min(size / weight for size, weight in zip(sizes, weights))
  kept = []
  for parts, weight in zip(ranges, weights):
    left = round(unit * weight)
    kept.append([])
    for part in parts:
      part = part._replace(end=min(part.end, part.begin + left))
      if part.num_episodes:
        kept[-1].append(part)
        left -= part.num_episodes
  return kept


def cut(
    parts: Sequence[ranges_lib.Range],
    source: opened_lib.OpenSource,
    task_bytes: int,
) -> List[Tuple[ranges_lib.Range, ...]]:
  """Cuts ranges, one for each file, into the ranges of tasks.

  A large file makes several tasks. Small files that follow each other make one.

  Args:
    parts: the ranges.
    source: their source.
    task_bytes: about how many bytes of files a task should read.
  """
  size = max(source.num_bytes / source.num_episodes, 1)
  limit = max(int(task_bytes / size), 1)
  if source.is_one_task:
    limit = source.num_episodes
  tasks: List[Tuple[ranges_lib.Range, ...]] = []
  for part in parts:
    for piece in _split_evenly(part, limit):
      last = tasks[-1] if tasks else ()
      count = sum(each.num_episodes for each in last)
      if (
          not last
          or last[-1].split != piece.split
          or count + piece.num_episodes > limit
      ):
        tasks.append((piece,))
      elif last[-1].end == piece.begin:
        tasks[-1] = (*last[:-1], last[-1]._replace(end=piece.end))
      else:
        tasks[-1] = (*last, piece)
  return tasks


def _split_evenly(part, limit) -> List[ranges_lib.Range]:
  size = part.num_episodes
  count = -(-size // limit)
  borders = [part.begin + size * i // count for i in range(count + 1)]
  return [
      part._replace(begin=begin, end=end)
      for begin, end in zip(borders, borders[1:])
  ]


def in_turn(tasks: Sequence[List[Any]]) -> List[Any]:
  """Interleaves the tasks of all sources, each source evenly spread."""
  places = [
      ((number + 0.5) / len(of_source), task)
      for of_source in tasks
      for number, task in enumerate(of_source)
  ]
  return [task for _, task in sorted(places, key=lambda place: place[0])]
