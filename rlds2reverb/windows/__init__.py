"""Functions on the transitions of one episode, for `dataset.map`.

Chunks, fragments, views, slices, stacks, n-step transitions and returns: none
of them reaches beyond the episode.
"""
