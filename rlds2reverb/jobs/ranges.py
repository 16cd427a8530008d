"""Episodes of a split, by their indices, and how tasks get their share."""

import json
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow_datasets as tfds

from rlds2reverb.datasets import files
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
  for name in split.split('+'):
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
    end = size if one.to is None else one.to
    ranges.append(Range(one.splitname, one.from_ or 0, end))
  ranges = [part for part in ranges if part.num_episodes > 0]
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
  kept: List[List[Range]] = [[] for _ in ranges]
  for parts, weight, some in zip(ranges, weights, kept):
    left = round(unit * weight)
    for part in parts:
      some.append(part._replace(end=min(part.end, part.begin + left)))
      left -= some[-1].num_episodes
  return [[part for part in some if part.num_episodes] for some in kept]


def cut(parts: Sequence[Range], limit: int) -> List[Tuple[Range, ...]]:
  """Cuts ranges, one for each file, into the ranges of tasks.

  A large file makes several tasks. Small files that follow each other make one.

  Args:
    parts: the ranges.
    limit: how many episodes a task may have.
  """
  tasks: List[List[Range]] = []
  left = 0  # How many more episodes the last task may have.
  for part in parts:
    count = -(-part.num_episodes // limit)
    for i in range(count):
      piece = part._replace(
          begin=part.begin + part.num_episodes * i // count,
          end=part.begin + part.num_episodes * (i + 1) // count,
      )
      last = tasks[-1][-1] if tasks else None
      if not last or last.split != part.split or piece.num_episodes > left:
        tasks.append([piece])
        left = limit
      elif last.end == piece.begin:
        tasks[-1][-1] = last._replace(end=piece.end)
      else:
        tasks[-1].append(piece)
      left -= piece.num_episodes
  return [tuple(task) for task in tasks]


def of_quarantine(
    path: files.PathLike, opened: Sequence[Any]
) -> List[List[Range]]:
  """Returns the episodes that a quarantine file lists, to convert them alone.

  Args:
    path: the file, as a job has written it.
    opened: the `OpenSource`s that they are looked for in.

  Returns:
    The ranges of each source, in the order of the data set.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a line is not of a quarantine file, or of none of the
      sources, or if there is no line.
  """
  path = files.expand(path)
  found: List[List[Range]] = [[] for _ in opened]
  with files.open_text(path) as f:
    lines = f.readlines()
  for number, line in enumerate(lines, 1):
    try:
      bad = json.loads(line)
      directory, split = str(bad['directory']), str(bad['split'])
      part = Range(split, int(bad['episode']), int(bad['episode']) + 1)
    except (KeyError, TypeError, ValueError) as e:
      raise ValueError(
          f'{path}, line {number} is not of a quarantine file:'
          f' {line.strip()!r}.'
      ) from e
    for source, parts in zip(opened, found):
      if source.directory == directory and overlap([*source.ranges, part]):
        parts.append(part)
        break
    else:
      raise ValueError(
          f'{path}, line {number}: episode {part.begin} of split {split} of'
          f' {directory} is not in the data sets of this job.'
      )
  if not lines:
    raise ValueError(f'{path} lists no episodes, so there is nothing to do.')
  # Those that follow each other are one range.
  return [
      [part for task in cut(sorted(set(one)), len(one)) for part in task]
      for one in found
  ]
