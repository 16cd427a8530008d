"""Offline reinforcement-learning data into training: RLDS to Reverb.

What everybody uses is in this module. Everything else is in a module by its
task: `rlds2reverb.datasets`, `fields`, `transforms`, `statistics`,
`trajectories`, `windows`, `indexing`, `tokens`, `agents` and `replay`. What
programs do, `rlds2reverb.jobs`, is imported by itself.
"""

from rlds2reverb import agents
from rlds2reverb import datasets
from rlds2reverb import episodes
from rlds2reverb import fields
from rlds2reverb import indexing
from rlds2reverb import replay
from rlds2reverb import rlds_to_reverb
from rlds2reverb import statistics
from rlds2reverb import tokens
from rlds2reverb import trajectories
from rlds2reverb import transforms
from rlds2reverb import windows
from rlds2reverb.datasets import load_episodes
from rlds2reverb.fields import load_mapping
from rlds2reverb.fields import map_fields
from rlds2reverb.replay import create_replay_buffer
from rlds2reverb.replay import EpisodesReplayBuffer
from rlds2reverb.replay import open_replay_buffer
from rlds2reverb.replay import push_rlds_to_reverb
from rlds2reverb.replay import restore_reverb_server
from rlds2reverb.replay import TableItems
from rlds2reverb.replay import write_reverb_checkpoint
from rlds2reverb.replay import write_rlds_to_reverb
from rlds2reverb.trajectories import ConversionReport
from rlds2reverb.trajectories import ConversionRules
from rlds2reverb.trajectories import convert_rlds_to_sequence_batches
from rlds2reverb.trajectories import convert_rlds_to_sequences
from rlds2reverb.trajectories import convert_rlds_to_trajectories
from rlds2reverb.trajectories import convert_rlds_to_trajectory_blocks
from rlds2reverb.trajectories import create_trajectory_data_spec
from rlds2reverb.version import __version__
