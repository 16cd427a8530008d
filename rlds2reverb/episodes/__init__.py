"""An episode in memory, or a batch of them: steps, paths, checks and blocks.

All other folders use these modules; these modules use none of them.
"""

from etils import epy

# `Windows` works on NumPy arrays, too, without TensorFlow.
with epy.lazy_api_imports(globals()):
  from rlds2reverb.episodes.windows import Windows
