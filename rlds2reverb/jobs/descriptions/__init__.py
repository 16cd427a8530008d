"""Descriptions of data sets: as text, as a page, for TensorBoard.

`reading` reads the data once: statistics, findings and excerpts. `description`
makes the description from these, and `views` show it.
"""
