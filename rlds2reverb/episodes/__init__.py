"""An episode in memory, or a pack of them: steps, paths, checks and blocks.

All other folders build on these modules; these modules build on none of them.
"""

from etils import epy

# Windows are found in NumPy arrays, too, without TensorFlow.
with epy.lazy_api_imports(globals()):
  from rlds2reverb.episodes.windows import EndOfEpisode
  from rlds2reverb.episodes.windows import Windows
