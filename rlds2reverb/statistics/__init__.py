"""Statistics of the fields of a data set, computed in one pass.

They can be cached in a file next to the data, and `rlds2reverb.transforms`
normalizes fields by them.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.statistics.compute import cached_statistics
from rlds2reverb.statistics.compute import compute_statistics
from rlds2reverb.statistics.compute import load_statistics
from rlds2reverb.statistics.compute import MixtureStatistics
from rlds2reverb.statistics.results import FieldStatistics
from rlds2reverb.statistics.results import merge_statistics
from rlds2reverb.statistics.results import Statistics

tf_private.mark_package(__name__)
