"""Statistics of the fields of a data set, computed in one pass.

They can be cached in a file beside the data, and `rlds2reverb.transforms`
normalises fields by them.
"""

from rlds2reverb.statistics.cache import cached_statistics
from rlds2reverb.statistics.cache import load_statistics
from rlds2reverb.statistics.compute import compute_statistics
from rlds2reverb.statistics.results import merge_statistics
