"""An episode in memory, or a pack of them: steps, paths, checks and blocks.

All other folders build on these modules; these modules build on none of them.
"""

from rlds2reverb.episodes.ends import EndOfEpisode
from rlds2reverb.episodes.steps import get_rlds_step_features
