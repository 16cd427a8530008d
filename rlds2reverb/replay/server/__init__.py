"""Writes items into a running Reverb server, as the TF-Agents observers would.

The items are sent many at a time, and counted when the server confirms them.
"""

from rlds2reverb.replay.server.bulk import write_rlds_to_reverb
from rlds2reverb.replay.server.insert_stream import InsertError
from rlds2reverb.replay.server.push import push_rlds_to_reverb
from rlds2reverb.replay.server.tables import WrittenItems
