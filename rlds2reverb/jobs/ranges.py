"""Episodes of a split, by their indices, and how tasks get their share."""

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow_datasets as tfds

from rlds2reverb.episodes import checks


class Range(NamedTuple):
  """Consecutive episodes of a split.

  Attributes:
    split: the name of the split, `train` for example.
    begin: the index in the split of the first episode.
    end: the index after that of the last episode.
  """

  split: str
  begin: int
  end: int

  @property
  def num_episodes(self) -> int:
    return self.end - self.begin

  def __str__(self) -> str:
    return f'{self.split}[{self.begin}:{self.end}]'

  @property
  def instruction(self) -> tfds.core.ReadInstruction:
    """The range as a read instruction of TFDS."""
    return tfds.core.ReadInstruction(
        self.split, from_=self.begin, to=self.end, unit='abs'
    )


def of_split(
    split: str, splits: Mapping[str, Any], dataset: str
) -> List[Range]:
  """Returns the ranges that a split such as `train[:10%]+test` stands for.

  Args:
    split: the split.
    splits: the splits of the data set, by name, each with its `num_examples`.
    dataset: the data set, for messages.

  Raises:
    ValueError: if there is no such split, or if an episode is in it twice.
  """
  for name in re.split(r'\+', split):
    name = name.partition('[')[0].strip()
    if name != 'all' and name not in splits:
      raise ValueError(
          f'{dataset} has no split {name!r}.'
          f'{checks.did_you_mean(name, splits)} Its splits are'
          f' {sorted(splits)}.'
      )
  ranges = []
  for one in tfds.core.ReadInstruction.from_spec(split).to_absolute(splits):
    size = splits[one.splitname].num_examples
    part = Range(
        one.splitname,
        0 if one.from_ is None else one.from_,
        size if one.to is None else one.to,
    )
    if part.num_episodes > 0:
      ranges.append(part)
  if not ranges:
    raise ValueError(f'The split {split} of {dataset} has no episodes.')
  twice = overlap(ranges)
  if twice is not None:
    raise ValueError(
        f'The split {split} of {dataset} has the episodes {twice} twice.'
    )
  return ranges


def overlap(ranges: Sequence[Range]) -> Optional[Range]:
  """Returns episodes that two of the ranges have in common, if any."""
  in_order = sorted(ranges)
  for before, after in zip(in_order, in_order[1:]):
    if before.split == after.split and after.begin < before.end:
      return after._replace(end=min(before.end, after.end))
  return None


def first_by_weights(
    ranges: List[List[Range]], weights: Sequence[float]
) -> List[List[Range]]:
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


def cut(parts: Sequence[Range], limit: int) -> List[Tuple[Range, ...]]:
  """Cuts ranges, one for each file, into the ranges of tasks.

  A large file makes several tasks. Small files that follow each other make one.

  Args:
    parts: the ranges.
    limit: how many episodes a task may have.
  """
  tasks: List[List[Range]] = []
  num_episodes = 0  # Of the last task.
  for part in parts:
    count = -(-part.num_episodes // limit)
    borders = [
        part.begin + part.num_episodes * i // count for i in range(count + 1)
    ]
    for begin, end in zip(borders, borders[1:]):
      piece = part._replace(begin=begin, end=end)
      last = tasks[-1][-1] if tasks else None
      num_episodes += piece.num_episodes
      if last is None or last.split != part.split or num_episodes > limit:
        tasks.append([piece])
        num_episodes = piece.num_episodes
      elif last.end == begin:
        tasks[-1][-1] = last._replace(end=end)
      else:
        tasks[-1].append(piece)
  return [tuple(task) for task in tasks]


def in_turn(tasks: Sequence[List[Any]]) -> List[Any]:
  """Interleaves the tasks of all sources, each source evenly spread."""
  places = [
      ((number + 0.5) / len(of_source), task)
      for of_source in tasks
      for number, task in enumerate(of_source)
  ]
  return [task for _, task in sorted(places, key=lambda place: place[0])]
