"""An index of recorded transitions: what was recorded for a key, and after it.

Keys are observations and actions by their bytes, and lookups work in a graph.
"""

from rlds2reverb.indexing.drawing import draw_tree
from rlds2reverb.indexing.index import TransitionIndex
