"""Excerpts: some steps of a few episodes, with their numbers and images.

The episodes to show are chosen when all were read; until then `spread` says
which ones to keep.
"""

import base64
import collections
from typing import Any, Dict, List, Sequence, Set, Tuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds

NUM_BARS = 32  # of returns and of lengths
_NUM_EXTREMES = 3  # how many of the best, the worst, and the longest
_MAX_STEPS = 200  # of an episode
_MAX_FRAMES = 8
_MAX_IMAGES = 3  # of a step
_MAX_SIDE = 128  # pixels
_JPEG_QUALITY = 85
# Words in the names of fields that say what an episode is meant to do.
_INSTRUCTIONS = ('instruction', 'language', 'task')
# About the number of bytes of a description's excerpts in a page. A page of two
# descriptions then has less than 5 MB.
_MAX_BYTES = 1_900_000
_BYTES_OF_NUMBER = 11


class Excerpts:
  """Makes excerpts of episodes whose spec is known.

  Attributes:
    images: the keys, in a step, of all images.
    instruction: the keys, in an episode, of a text that says what it is meant
      to do; empty if there is none.
  """

  def __init__(self, spec: Dict[str, Any], with_frames: bool = True):
    """Takes the spec of an episode, with that of a step as its steps."""
    self.images = [
        keys
        for keys, leaf in tree.flatten_with_path(spec[rlds.STEPS])
        if is_image(leaf)
    ]
    self._shown = self.images[:_MAX_IMAGES] if with_frames else []
    texts = [
        keys
        for keys, leaf in tree.flatten_with_path(spec)
        if any(word in str(keys[-1]) for word in _INSTRUCTIONS)
        and leaf == tf.TensorSpec([], tf.string)
    ]
    # That of a step comes first.
    is_other = lambda keys: keys[0] != rlds.STEPS
    self.instruction: paths.KeyPath = min(texts, key=is_other, default=())

  def make(
      self,
      record: np.void,
      fields: Dict[str, Any],
      steps: Dict[str, Any],
      numbers: np.ndarray,
      shown: Sequence[int],
  ) -> Dict[str, Any]:
    """Makes the excerpt of an episode.

    Args:
      record: its row in `Reading.episodes`.
      fields: its fields besides `steps`.
      steps: its steps, `[T, ...]`.
      numbers: its numbers, float64 `[T, D]`.
      shown: steps to have in it.

    Returns:
      An entry of `Description.episodes`, but for its `curves`, which are the
      numbers of its steps, float64 `[S, D]`.
    """
    frames = _spread_steps(len(numbers), _MAX_FRAMES)
    whole = _spread_steps(len(numbers), _MAX_STEPS)
    rows = np.unique([*whole, *frames, *shown]).astype(np.int64)
    texts = np.array([b''])
    if self.instruction:
      texts = paths.get({**fields, rlds.STEPS: steps}, self.instruction)
    return {
        'episode': int(record['index']),
        'num_steps': len(numbers),
        'num_transitions': int(record['num_transitions']),
        'instruction': b''.join(np.ravel(texts)[:1]).decode(errors='replace'),
        'return': float(record['return']),
        'is_terminal': bool(record['is_terminal']),
        'reasons': [],
        'steps': rows,
        'curves': numbers[rows],
        'frame_steps': frames.tolist() if self._shown else [],
        'frames': {
            paths.name_of(keys): [*map(to_jpeg, paths.get(steps, keys)[frames])]
            for keys in self._shown
        },
    }


def is_image(spec: Any) -> bool:
  """Returns whether a leaf of a step with this spec is a decoded image."""
  return (
      spec.dtype in (tf.uint8, tf.uint16)
      and spec.shape.rank == 3
      and spec.shape[-1] in (1, 3, 4)
  )


def _spread_steps(length: int, count: int) -> np.ndarray:
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
  # A part that overlaps a cell has the first or the last number of the cell.
  chosen = np.diff(cells, prepend=-1) != 0
  chosen |= np.diff(cells, append=-1) != 0
  chosen[:_NUM_EXTREMES] = chosen[-_NUM_EXTREMES:] = True
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
) -> List[Dict[str, Any]]:
  """Chooses the episodes that are shown, `count` at most.

  They are the best, the worst and the longest ones; those of the findings; and
  then those that show most of what no other one shows: the bars of histograms,
  and the least and the greatest number of each column.

  Args:
    reading: the `Reading`.
    histograms: its histograms.
    odd: its findings.
    count: how many to choose.

  Returns:
    The excerpts, with the reasons for showing them, the most important ones
    first.
  """
  excerpts = dict(sorted(reading.excerpts.items()))
  reasons = _reasons(excerpts, odd)
  shows = {
      episode: _what_it_shows(reading, histograms, one)
      for episode, one in excerpts.items()
  }
  chosen: List[int] = []
  shown: Set[Tuple[str, int]] = set()
  room = _MAX_BYTES
  while len(chosen) < min(count, len(excerpts)):
    if len(chosen) < len(reasons):
      best = list(reasons)[len(chosen)]
    else:
      best = max(
          (episode for episode in excerpts if episode not in chosen),
          key=lambda episode: len(shows[episode] - shown),
      )
    frames = sum(map(len, tree.flatten(excerpts[best]['frames'])))
    room -= excerpts[best]['curves'].size * _BYTES_OF_NUMBER + frames
    if room < 0 and best not in reasons:
      break
    chosen.append(best)
    shown |= shows[best]
  return [{**excerpts[one], 'reasons': reasons[one]} for one in chosen]


def _reasons(excerpts, odd) -> Dict[int, List[str]]:
  """Returns the episodes that are shown in any case, and why."""
  reasons: Dict[int, List[str]] = collections.defaultdict(list)
  for reason, sign, name in (
      ('highest return', -1, 'return'),
      ('lowest return', 1, 'return'),
      ('longest', -1, 'num_transitions'),
  ):
    ranked = sorted(
        (sign * one[name], episode)
        for episode, one in excerpts.items()
        if one['num_steps'] and np.isfinite(one[name])
    )
    if ranked and ranked[0][0] < ranked[-1][0]:
      # Where there are few episodes, the best are not shown again as the worst.
      for _, episode in ranked[: min(_NUM_EXTREMES, -(-len(ranked) // 4))]:
        reasons[episode].append(reason)
  for one in odd:
    if one.episode is not None:
      reasons[one.episode].append(one.kind.replace('_', ' '))
  return reasons


def _what_it_shows(reading, histograms, excerpt) -> Set[Tuple[str, int]]:
  """Returns the bars that an excerpt shows, and the extremes of columns."""
  columns = {
      'lengths': [excerpt['num_transitions']],
      'returns': [excerpt['return']],
      **dict(zip((one.name for one in reading.columns), excerpt['curves'].T)),
  }
  ends = reading.places[: 2 * len(reading.columns), 0]
  extremes = np.flatnonzero(ends == excerpt['episode'])
  return {('', end) for end in extremes.tolist()}.union(
      (name, bar)
      for name, histogram in histograms.items()
      for bar in np.digitize(columns[name], histogram['edges'][:-1]).tolist()
  )
