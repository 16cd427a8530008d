"""Writes items into running Reverb servers, and samples them.

Items are sent many at a time, and counted when the server confirms them.
"""

from rlds2reverb.replay.server.bulk import write_rlds_to_reverb
from rlds2reverb.replay.server.insert_stream import InsertError
from rlds2reverb.replay.server.priority_updates import PriorityUpdater
from rlds2reverb.replay.server.push import push_rlds_to_reverb
from rlds2reverb.replay.server.sampling import sample_reverb_servers
from rlds2reverb.replay.server.table_kinds import create_reverb_table
from rlds2reverb.replay.server.tables import WrittenItems
