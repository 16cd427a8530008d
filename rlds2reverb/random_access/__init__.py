"""Reads steps of RLDS files in any order, in PyTorch, JAX or TensorFlow.

`build_index` reads the files of a TFDS data set once. The index is small: it
holds the numeric fields of every step, and the location of each image. From
then on any step can be read directly, even without TensorFlow.
"""

from etils import epy

# Opening and reading an index needs no TensorFlow.
with epy.lazy_api_imports(globals()):
  from rlds2reverb.arrays.augmentation import Augmentation
  from rlds2reverb.arrays.normalization import Normalize
  from rlds2reverb.random_access.batches import Batches
  from rlds2reverb.random_access.building import build_index
  from rlds2reverb.random_access.chunks import ActionChunks
  from rlds2reverb.random_access.images import ImageFormat
  from rlds2reverb.random_access.index import Index
  from rlds2reverb.random_access.index import IndexedData
  from rlds2reverb.random_access.items import Items
  from rlds2reverb.random_access.opening import open_batches
