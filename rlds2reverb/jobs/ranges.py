"""Episodes of a split, by their indices."""

import re
from typing import Any, List, Mapping, NamedTuple

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
  in_order = sorted(ranges)
  for before, after in zip(in_order, in_order[1:]):
    if before.split == after.split and after.begin < before.end:
      raise ValueError(
          f'The split {split} of {dataset} has the episodes'
          f' {Range(after.split, after.begin, min(before.end, after.end))}'
          ' twice.'
      )
  return ranges
