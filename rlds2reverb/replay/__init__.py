"""Replay buffers, Reverb servers and Reverb checkpoints of trajectories.

`frames` reads the frames of episodes; `layout` and `chunks` convert them to the
chunks and items of Reverb. `server` writes these to a running
server, and `checkpoint` to disk. `local` samples frames without a server.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.replay.checkpoint.merge import merge_reverb_checkpoints
from rlds2reverb.replay.checkpoint.merge import split_reverb_checkpoint
from rlds2reverb.replay.checkpoint.records import CheckpointError
from rlds2reverb.replay.checkpoint.serve import restore_reverb_server
from rlds2reverb.replay.checkpoint.serve import TableOverrides
from rlds2reverb.replay.checkpoint.write import write_reverb_checkpoint
from rlds2reverb.replay.items import TableItems
from rlds2reverb.replay.local.replay_buffer import EpisodesReplayBuffer
from rlds2reverb.replay.opening import open_replay_buffer
from rlds2reverb.replay.priorities import importance_weights
from rlds2reverb.replay.priorities import sequence_priority
from rlds2reverb.replay.server.insert import InsertError
from rlds2reverb.replay.server.insert import write_rlds_to_reverb
from rlds2reverb.replay.server.priority_updates import PriorityUpdater
from rlds2reverb.replay.server.push import push_rlds_to_reverb
from rlds2reverb.replay.server.sampling import sample_reverb_servers
from rlds2reverb.replay.server.tables import create_reverb_table

tf_private.mark_package(__name__)
