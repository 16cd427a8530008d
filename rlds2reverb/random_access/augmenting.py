"""Changes the images of batches at random."""

from typing import Any, Mapping

import numpy as np
import tree

from rlds2reverb.arrays import augmentation
from rlds2reverb.episodes import checks

Fields = Mapping[str, augmentation.Augmentation]


def check_fields(fields: Fields, spec: Any) -> None:
  """Raises a ValueError if a field to augment is not one of images.

  Args:
    fields: how images are changed, by their paths.
    spec: the nest of one item, with `items.Spec` leaves.
  """
  known = _leaves(spec)
  for name in fields:
    checks.check_choice('The path of an image', name, list(known))
    if known[name].dtype != 'uint8' or known[name].shape[-1:] != (3,):
      raise ValueError(
          f'{name} is {known[name]}, and not uint8 [..., 3]: only decoded'
          ' images can be augmented. Is it in images=?'
      )


def augment_batch(
    batch: Any, fields: Fields, seed: int, places: np.ndarray
) -> None:
  """Changes the images of a batch in place; see `Batches`.

  Args:
    batch: a nest of arrays `[B, ...]`.
    fields: how images are changed, by their paths.
    seed: the seed of all of them.
    places: the number of each item in all batches, int64 `[B]`.
  """
  leaves = _leaves(batch) if fields else {}
  for number, (name, how) in enumerate(fields.items()):
    for images, place in zip(leaves[name], places.tolist()):
      images[...] = augmentation.augment(
          images, how, (seed + number, place + number)
      )


def _leaves(nest):
  return {
      '/'.join(map(str, keys)): leaf
      for keys, leaf in tree.flatten_with_path(nest)
  }
