"""A replay buffer over recorded episodes, in the process that trains.

Frames are stored as rows, in memory or on disk. Items are numbers, from which
their rows are computed, so nothing is stored twice. Samplers draw items.
"""

from rlds2reverb.replay.local.appendable import AppendableReplayBuffer
from rlds2reverb.replay.local.loading import check_prepared_frames
from rlds2reverb.store.samplers import Uniform
from rlds2reverb.store.samplers import Weighted
from rlds2reverb.store.samplers import WithoutReplacement
from rlds2reverb.store.sum_tree import Prioritized
