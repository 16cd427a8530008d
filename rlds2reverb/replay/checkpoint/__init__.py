"""Writes, merges, reads and serves Reverb checkpoints.

A server of a trainer that starts from a checkpoint is ready as soon as it has
read it.
"""

from rlds2reverb.replay.checkpoint.records import CheckpointError
from rlds2reverb.replay.checkpoint.resharding import merge_reverb_checkpoints
from rlds2reverb.replay.checkpoint.resharding import split_reverb_checkpoint
from rlds2reverb.replay.checkpoint.serve import restore_reverb_server
from rlds2reverb.replay.checkpoint.write import TableSettings
from rlds2reverb.replay.checkpoint.write import write_reverb_checkpoint
