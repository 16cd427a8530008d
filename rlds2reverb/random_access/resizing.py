"""Resizes images as `tf.image.resize` does with antialiasing, with NumPy.

Each row of the result is a weighted sum of a few rows of the image, and then
each column likewise. One product of matrices makes a block of neighbouring rows
from all rows that they need.
"""

import functools
from typing import Any, List, Tuple

import numpy as np

# The number of rows, or columns, that one product makes. With fewer, the
# products are too small to be fast; with more, most of the weights are 0.
_BLOCK = 8

# One thread makes a product of this many multiplications or fewer. OpenBLAS
# splits larger ones between its threads, which wait busily for each other if
# several threads resize at once.
_MAX_MULTIPLICATIONS = 1 << 18


def resize(image: np.ndarray, size: Tuple[int, int], method: str) -> np.ndarray:
  """Returns an image of another size.

  It is that of `tf.image.resize(image, size, method, antialias=True)`, rounded
  and clipped to the dtype. As sums are added up in another order, a number may
  be rounded to its neighbour.

  Args:
    image: uint8 or uint16 `[H, W, C]`.
    size: the new height and width.
    method: `'lanczos3'` or `'bilinear'`.

  Returns:
    `[*size, C]`, of the dtype of the image.
  """
  height, width, channels = image.shape
  if (height, width) == tuple(size):
    return image
  pixels = image.reshape([height, width * channels])
  rows = np.empty([size[0], width * channels], np.float32)
  for begin, end, first, last, weights in _blocks(height, size[0], method, 1):
    _multiply(weights, pixels[first:last].astype(np.float32), rows[begin:end])
  resized = np.empty([size[0], size[1] * channels], np.float32)
  blocks = _blocks(width, size[1], method, channels)
  for begin, end, first, last, weights in blocks:
    _multiply(rows[:, first:last], weights.T, resized[:, begin:end])
  np.rint(resized, resized)
  np.clip(resized, 0, np.iinfo(image.dtype).max, resized)
  return resized.astype(image.dtype).reshape([*size, channels])


def _multiply(left: np.ndarray, right: np.ndarray, product: np.ndarray) -> None:
  """Multiplies two matrices, part by part."""
  height, inner = left.shape
  width = right.shape[1]
  if width > height:
    step = max(_MAX_MULTIPLICATIONS // (height * inner), 1)
    for begin in range(0, width, step):
      part = slice(begin, begin + step)
      np.matmul(left, right[:, part], product[:, part])
  else:
    step = max(_MAX_MULTIPLICATIONS // (width * inner), 1)
    for begin in range(0, height, step):
      part = slice(begin, begin + step)
      np.matmul(left[part], right, product[part])


@functools.lru_cache(maxsize=256)
def _blocks(
    length: int, new_length: int, method: str, channels: int
) -> List[Any]:
  """Returns the weights of each block of rows, or of columns with channels.

  Args:
    length: how many there are.
    new_length: how many there will be.
    method: see `resize`.
    channels: how many numbers stand side by side for each of them.

  Returns:
    For each block, its begin and end, the begin and end of the rows it needs,
    and the weights, float32.
  """
  weights = _weights(length, new_length, method)
  blocks = []
  for begin in range(0, new_length, _BLOCK):
    part = weights[begin : begin + _BLOCK]
    used = np.flatnonzero(part.any(axis=0))
    first, last = int(used[0]), int(used[-1]) + 1
    part = np.kron(part[:, first:last], np.eye(channels, dtype=np.float32))
    ends = np.array([begin, begin + _BLOCK, first, last]) * channels
    ends[1] = min(ends[1], new_length * channels)
    blocks.append((*ends.tolist(), part))
  return blocks


def _weights(length: int, new_length: int, method: str) -> np.ndarray:
  """Returns the weight of each row in each new row, float32 `[new, old]`.

  As `ScaleAndTranslate` of TensorFlow computes them, in float32.
  """
  one = np.float32(1)
  inverse_scale = one / np.float32(np.float32(new_length) / np.float32(length))
  kernel_scale = np.maximum(inverse_scale, one)
  centre = (np.arange(new_length, dtype=np.float32) + np.float32(0.5)) * (
      inverse_scale
  )
  places = np.arange(length, dtype=np.float32) + np.float32(0.5)
  distance = (places[np.newaxis] - centre[:, np.newaxis]) / kernel_scale
  weights = _lanczos3(distance) if method == 'lanczos3' else _triangle(distance)
  sums = weights.sum(axis=1, keepdims=True)
  return (weights / sums).astype(np.float32)


def _triangle(x: np.ndarray) -> np.ndarray:
  return np.maximum(1 - np.abs(x), 0)


def _lanczos3(x: np.ndarray) -> np.ndarray:
  x = np.abs(x)
  y = np.pi * np.where(x == 0, 1, x)
  value = 3 * np.sin(y) * np.sin(y / 3) / (y * y)
  return np.where(x == 0, 1, np.where(x < 3, value, 0)).astype(np.float32)
