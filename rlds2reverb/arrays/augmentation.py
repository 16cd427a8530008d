"""Changes images at random, as dlimp does, and Octo and OpenVLA with it.

`Augmentation` says by how much. The changes, their order and their random
numbers are defined here, once. NumPy makes them for `random_access.Batches`,
and TensorFlow for `transforms.augment_images`. The images differ by rounding,
by 1 of 255 here and there.
"""

import dataclasses
from typing import Any, ClassVar, Optional, Tuple

import numpy as np

from rlds2reverb.arrays import constants

Range = Optional[Tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """The amounts by which images are changed; `None` leaves a change out.

  The changes come in the order of the attributes. After each of them, colours
  are clipped to [0, 1].

  Attributes:
    crop_scale: the least and the greatest share of the image's area.
    crop_ratio: the least and the greatest ratio of width to height, relative to
      the image's.
    brightness: the largest number that is added or subtracted.
    contrast: the least and the greatest factor of the distance from the mean.
    saturation: the least and the greatest factor.
    hue: the largest turn of hues, as a fraction of the circle of colours.
    OCTO: that of Octo's main camera.
    OCTO_WRIST: that of Octo's camera at the wrist.
    OPENVLA: that of OpenVLA.
  """

  OCTO: ClassVar['Augmentation']
  OCTO_WRIST: ClassVar['Augmentation']
  OPENVLA: ClassVar['Augmentation']

  crop_scale: Range = None
  crop_ratio: Tuple[float, float] = (1.0, 1.0)
  brightness: Optional[float] = None
  contrast: Range = None
  saturation: Range = None
  hue: Optional[float] = None

  def __post_init__(self):
    for name in ('crop_scale', 'crop_ratio', 'contrast', 'saturation'):
      bounds = getattr(self, name)
      if bounds is not None and not 0 <= bounds[0] <= bounds[1]:
        raise ValueError(
            f'{name} must be two numbers, the least first, but is {bounds}.'
        )


# As in scripts/configs of Octo (241fb351).
Augmentation.OCTO = Augmentation(
    (0.8, 1.0), (0.9, 1.1), 0.1, (0.9, 1.1), (0.9, 1.1), 0.05
)
Augmentation.OCTO_WRIST = dataclasses.replace(
    Augmentation.OCTO, crop_scale=None
)
# As in prismatic/vla/datasets/datasets.py of OpenVLA (c8f03f48).
Augmentation.OPENVLA = Augmentation(
    (0.9, 0.9), (1.0, 1.0), 0.2, (0.8, 1.2), (0.8, 1.2), 0.05
)


class Changes:
  """The changes of images, floats `[N, height, width, 3]` in [0, 1].

  The methods are those of NumPy; a subclass replaces them for tensors.
  """

  xp: Any = np
  log = staticmethod(np.log)
  clip = staticmethod(np.clip)

  def apply(self, images: Any, augmentation: Augmentation, draw: Any) -> Any:
    """Returns the changed images.

    Args:
      images: see the class.
      augmentation: how much they are changed.
      draw: float32 `[]` in [0, 1), from which all random numbers are made, as
        all changes of an image have one seed in dlimp.
    """

    def between(low, high):
      low, high = np.float32(low), np.float32(high)
      return draw * (high - low) + low

    changed = augmentation
    if changed.crop_scale:
      area = between(*changed.crop_scale)
      bounds = (self.log(np.float32(bound)) for bound in changed.crop_ratio)
      low, high = bounds
      ratio = self.xp.exp(draw * (high - low) + low)
      one = np.float32(1)
      spans = [
          self.xp.minimum(self.xp.sqrt(share), one)
          for share in (area / ratio, area * ratio)
      ]
      starts = [draw * (one - span) for span in spans]
      images = self.clip(self.crop(images, starts, spans), 0, 1)
    if changed.brightness:
      shift = between(-changed.brightness, changed.brightness)
      images = self.clip(images + shift, 0, 1)
    if changed.contrast:
      factor = between(*changed.contrast)
      images = self.clip(self.adjust_contrast(images, factor), 0, 1)
    if changed.saturation or changed.hue:
      images = self.adjust_colours(
          images,
          changed.saturation and between(*changed.saturation),
          changed.hue and between(-changed.hue, changed.hue),
      )
    return images

  def crop(self, images: Any, starts: Any, spans: Any) -> Any:
    """Returns a part of the images, resized bilinearly to their size.

    Args:
      images: see the class.
      starts: the top and the left end of the part, as shares of the image.
      spans: its height and width.
    """
    for axis, (start, span) in enumerate(zip(starts, spans), 1):
      size = images.shape[axis]
      step = span * np.float32(size - 1) / np.float32(max(size - 1, 1))
      at = start * np.float32(size - 1) + np.arange(size, dtype='f4') * step
      low = np.floor(at).astype(np.int64).clip(0, size - 1)
      high = np.ceil(at).astype(np.int64).clip(0, size - 1)
      share = (at - low).astype(np.float32)
      share = share.reshape([-1 if a == axis else 1 for a in range(4)])
      below, above = images.take(low, axis), images.take(high, axis)
      images = below + (above - below) * share
    return images

  def adjust_contrast(self, images: Any, factor: Any) -> Any:
    """Multiplies the distance from the mean of each image and colour."""
    mean = images.mean((1, 2), keepdims=True)
    return (images - mean) * factor + mean

  def adjust_colours(self, images: Any, saturation: Any, hue: Any) -> Any:
    """Multiplies saturations, and then adds to hues, unless they are None."""
    red, green, blue = np.moveaxis(images, -1, 0)
    # Ten times as fast as `images.max(-1)`.
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    safe = np.where(spread > 0, spread, 1)
    angle = np.where(
        value == red,
        (green - blue) / safe,
        np.where(
            value == green, (blue - red) / safe + 2, (red - green) / safe + 4
        ),
    )
    angle = (angle / 6) % 1
    pure = spread / np.where(value > 0, value, 1)
    if saturation is not None:
      pure = np.clip(pure * saturation, 0, 1)
    if hue:
      angle = (angle + hue) % 1
    shades = [
        np.clip(np.abs(angle * 6 - middle) * sign + shift, 0, 1)
        for middle, sign, shift in ((3, 1, -1), (2, -1, 2), (4, -1, 2))
    ]
    return (1 + (np.stack(shades, -1) - 1) * pure[..., None]) * value[..., None]


def augment(
    images: np.ndarray, augmentation: Augmentation, seed: Tuple[int, int]
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
  is_integer = images.dtype == np.uint8
  are_images = images.ndim > 2 and images.shape[-1] == 3
  if not are_images or not (is_integer or constants.is_floating(images)):
    raise ValueError(
        'The images must be uint8 or floats [..., height, width, 3], but are'
        f' {images.dtype} {images.shape}.'
    )
  numbers = images.astype(np.float32) / (255 if is_integer else 1)
  numbers = numbers.reshape(-1, *images.shape[-3:])
  is_there = numbers.any((1, 2, 3), keepdims=True)
  numbers = Changes().apply(numbers, augmentation, fraction(seed))
  numbers = np.where(is_there, numbers, 0)
  if is_integer:
    # As TensorFlow converts floats to integers.
    numbers = np.clip(np.floor(numbers * np.float32(255.5)), 0, 255)
  return numbers.reshape(images.shape).astype(images.dtype)


_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_INCREMENTS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_KEY = (np.uint64(0x3EC8F720), np.uint64(0x02461E29))


def fraction(seed: Tuple[int, int]) -> np.float32:
  """Returns the first number of TensorFlow's `stateless_uniform`.

  Its generator is Philox 4x32 of 10 rounds (Salmon et al. 2011), whose key and
  counter are made of the seed by a first run.
  """
  words = np.array(seed, np.int64).view(np.uint64)
  counter = [half for word in words for half in (word & _LOW, word >> _HALF)]
  mixed = _philox(counter, _KEY)
  zero = np.uint64(0)
  first = _philox([zero, zero, mixed[2], mixed[3]], mixed[:2])[0]
  # The low 23 bits are the mantissa of a number from 1 to 2.
  bits = np.uint32(first & np.uint64(0x7FFFFF)) | np.uint32(127 << 23)
  return bits.view(np.float32) - np.float32(1)


def _philox(counter, key):
  """Returns four words of 32 bits, each in a uint64."""
  a, b, c, d = counter
  for _ in range(10):
    low, high = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
    a, b = (high >> _HALF) ^ b ^ key[0], high & _LOW
    c, d = (low >> _HALF) ^ d ^ key[1], low & _LOW
    key = [(k + more) & _LOW for k, more in zip(key, _INCREMENTS)]
  return a, b, c, d
