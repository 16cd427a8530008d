"""Excerpts: some steps of a few episodes, with their numbers and images.

The episodes to show are chosen when all were read; until then `spread` says
which ones to keep.
"""

import base64
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import steps as steps_lib

MAX_FRAMES = 8  # of an episode
NUM_BARS = 32  # of returns and of lengths
_NUM_EXTREMES = 3  # how many of the best, the worst, and the longest
_MAX_IMAGES = 3  # of a step
_CHANNELS = (1, 3, 4)
_MAX_SIDE = 128  # pixels
_JPEG_QUALITY = 85
# Words in the names of fields that say what an episode is meant to do.
_INSTRUCTIONS = ('instruction', 'language', 'task')
# About the number of bytes of a description's excerpts in a page. A page of two
# descriptions then has less than 5 MB.
_MAX_BYTES = 1_900_000
_BYTES_OF_NUMBER = 11


class Excerpt(NamedTuple):
  """Some steps of one episode.

  Attributes:
    record: the row of the episode in `Reading.episodes`.
    steps: the steps whose numbers are shown, in order, int64 `[S]`.
    numbers: the numbers of these steps, float64 `[S]` each, by the name of the
      column; NaN where a number has no meaning. `LENGTHS` and `RETURNS` stand
      in the first step.
    frames: JPEG images in base64 of the steps `spread_steps(num_steps,
      MAX_FRAMES)`, by the path of the field.
    instruction: what the episode is meant to do, if a field says so.
  """

  record: np.void
  steps: np.ndarray
  numbers: Dict[str, np.ndarray]
  frames: Dict[str, List[str]]
  instruction: str


def take(
    batch: Any,
    at: int,
    images: Sequence[paths.KeyPath],
    instruction: Optional[paths.KeyPath],
) -> Tuple[Dict[str, List[str]], str]:
  """Takes the frames and the instruction of an episode; see `Excerpt`.

  Args:
    batch: the `EpisodeBatch` that has it, in NumPy.
    at: its position there.
    images: the keys, in a step, of the images.
    instruction: the keys, in an episode, of the instruction.
  """
  begin, end = batch.row_splits[at : at + 2]
  shown = begin + spread_steps(end - begin, MAX_FRAMES)
  frames = {
      paths.name_of(keys): list(
          map(to_jpeg, paths.get(batch.steps, keys)[shown])
      )
      for keys in images
  }
  text = b''
  if instruction and instruction[0] != rlds.STEPS:
    text = paths.get(batch.fields, instruction)[at]
  elif instruction and end > begin:
    text = paths.get(batch.steps, instruction[1:])[begin]
  return frames, text.decode(errors='replace')


def image_leaves(spec: Dict[str, Any]) -> List[paths.KeyPath]:
  """Returns the keys, in a step, of the image fields that are shown.

  Args:
    spec: the spec of an episode with stacked steps.
  """
  leaves = tree.flatten_with_path(steps_lib.without_time(spec[rlds.STEPS]))
  return [keys for keys, leaf in leaves if is_image(leaf)][:_MAX_IMAGES]


def is_image(spec: Any) -> bool:
  """Returns whether a leaf of a step with this spec is a decoded image."""
  return (
      spec.dtype in (tf.uint8, tf.uint16)
      and spec.shape.rank == 3
      and spec.shape[-1] in _CHANNELS
  )


def find_instruction(spec) -> Optional[paths.KeyPath]:
  """Returns the keys of a text that says what an episode is meant to do."""
  for keys, leaf in sorted(
      tree.flatten_with_path(spec), key=lambda pair: pair[0][0] != rlds.STEPS
  ):
    if (
        any(word in str(keys[-1]) for word in _INSTRUCTIONS)
        and isinstance(leaf, tf.TensorSpec)
        and leaf.dtype == tf.string
        and leaf.shape.rank == (keys[0] == rlds.STEPS)
    ):
      return keys
  return None


def spread_steps(length: int, count: int) -> np.ndarray:
  """Returns at most `count` steps of `length`, including the last one."""
  count = min(length, count)
  return np.arange(count) * (length - 1) // max(count - 1, 1)


def spread(numbers: np.ndarray) -> np.ndarray:
  """Returns the indices of some numbers that represent all `numbers` `[N]`.

  The three least and the three greatest are among them. Each part of the range
  that is at least as wide as the range divided by `NUM_BARS`, and has any
  number, has one of them. This stays true if numbers are added, and some of the
  chosen ones are chosen again. Numbers that are not finite are left out.
  """
  order = np.argsort(numbers, kind='stable')
  order = order[np.isfinite(numbers[order])]
  if not order.size:
    return order
  ranked = numbers[order]
  width = (ranked[-1] - ranked[0]) / NUM_BARS or 1.0
  cells = np.floor((ranked - ranked[0]) / width)
  rank = np.arange(order.size)
  # A part that overlaps a cell has the first or the last number of the cell.
  chosen = np.diff(cells, prepend=-1) != 0
  chosen |= np.diff(cells, append=-1) != 0
  chosen |= (rank < _NUM_EXTREMES) | (rank >= order.size - _NUM_EXTREMES)
  return order[chosen]


def to_jpeg(image: np.ndarray) -> str:
  """Encodes an image `[H, W, C]`, small, as JPEG in base64."""
  is_deep = image.dtype == np.uint16
  image = image.astype(np.float32)
  if is_deep:
    image = image / max(image.max(), 1) * 255
  height, width, channels = image.shape
  scale = _MAX_SIDE / max(height, width)
  if scale < 1:
    small = [max(int(side * scale), 1) for side in (height, width)]
    image = tf.image.resize(image, small, 'area').numpy()
  image = np.clip(np.round(image), 0, 255).astype(np.uint8)
  # JPEG has no alpha channel.
  image = np.repeat(image, 3, 2) if channels == 1 else image[..., :3]
  jpeg = tf.io.encode_jpeg(image, quality=_JPEG_QUALITY).numpy()
  return base64.b64encode(jpeg).decode()


def choose(
    reading: Any,
    histograms: Dict[str, Dict[str, Any]],
    odd: Sequence[Any],
    count: int,
) -> List[Tuple[Excerpt, List[str]]]:
  """Chooses the episodes that are shown, `count` at most.

  They are the best, the worst and the longest ones; those of the findings; and
  then those that show most of what no other one shows: the bars of histograms,
  and the least and the greatest number of each column.

  Args:
    reading: the `Reading`.
    histograms: its histograms. Each gets an `at`: for each bar the first of the
      chosen episodes, and the first of its steps, with such a number, or None.
    odd: its findings.
    count: how many to choose.

  Returns:
    Each with the reasons for showing it, the most important ones first.
  """
  excerpts = dict(sorted(reading.excerpts.items()))
  reasons: Dict[int, List[str]] = {}
  for reason, sign, name in (
      ('highest return', -1, 'undiscounted_return'),
      ('lowest return', 1, 'undiscounted_return'),
      ('longest', -1, 'num_transitions'),
  ):
    ranked = sorted(
        (sign * one.record[name], episode)
        for episode, one in excerpts.items()
        if np.isfinite(one.record[name]) and one.steps.size
    )
    if ranked and ranked[0][0] < ranked[-1][0]:
      # Where there are few episodes, the best are not shown again as the worst.
      count_each = min(_NUM_EXTREMES, -(-len(ranked) // 4))
      for _, episode in ranked[:count_each]:
        reasons.setdefault(episode, []).append(reason)
  for one in odd:
    if one.episode is not None:
      kind = one.kind.replace('_', ' ')
      reasons.setdefault(one.episode, []).append(kind)
  chosen = list(reasons)[:count]
  shows = {
      episode: _what_it_shows(reading, histograms, one)
      for episode, one in excerpts.items()
  }
  shown = set().union(*(shows[episode] for episode in chosen))
  room = _MAX_BYTES - sum(_size_of(excerpts[episode]) for episode in chosen)
  while len(chosen) < min(count, len(excerpts)):
    best = max(
        (episode for episode in excerpts if episode not in chosen),
        key=lambda episode: len(shows[episode].keys() - shown),
    )
    room -= _size_of(excerpts[best])
    if room < 0:
      break
    shown.update(shows[best])
    chosen.append(best)
  places = {}
  for episode in reversed(chosen):
    places.update({bar: [episode, at] for bar, at in shows[episode].items()})
  for name, histogram in histograms.items():
    bars = range(len(histogram['counts']))
    histogram['at'] = [places.get((name, bar)) for bar in bars]
  return [(excerpts[one], reasons.get(one, [])) for one in chosen]


def _what_it_shows(reading, histograms, excerpt) -> Dict[Tuple[str, int], int]:
  """Returns the bars that an excerpt shows, and the extremes, with a step."""
  shows = {}
  for name, histogram in histograms.items():
    found, rows = np.unique(
        _bars(histogram, excerpt.numbers[name]), return_index=True
    )
    for bar, step in zip(found.tolist(), excerpt.steps[rows].tolist()):
      if bar >= 0:
        shows[name, bar] = step
  episodes, steps = reading.places.reshape([-1, 2]).T
  for end in np.flatnonzero(episodes == excerpt.record['index']).tolist():
    shows['', end] = int(steps[end])
  return shows


def _bars(histogram: Dict[str, Any], numbers: np.ndarray) -> np.ndarray:
  """Returns the bar of each number; -1 for none."""
  edges = np.array(histogram['edges'])
  if not edges.size:
    return np.full(numbers.size, -1)
  bars = np.searchsorted(edges, numbers, 'right') - 1
  bars = np.where(numbers == edges[-1], bars - 1, bars)
  return np.where(bars < len(edges) - 1, bars, -1)


def _size_of(excerpt: Excerpt) -> int:
  """Returns about how many bytes of a page an excerpt takes."""
  frames = sum(map(len, tree.flatten(excerpt.frames)))
  return (
      excerpt.steps.size * (len(excerpt.numbers) - 2) * _BYTES_OF_NUMBER
      + frames
  )
