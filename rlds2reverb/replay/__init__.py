"""Trajectories as the chunks and items of Reverb, on servers and on disk.

The modules of this folder lay frames out and encode them. Those of `server` and
`checkpoint` write the result to a running server and to disk.
"""

from rlds2reverb.replay.checkpoint.merge import merge_reverb_checkpoints
from rlds2reverb.replay.checkpoint.records import CheckpointError
from rlds2reverb.replay.checkpoint.serve import create_replay_buffer
from rlds2reverb.replay.checkpoint.serve import restore_reverb_server
from rlds2reverb.replay.checkpoint.split import restore_reverb_servers
from rlds2reverb.replay.checkpoint.split import split_reverb_checkpoint
from rlds2reverb.replay.checkpoint.write import TableSettings
from rlds2reverb.replay.checkpoint.write import write_reverb_checkpoint
from rlds2reverb.replay.items import TableItems
from rlds2reverb.replay.server.bulk import write_rlds_to_reverb
from rlds2reverb.replay.server.insert_stream import InsertError
from rlds2reverb.replay.server.push import push_rlds_to_reverb
from rlds2reverb.replay.server.tables import WrittenItems
