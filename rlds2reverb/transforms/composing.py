"""Several transforms and filters as one object."""

import dataclasses
from typing import Sequence, Union

import gin

from rlds2reverb.transforms import base


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class Compose(base.EpisodeTransform):
  """Applies transforms and filters one after the other.

  If there is a filter or a transform that draws among them, use it in
  `transform_episodes`, and not in `rlds_data.map`, which cannot leave out an
  episode and does not count them. `transform` and `invert` work on steps, so
  they pass over filters.

  Attributes:
    transforms: transforms and filters, some of which may be `Compose`
      themselves. The inverse goes through them from the last to the first.

  Raises:
    ValueError: if one of them is neither a transform nor a filter; and if one
      that holds a filter, or a transform that draws, is called on an episode.
  """

  transforms: Sequence[Union[base.EpisodeTransform, base.EpisodeFilter]]

  def __post_init__(self):
    object.__setattr__(self, 'transforms', tuple(self.transforms))
    for transform in self.transforms:
      if not isinstance(transform, (base.EpisodeTransform, base.EpisodeFilter)):
        raise ValueError(
            'Compose takes objects of type EpisodeTransform and EpisodeFilter,'
            f' but was given {transform!r}. Pass a function from an episode to'
            ' an episode to transform_episodes instead.'
        )

  def __call__(self, episode, episode_index=None):
    if self.has_filter or self.draws:
      held = 'filter' if self.has_filter else 'transform that draws'
      raise ValueError(
          f'This Compose holds a {held}, and so it cannot be called on a single'
          ' episode, as in rlds_data.map(compose). Use'
          ' transform_episodes(rlds_data, [compose]).'
      )
    return super().__call__(episode)

  @property
  def has_filter(self) -> bool:  # type: ignore[override]
    return any(transform.has_filter for transform in self.transforms)

  @property
  def draws(self) -> bool:  # type: ignore[override]
    return any(transform.draws for transform in self.transforms)

  @property
  def takes_batches(self) -> bool:  # type: ignore[override]
    return all(transform.takes_batches for transform in self.transforms)

  def transform_batch(self, batch, episode_index=None):
    for transform in self.transforms:
      batch = transform.transform_batch(batch, episode_index)
    return batch

  def transform(self, steps):
    for transform in self._without_filters():
      steps = transform.transform(steps)
    return steps

  def invert(self, steps):
    for transform in reversed(self._without_filters()):
      steps = transform.invert(steps)
    return steps

  def _without_filters(self):
    return [
        transform
        for transform in self.transforms
        if isinstance(transform, base.EpisodeTransform)
    ]
