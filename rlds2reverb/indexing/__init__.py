"""An index of recorded transitions, by key, and of the states that follow.

Keys are observations and actions, compared by bytes. Lookups work in a graph.
"""

from rlds2reverb.indexing.index import TransitionIndex
