"""Random image augmentation as in dlimp, Octo and OpenVLA.

`Augmentation` has the ranges of the changes. `ImageChanges` defines their order
and their random numbers once: in NumPy for `random_access.Batches`, and in
TensorFlow for `transforms.augment_images`. The images of the two differ by
rounding, by at most 1 of 255.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from rlds2reverb.arrays import normalization

Range = tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """The ranges of random changes of images; `None` disables a change.

  The changes are applied in the order of the attributes. Colors are clipped to
  [0, 1] after each change.

  Attributes:
    crop_scale: minimum and maximum fraction of the image area.
    crop_ratio: minimum and maximum aspect ratio (width to height), relative to
      the aspect ratio of the image.
    brightness: the maximum number that is added or subtracted.
    contrast: minimum and maximum factor of the difference from the mean.
    saturation: minimum and maximum factor of the saturation.
    hue: the maximum rotation of hues, as a fraction of the color circle.
    OCTO: the augmentation of Octo's primary camera.
    OCTO_WRIST: the augmentation of Octo's wrist camera.
    OPENVLA: the augmentation of OpenVLA.
  """

  OCTO: ClassVar['Augmentation']
  OCTO_WRIST: ClassVar['Augmentation']
  OPENVLA: ClassVar['Augmentation']

  crop_scale: Range = None
  crop_ratio: tuple[float, float] = (1.0, 1.0)
  brightness: float | None = None
  contrast: Range = None
  saturation: Range = None
  hue: float | None = None

  def __post_init__(self):
    for name in ('crop_scale', 'crop_ratio', 'contrast', 'saturation'):
      bounds = getattr(self, name)
      if bounds is not None and not 0 <= bounds[0] <= bounds[1]:
        raise ValueError(
            f'{name} must be a minimum and a maximum of at least 0, but is'
            f' {bounds}.'
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


class ImageChanges:
  """Changes images, floats `[N, height, width, 3]` in [0, 1].

  The methods work on NumPy arrays; a subclass overrides them for tensors.
  """

  xp: Any = np
  log = staticmethod(np.log)
  clip = staticmethod(np.clip)

  def apply(self, images: Any, augmentation: Augmentation, draw: Any) -> Any:
    """Returns the changed images.

    Args:
      images: see the class.
      augmentation: the ranges of the changes.
      draw: float32 `[]` in [0, 1), from which all changes are computed, because
        dlimp draws all changes of an image with the same seed.
    """

    def uniform(low, high):
      low, high = np.float32(low), np.float32(high)
      return draw * (high - low) + low

    if augmentation.crop_scale:
      area = uniform(*augmentation.crop_scale)
      low, high = (
          self.log(np.float32(bound)) for bound in augmentation.crop_ratio
      )
      ratio = self.xp.exp(draw * (high - low) + low)
      full = np.float32(1)
      sizes = [
          self.xp.minimum(self.xp.sqrt(squared), full)
          for squared in (area / ratio, area * ratio)
      ]
      starts = [draw * (full - size) for size in sizes]
      images = self.clip(self.crop(images, starts, sizes), 0, 1)
    if augmentation.brightness:
      delta = uniform(-augmentation.brightness, augmentation.brightness)
      images = self.clip(images + delta, 0, 1)
    if augmentation.contrast:
      factor = uniform(*augmentation.contrast)
      images = self.clip(self.adjust_contrast(images, factor), 0, 1)
    if augmentation.saturation or augmentation.hue:
      images = self.adjust_colors(
          images,
          augmentation.saturation and uniform(*augmentation.saturation),
          augmentation.hue and uniform(-augmentation.hue, augmentation.hue),
      )
    return images

  def crop(self, images: Any, starts: Any, sizes: Any) -> Any:
    """Crops the images, and resizes the crop to their size bilinearly.

    Args:
      images: see the class.
      starts: top and left of the crop, as fractions of the image size.
      sizes: height and width of the crop, as fractions of the image size.
    """
    for axis, (start, fraction) in enumerate(zip(starts, sizes), 1):
      size = images.shape[axis]
      stride = fraction * np.float32(size - 1) / np.float32(max(size - 1, 1))
      position = start * np.float32(size - 1)
      position = position + np.arange(size, dtype='f4') * stride
      low = np.floor(position).astype(np.int64).clip(0, size - 1)
      high = np.ceil(position).astype(np.int64).clip(0, size - 1)
      weight = (position - low).astype(np.float32)
      weight = weight.reshape([-1 if a == axis else 1 for a in range(4)])
      lower, upper = images.take(low, axis), images.take(high, axis)
      images = lower + (upper - lower) * weight
    return images

  def adjust_contrast(self, images: Any, factor: Any) -> Any:
    """Scales the difference from the mean of each image and channel."""
    mean = images.mean((1, 2), keepdims=True)
    return (images - mean) * factor + mean

  def adjust_colors(self, images: Any, saturation: Any, hue: Any) -> Any:
    """Multiplies saturations and rotates hues in HSV, unless they are None."""
    red, green, blue = np.moveaxis(images, -1, 0)
    # Ten times as fast as `images.max(-1)`.
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    divisor = np.where(chroma > 0, chroma, 1)
    angle = np.where(
        value == red,
        (green - blue) / divisor,
        np.where(
            value == green,
            (blue - red) / divisor + 2,
            (red - green) / divisor + 4,
        ),
    )
    angle = (angle / 6) % 1
    saturations = chroma / np.where(value > 0, value, 1)
    if saturation is not None:
      saturations = np.clip(saturations * saturation, 0, 1)
    if hue:
      angle = (angle + hue) % 1
    pure = np.stack(
        [
            np.clip(np.abs(angle * 6 - center) * sign + offset, 0, 1)
            for center, sign, offset in ((3, 1, -1), (2, -1, 2), (4, -1, 2))
        ],
        -1,
    )
    return (1 + (pure - 1) * saturations[..., None]) * value[..., None]


def augment(
    images: np.ndarray, augmentation: Augmentation, seed: tuple[int, int]
) -> np.ndarray:
  """Changes images at random, like `transforms.augment_images`.

  Args:
    images: uint8, or floats in [0, 1], `[..., height, width, 3]`. All images of
      leading dimensions, such as a window, are changed in the same way. Black
      images, of missing cameras, stay black.
    augmentation: the ranges of the changes.
    seed: two integers, such as `(seed, index)`.

  Returns:
    The changed images, of the same dtype and shape.

  Raises:
    ValueError: if `images` has another dtype or shape.
  """
  is_uint8 = images.dtype == np.uint8
  has_shape = images.ndim > 2 and images.shape[-1] == 3
  if not has_shape or not (is_uint8 or normalization.is_floating(images)):
    raise ValueError(
        'The images must be uint8 or floats [..., height, width, 3], but are'
        f' {images.dtype} {images.shape}.'
    )
  floats = images.astype(np.float32) / (255 if is_uint8 else 1)
  floats = floats.reshape(-1, *images.shape[-3:])
  is_black = ~floats.any((1, 2, 3), keepdims=True)
  floats = ImageChanges().apply(floats, augmentation, draw_uniform(seed))
  floats = np.where(is_black, 0, floats)
  if is_uint8:
    # As TensorFlow converts floats to integers.
    floats = np.clip(np.floor(floats * np.float32(255.5)), 0, 255)
  return floats.reshape(images.shape).astype(images.dtype)


_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_INCREMENTS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_KEY = (np.uint64(0x3EC8F720), np.uint64(0x02461E29))


def draw_uniform(seed: tuple[int, int]) -> np.float32:
  """Returns the first number of TensorFlow's `stateless_uniform`.

  Its generator is Philox 4x32 with 10 rounds (Salmon et al. 2011), whose key
  and counter are computed from the seed by a first run.
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
    key = [(k + i) & _LOW for k, i in zip(key, _INCREMENTS)]
  return a, b, c, d
