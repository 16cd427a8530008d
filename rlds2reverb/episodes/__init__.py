"""An episode in memory: its steps, the paths of its fields, and its blocks.

All other folders build on these modules; these modules build on none of them.
"""

from rlds2reverb.episodes.ends import EndOfEpisode
from rlds2reverb.episodes.steps import get_rlds_step_features
