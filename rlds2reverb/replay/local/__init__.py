"""A replay buffer over recorded episodes, in the process that trains.

Frames are stored as rows, in memory or on disk. Items are numbers, from which
their rows are computed, so nothing is stored twice. Samplers draw items.
"""

from rlds2reverb.replay.local.appendable import AppendableReplayBuffer
from rlds2reverb.replay.local.prepared import check_prepared_frames
from rlds2reverb.replay.local.prioritized import Prioritized
from rlds2reverb.replay.local.samplers import EpisodeFirst
from rlds2reverb.replay.local.samplers import Uniform
from rlds2reverb.replay.local.samplers import Weighted
from rlds2reverb.replay.local.samplers import WithoutReplacement
