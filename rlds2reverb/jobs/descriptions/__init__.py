"""Descriptions of data sets: as text, as a page, as summaries.

`reading` reads the data once, with the statistics, the `facts` of each episode
and `excerpts` of a few; `findings` says what is odd in it, and `description`
makes the description of it, with what `about` and `bounds` know of the
metadata; `text`, `page` and `summaries` show it.
"""
