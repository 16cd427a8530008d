"""Offline reinforcement-learning data into training: RLDS to Reverb."""

from rlds2reverb import rlds_to_reverb
from rlds2reverb.episodes.loading import load_episodes
from rlds2reverb.episodes.recording import record_episodes
from rlds2reverb.episodes.steps import get_rlds_step_features
from rlds2reverb.replay.bulk import write_rlds_to_reverb
from rlds2reverb.replay.checkpoint import create_replay_buffer
from rlds2reverb.replay.checkpoint import merge_reverb_checkpoints
from rlds2reverb.replay.checkpoint import restore_reverb_server
from rlds2reverb.replay.checkpoint import TableSettings
from rlds2reverb.replay.checkpoint import write_reverb_checkpoint
from rlds2reverb.replay.insert_stream import InsertError
from rlds2reverb.replay.items import TableItems
from rlds2reverb.replay.push import push_rlds_to_reverb
from rlds2reverb.trajectories.conversion import convert_rlds_to_trajectories
from rlds2reverb.trajectories.conversion import convert_rlds_to_trajectory_blocks
from rlds2reverb.trajectories.report import ConversionReport
from rlds2reverb.trajectories.report import SkippedEpisode
from rlds2reverb.trajectories.specs import create_trajectory_data_spec
from rlds2reverb.trajectories.specs import SpecMismatchError
