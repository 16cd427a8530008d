"""Findings: checks for oddities in episodes, and sentences about them.

`check_episodes` checks a batch of episodes. `find` makes findings from its
results and from statistics.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

from rlds2reverb.episodes import checks
from rlds2reverb.episodes import rlds

# Minimum fraction of values between -1 and 1 for an action with that range.
_NEARLY_ALL = 0.95
# Minimum fraction of values at an end of the range of a saturated action. An
# action with few distinct values is a switch, and not saturated.
_SATURATED = 0.05
_MAX_SWITCH = 10
_MAX_LISTED = 8
# The first bytes of PNG, JPEG, GIF and BMP.
_IMAGE_HEADS = b'\x89PNG', b'\xff\xd8\xff', b'GIF8', b'BM'
# Maximum error of JPEG for an image of a single color.
_JPEG_ERROR = 2
# Common names of step fields that mark the end of a recorded trajectory.
_NEXT_OBSERVATIONS = (
    'next_observation',
    'next_observations',
    'next_obs',
    'new_obs',
)
_ENDS = ('timeout', 'timeouts', 'truncated', 'truncateds', 'truncations')
_STARTS = ('episode_start', 'episode_starts')
_IDS = (
    'episode_id',
    'episode_ids',
    'episode_index',
    'trajectory_id',
    'traj_id',
)
_TIMES = (
    'step_index',
    'timestep',
    'timesteps',
    'time_step',
    'frame_index',
    'timestamp',
    'timestamps',
)

# Continuations of "In 2 of 40 episodes, ", in the order of the findings: for
# complete episodes, and for single steps.
OF_EPISODES = {
    'empty': 'there are no steps',
    'unreadable': (
        'the episode cannot be read, so a conversion refuses it; the program'
        ' `validate` prints the reason'
    ),
    'invalid': (
        'the flags or discounts break a rule, so a conversion refuses the'
        ' episode; the program `validate` prints the rule'
    ),
    'zero_rewards': 'all rewards are 0',
    'duplicates': (
        'observations, actions and rewards equal those of an earlier episode'
    ),
}
OF_STEPS = {
    'bootstraps': (
        'the discount of the transition into the terminal step is not 0, so a'
        ' learner bootstraps through the end;'
        ' ConversionRules.terminal_discount = "transition" sets it to 0'
    ),
    'last_reward': (
        'the last step has a reward, which no transition has;'
        ' StepMapping.last_reward = "transition" moves it onto the transition'
        ' into that step, by --gin_binding or a config (docs/robotics.md, "The'
        ' last step")'
    ),
    'dropped_reward': (
        'the last transition is dropped, because its next observation is not'
        ' in the data; the last step has its reward, which no learner sees'
    ),
    'joined': (
        'the next observation of a step is not the observation of the step'
        ' after it, or its flags, episode or time indicate that another'
        ' episode begins there: trajectories seem to be joined'
    ),
    'last_is_dummy': (
        'the last observation is zero or the same as the one before: it may be'
        ' a dummy'
    ),
}


# Kinds of findings in fields with statistics.
OF_FIELDS = ('not_finite', 'outside')


class Finding(NamedTuple):
  """An oddity in the data.

  Attributes:
    kind: one of `OF_EPISODES` or `OF_STEPS`; or `not_finite`, `outside_bounds`,
      `outside_unit`, `saturated` or `constant`.
    field: the path of the field, or None.
    message: a sentence with the following numbers.
    num_episodes: the number of episodes with the oddity; None if it was found
      in a sample of all steps.
    episode: the index of the first such episode, or of an example.
    step: the index of the first such step; None if it is of no single step.
  """

  kind: str
  field: str | None
  message: str
  num_episodes: int | None = None
  episode: int | None = None
  step: int | None = None


def check_episodes(
    steps: dict[str, Any],
    row_splits: np.ndarray,
    are_valid: np.ndarray,
    are_new: np.ndarray,
    is_last_dropped: bool = False,
    is_fault: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """Checks a batch of episodes for oddities, in NumPy.

  Args:
    steps: the steps of `E` episodes, `[N, ...]`.
    row_splits: the begins and ends of the episodes, `[E + 1]`.
    are_valid: which episodes are valid for a conversion, bool `[E]`.
    are_new: which have a content that no earlier episode has, bool `[E]`.
    is_last_dropped: see `episode_dataset.is_last_transition_dropped`.
    is_fault: whether the batch is an unreadable episode, without its steps.

  Returns:
    Which episodes show each of `OF_EPISODES`, bool `[E, 5]`, and which steps
    each of `OF_STEPS`, bool `[N, 5]`.
  """
  row, lengths = np.arange(row_splits[-1]), np.diff(row_splits)
  ends = row_splits[1:]
  are_last = np.isin(row, ends - 1)
  (reward,) = tree.flatten(steps[rlds.REWARD])
  reward, discount = np.ravel(reward), np.ravel(steps[rlds.DISCOUNT])
  num_rewards = sums(reward != 0, row_splits)
  at_end = np.ravel(steps[rlds.IS_LAST]) * np.ravel(steps[rlds.IS_TERMINAL]) > 0
  dummies = ends[lengths > 1] - 1
  for leaf in tree.flatten(steps[rlds.OBSERVATION]):
    last, previous = leaf[dummies], leaf[dummies - 1]
    odd = (last == previous) | (last == 0)
    dummies = dummies[odd.all(axis=tuple(range(1, odd.ndim)))]
  of_episodes = (
      (lengths == 0) & (not is_fault),
      np.full(len(lengths), is_fault),
      (lengths > 0) & ~are_valid,
      (lengths > 1) & (num_rewards == 0),
      (lengths > 0) & ~are_new,
  )
  has_last_reward = are_last & (reward != 0) & np.isfinite(reward)
  # If the previous step has a reward, too, it has the last transition's.
  are_first = np.isin(row, row_splits[:-1])
  is_reward_dropped = is_last_dropped | are_first | (np.roll(reward, 1) != 0)
  of_steps = (
      np.roll(at_end, -1) & ~are_last & (discount != 0),
      has_last_reward & ~is_reward_dropped,
      has_last_reward & is_reward_dropped,
      find_joined(steps, row_splits),
      np.isin(row, dummies),
  )
  return np.stack(of_episodes, 1), np.stack(of_steps, 1)


class CameraCheck:
  """Finds episodes in which every frame of a camera is a single color.

  Encoded images are decoded until a frame has several colors, which is usually
  the first frame of an episode.

  Attributes:
    field: the path of the field in a step.
    num_frames: the number of frames.
    num_plain: the number of episodes whose frames all have a single color.
    first_plain: the index of the first such episode.
    colors: at most two of their colors.
    is_frozen: whether all frames of all episodes are the same image.
  """

  def __init__(self, field: str):
    self.field = field
    self.num_frames = self.num_plain = 0
    self.first_plain: int | None = None
    self.colors: list[tuple[int, ...]] = []
    self.is_frozen = True
    self._first_frame: Any = None

  def add(self, index: int, frames: np.ndarray) -> None:
    """Adds the frames of an episode: images `[T, H, W, C]` or strings."""
    if not len(frames):
      return
    if self._first_frame is None:
      self._first_frame = np.array(frames[0])
      # Other strings, such as instructions, are often constant.
      if frames.dtype == object and self._first_frame.size:
        self.is_frozen = self._first_frame.flat[0].startswith(_IMAGE_HEADS)
    self.num_frames += len(frames)
    self.is_frozen &= bool((frames == self._first_frame).all())
    if frames.dtype == object:
      frames = np.array(list(dict.fromkeys(frames.ravel().tolist())), object)
    colors = set()
    for frame in frames:
      color = _plain_color(frame)
      if color is None:
        return
      colors.add(color)
    self.num_plain += 1
    if self.first_plain is None:
      self.first_plain = index
    self.colors = sorted({*self.colors, *colors})[:2]


def _plain_color(frame: Any) -> tuple[int, ...] | None:
  """Returns the color of an image of a single color, or None."""
  if isinstance(frame, bytes):
    if not frame.startswith(_IMAGE_HEADS):
      return None
    try:
      frame = tf.io.decode_image(frame, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError:
      return None
  pixels = frame.reshape(-1, frame.shape[-1]).astype(np.int64)
  # The corners of most images differ.
  for subset in pixels[[0, -1]], pixels:
    if (np.ptp(subset, 0) > _JPEG_ERROR).any():
      return None
  return tuple(np.round(pixels.mean(0)).astype(int).tolist())


def find_joined(steps: dict[str, Any], row_splits: np.ndarray) -> np.ndarray:
  """Returns the steps after which another trajectory begins, bool `[N]`.

  It compares fields that are not of RLDS, by their names: next observations,
  ends, starts and ids of episodes, and times of steps.

  Args:
    steps: the steps of episodes, `[N, ...]`.
    row_splits: the begins and ends of the episodes, `[E + 1]`.
  """
  num_steps = row_splits[-1]
  is_joined = np.zeros(num_steps, bool)
  if num_steps < 2:
    return is_joined
  # A last step has no transition, and may have zeros in such fields.
  is_inner = np.ones(num_steps, bool)
  is_inner[row_splits[1:][np.diff(row_splits) > 0] - 1] = False
  is_before_inner = np.append(is_inner[1:], False) & is_inner
  for name, value in steps.items():
    if name in _NEXT_OBSERVATIONS:
      try:
        tree.assert_same_structure(value, steps[rlds.OBSERVATION])
      except (TypeError, ValueError):
        continue
      pairs = zip(tree.flatten(value), tree.flatten(steps[rlds.OBSERVATION]))
      for expected, actual in pairs:
        if expected.shape != actual.shape:
          continue
        expected, actual = expected[:-1], actual[1:]
        is_nan = (expected != expected) & (actual != actual)
        differs = (expected != actual) & ~is_nan
        differs = differs.reshape(num_steps - 1, -1).any(1)
        # The last observation may be a dummy.
        is_joined[:-1] |= differs & is_before_inner[:-1]
      continue
    if not isinstance(value, np.ndarray) or value.size != num_steps:
      continue
    value = value.reshape(-1)
    if name in _ENDS and value.dtype.kind in 'biuf':
      is_joined |= (value != 0) & is_before_inner
    elif name in _STARTS and value.dtype.kind in 'biuf':
      is_joined[:-1] |= (value[1:] != 0) & is_before_inner[:-1]
    elif name in _IDS:
      is_joined[:-1] |= (value[1:] != value[:-1]) & is_before_inner[:-1]
    elif name in _TIMES and value.dtype.kind in 'iuf':
      is_joined[:-1] |= (value[1:] < value[:-1]) & is_before_inner[:-1]
  return is_joined


def sums(numbers: np.ndarray, splits: np.ndarray, axis: int = 0) -> np.ndarray:
  """Returns the sums between adjacent splits, along an axis."""
  totals = np.insert(np.cumsum(numbers, axis), 0, 0, axis)
  return np.diff(np.take(totals, splits, axis), axis=axis)


def find(reading: Any) -> list[Finding]:
  """Returns all findings of a `Reading`."""
  return [
      *_find_in_episodes(reading),
      *_find_saturated(reading),
      *_find_constant(reading),
      *_find_constant_cameras(reading),
  ]


def _find_in_episodes(reading) -> Iterator[Finding]:
  """Yields findings of single episodes, with the first such episode."""
  num_read = len(reading.episodes)

  def make(kind, field, num_episodes, text, detail, *place):
    text = f'In {num_episodes} of {num_read} episodes, {text}.'
    text = f'{text} The first is episode {place[0]}{detail}.'
    return Finding(kind, field, text, num_episodes, *place)

  for column, (kind, text) in enumerate(OF_EPISODES.items()):
    odd = reading.episodes[reading.episodes['odd'][:, column]].tolist()
    if odd:
      first = dict(zip(reading.episodes.dtype.names, odd[0]))
      detail = ''
      if kind == 'duplicates':
        detail = f', which repeats episode {first["original"]}'
      yield make(kind, None, len(odd), text, detail, first['index'])
  places = reading.places[2 * len(reading.columns) :].tolist()
  for (kind, field), place, (num_episodes, total) in zip(
      reading.kinds, places, reading.shown.T.tolist()
  ):
    text = OF_STEPS.get(kind)
    if kind == 'not_finite':
      numbers = checks.counted(total, 'number that is', 'numbers that are')
      text = f'{field} has {numbers} NaN or infinite'
    elif kind == 'outside':
      numbers = int(reading.statistics.fields[field].count.sum())
      kind, bounds = 'outside_unit', '-1 to 1, where nearly all the others are'
      if field in reading.bounds:
        kind = 'outside_bounds'
        bounds = f'the bounds of {reading.bounds[field].source}'
      elif numbers - total < _NEARLY_ALL * numbers:
        continue
      text = f'{field} has {total} of {numbers} values outside {bounds}'
    if num_episodes:
      detail = f', step {place[1]}'
      yield make(kind, field, num_episodes, text, detail, *place)


def _find_saturated(reading) -> Iterator[Finding]:
  """Yields actions that are often exactly at an end of their range."""
  for field, statistics in reading.statistics.fields.items():
    if field.split('/')[0] != rlds.ACTION or not statistics.is_floating:
      continue
    texts, places = [], []
    for index, column in reading.columns_of(field):
      sample = reading.samples[column.offset]
      if np.unique(sample).size <= _MAX_SWITCH:
        continue
      ends = np.array([sample.min(), sample.max()])
      is_near = np.mean(np.abs(sample) <= 1) >= _NEARLY_ALL
      if is_near or field in reading.bounds:  # Ignores outliers.
        ends = np.clip(ends, *reading.limits[:, column.offset])
      counts = np.isclose(sample, ends[:, None], 1e-6, 1e-6).sum(1)
      # Each end has at least one value.
      if sum(counts) - 2 >= max(_SATURATED * sample.size, _MAX_SWITCH):
        low, high = counts / sample.size
        texts.append(
            f'{column.name} is {ends[0]:g} in {low:.0%} and {ends[1]:g} in'
            f' {high:.0%}'
        )
        places.append(reading.find_extremes(index)[int(low < high)])
    if texts:
      text = (
          f'{len(texts)} of {statistics.count.size} numbers of {field} are'
          ' often exactly at an end of their range, as if they were clipped:'
          f' {_join(texts)} of the steps.'
      )
      yield Finding('saturated', field, text, None, *places[0])


def _find_constant(reading) -> Iterator[Finding]:
  """Yields fields with constant numbers."""
  count, total = reading.statistics.num_episodes, len(reading.episodes)
  for field, statistics in reading.statistics.fields.items():
    low, high = statistics.min.ravel(), statistics.max.ravel()
    constant = np.flatnonzero((low == high) & (statistics.count.ravel() > 1))
    # Other checks cover rewards and discounts.
    if field.split('/')[0] in (rlds.REWARD, rlds.DISCOUNT) or not constant.size:
      continue
    text = f'is always {low[0]:g}'
    if low.size > 1:
      listed = _join([f'[{column}] ({low[column]:g})' for column in constant])
      text = (
          f'is constant in {constant.size} of its {low.size} numbers, {listed}'
      )
    text = f'In {count} of {total} episodes, {field} {text}.'
    yield Finding('constant', field, text, count)


def _find_constant_cameras(reading) -> Iterator[Finding]:
  """Yields cameras with frames of a single color, or a single image."""
  total = len(reading.episodes)
  for camera in reading.cameras:
    if camera.num_plain:
      color = ''
      if len(camera.colors) == 1:
        (values,) = camera.colors
        is_black = not any(values[:3])
        color = ': black' if is_black else f': {values}'
      text = (
          f'In {camera.num_plain} of {total} episodes, every frame of'
          f' {camera.field} is a single color{color}. The first is episode'
          f' {camera.first_plain}.'
      )
      place = camera.num_plain, camera.first_plain
    elif camera.is_frozen and camera.num_frames > 1:
      count = reading.statistics.num_episodes
      text = (
          f'In {count} of {total} episodes, all frames of {camera.field} are'
          ' the same image.'
      )
      place = count, None
    else:
      continue
    yield Finding('constant', camera.field, text, *place)


def _join(texts) -> str:
  more = ['...'] if len(texts) > _MAX_LISTED else []
  return ', '.join([*texts[:_MAX_LISTED], *more])
