"""The amounts by which images are changed at random, as values.

`transforms.augment_images` changes images in TensorFlow by them, and
`random_access.Batches` in NumPy.
"""

import dataclasses
from typing import ClassVar, Optional, Tuple

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
    for name in ('brightness', 'hue'):
      greatest = getattr(self, name)
      if greatest is not None and greatest < 0:
        raise ValueError(f'{name} must not be below 0, but is {greatest}.')


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
