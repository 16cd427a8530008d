"""Changes images at random, in NumPy, as `transforms.augment_images` does.

The same seed gives the same crop and the same changes of colours; the images
differ from those of TensorFlow by rounding, by 1 of 255 here and there.
"""

from typing import Any, Mapping, Tuple

import numpy as np
import tree

from rlds2reverb.episodes import augmentations
from rlds2reverb.episodes import checks

_MASK = np.uint64(0xFFFFFFFF)


def check_fields(
    fields: Mapping[str, augmentations.Augmentation], spec: Any
) -> None:
  """Raises a ValueError if a field to augment is not one of images.

  Args:
    fields: how images are changed, by their paths.
    spec: the nest of one item, with `items.Spec` leaves.
  """
  known = {_name(keys): leaf for keys, leaf in tree.flatten_with_path(spec)}
  for name in fields:
    checks.check_choice('The path of an image', name, list(known))
    if known[name].dtype != 'uint8' or known[name].shape[-1:] != (3,):
      raise ValueError(
          f'{name} is {known[name]}, and not uint8 [..., 3]: only decoded'
          ' images can be augmented. Is it in images=?'
      )


def augment_batch(
    batch: Any,
    fields: Mapping[str, augmentations.Augmentation],
    seed: int,
    places: np.ndarray,
) -> None:
  """Changes the images of a batch in place; see `Batches`.

  Args:
    batch: a nest of arrays `[B, ...]`.
    fields: how images are changed, by their paths.
    seed: the seed of all of them.
    places: the number of each item in all batches, int64 `[B]`.
  """
  if not fields:
    return
  leaves = {_name(keys): leaf for keys, leaf in tree.flatten_with_path(batch)}
  for number, (name, augmentation) in enumerate(fields.items()):
    for images, place in zip(leaves[name], places.tolist()):
      images[...] = augment(
          images, augmentation, (seed + number, place + number)
      )


def _name(keys) -> str:
  return '/'.join(map(str, keys))


def augment(
    images: np.ndarray,
    augmentation: augmentations.Augmentation,
    seed: Tuple[int, int],
) -> np.ndarray:
  """Changes images at random, as `transforms.augment_images` does.

  Args:
    images: uint8 or floats in [0, 1], `[..., height, width, 3]`. Leading
      dimensions, as of a window, have the same changes.
    augmentation: how much they are changed.
    seed: two integers, such as `(seed, index)`.

  Returns:
    The changed images, of the same dtype and shape.

  Raises:
    ValueError: if `images` has another dtype or shape.
  """
  if (
      images.ndim < 3
      or images.shape[-1] != 3
      or not (
          images.dtype == np.uint8 or np.issubdtype(images.dtype, np.floating)
      )
  ):
    raise ValueError(
        'The images must be uint8 or floats [..., height, width, 3], but are'
        f' {images.dtype} {images.shape}.'
    )
  is_integer = images.dtype == np.uint8
  numbers = images.astype(np.float32) / (255 if is_integer else 1)
  numbers = numbers.reshape(-1, *images.shape[-3:])
  is_there = numbers.any((1, 2, 3), keepdims=True)
  draw = _fraction(seed)

  def between(low, high):
    return np.float32(low) + np.float32(high - low) * draw

  if augmentation.crop_scale is not None:
    numbers = _crop(
        numbers,
        between(*augmentation.crop_scale),
        np.exp(between(*np.log(augmentation.crop_ratio))),
        draw,
    )
  if augmentation.brightness is not None:
    most = augmentation.brightness
    numbers = np.clip(numbers + between(-most, most), 0, 1)
  if augmentation.contrast is not None:
    mean = numbers.mean((1, 2), keepdims=True)
    factor = between(*augmentation.contrast)
    numbers = np.clip((numbers - mean) * factor + mean, 0, 1)
  if augmentation.saturation is not None or augmentation.hue is not None:
    hue, saturation, value = _to_hsv(numbers)
    if augmentation.saturation is not None:
      saturation = saturation * between(*augmentation.saturation)
      saturation = np.clip(saturation, 0, 1)
    if augmentation.hue is not None:
      hue = (hue + between(-augmentation.hue, augmentation.hue)) % 1
    numbers = _from_hsv(hue, saturation, value)
  numbers = np.where(is_there, numbers, 0)
  if is_integer:
    # As TensorFlow converts floats to integers.
    numbers = np.clip(np.floor(numbers * np.float32(255.5)), 0, 255)
  return numbers.reshape(images.shape).astype(images.dtype)


def _fraction(seed: Tuple[int, int]) -> np.float32:
  """Returns the first number of TensorFlow's `stateless_uniform`.

  Its generator is Philox 4x32 of 10 rounds (Salmon et al. 2011), whose key and
  counter are made of the seed by a first run. All changes of an image have one
  seed, and each takes the first number.
  """
  words = np.array(seed, np.int64).view(np.uint64)
  counter = [word >> shift & _MASK for word in words for shift in _SHIFTS]
  mixed = _philox(counter, _KEY)
  first = _philox([_ZERO, _ZERO, mixed[2], mixed[3]], mixed[:2])[0]
  # The low 23 bits are the mantissa of a number from 1 to 2.
  bits = np.uint32(first & np.uint64(0x7FFFFF)) | np.uint32(127 << 23)
  return bits.view(np.float32) - np.float32(1)


_ZERO = np.uint64(0)
_SHIFTS = (np.uint64(0), np.uint64(32))
_KEY = (np.uint64(0x3EC8F720), np.uint64(0x02461E29))
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_INCREMENTS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))


def _philox(counter, key):
  """Returns four words of 32 bits, each in a uint64."""
  a, b, c, d = counter
  key = list(key)
  for _ in range(10):
    low, high = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
    a, b, c, d = (
        (high >> _SHIFTS[1]) ^ b ^ key[0],
        high & _MASK,
        (low >> _SHIFTS[1]) ^ d ^ key[1],
        low & _MASK,
    )
    key = [(k + more) & _MASK for k, more in zip(key, _INCREMENTS)]
  return a, b, c, d


def _crop(images, area, ratio, draw):
  """Crops `[N, height, width, 3]`, and resizes the crop bilinearly."""
  one = np.float32(1)
  spans = (
      np.minimum(np.sqrt(area / ratio), one),
      np.minimum(np.sqrt(area * ratio), one),
  )
  for axis, span in enumerate(spans, 1):
    size = images.shape[axis]
    start = (one - span) * draw
    place = start * np.float32(size - 1)
    step = span * np.float32(size - 1) / np.float32(max(size - 1, 1))
    at = place + np.arange(size, dtype=np.float32) * step
    low = np.floor(at).astype(np.int64).clip(0, size - 1)
    high = np.ceil(at).astype(np.int64).clip(0, size - 1)
    share = (at - low).astype(np.float32)
    share = share.reshape([-1 if a == axis else 1 for a in range(4)])
    below, above = images.take(low, axis), images.take(high, axis)
    images = below + (above - below) * share
  return np.clip(images, 0, 1)


def _to_hsv(images):
  """Returns hue, saturation and value, `[N, height, width]` each."""
  red, green, blue = np.moveaxis(images, -1, 0)
  # Ten times as fast as `images.max(-1)`.
  value = np.maximum(np.maximum(red, green), blue)
  spread = value - np.minimum(np.minimum(red, green), blue)
  safe = np.where(spread > 0, spread, 1)
  hue = np.where(
      value == red,
      (green - blue) / safe,
      np.where(
          value == green,
          (blue - red) / safe + 2,
          (red - green) / safe + 4,
      ),
  )
  saturation = spread / np.where(value > 0, value, 1)
  return (hue / 6) % 1, saturation, value


def _from_hsv(hue, saturation, value):
  """Returns images `[N, height, width, 3]`."""
  parts = [
      np.clip(np.abs(hue * 6 - middle) * sign + shift, 0, 1)
      for middle, sign, shift in ((3, 1, -1), (2, -1, 2), (4, -1, 2))
  ]
  shade = np.stack(parts, -1) - 1
  return (1 + shade * saturation[..., None]) * value[..., None]
