"""Exact lookups in recorded transitions, and the graph of their states.

Keys, such as observations and actions, are compared by their bytes. Lookups
work in a graph.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.indexing.graph import Successors
from rlds2reverb.indexing.graph import TransitionGraph
from rlds2reverb.indexing.graph import Tree
from rlds2reverb.indexing.index import LookupResult
from rlds2reverb.indexing.index import TransitionIndex

tf_private.mark_package(__name__)
