"""Descriptions of data sets: as text, as a page, as summaries.

`one_pass` reads the data, `facts` and `excerpts` note what is in each episode,
and `findings` adds it up; `histograms`, `oddities` and `description` make the
description from that, and `about` from the metadata; `text`, `page` and
`summaries` show it.
"""

from rlds2reverb.jobs.descriptions.description import Description
from rlds2reverb.jobs.descriptions.one_pass import Bounds
from rlds2reverb.jobs.descriptions.page import to_html
from rlds2reverb.jobs.descriptions.summaries import write_summaries
from rlds2reverb.jobs.descriptions.text import to_text
