"""Descriptions of data sets: as text, as a page, for TensorBoard.

`reading` reads the data once, with the statistics, what `findings` looks for in
each episode, and `excerpts` of a few; `description` makes the description of
it, with what `metadata` says; and `views` show it.
"""
