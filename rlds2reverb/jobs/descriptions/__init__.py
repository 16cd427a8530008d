"""Descriptions of data sets: as text, as a page, as summaries.

`one_pass` reads the data, `facts` and `excerpts` note what is in each episode,
and `findings` adds it up; `histograms`, `oddities` and `description` make the
description from that, and `about` from the metadata; `text`, `page` and
`summaries` show it.
"""
