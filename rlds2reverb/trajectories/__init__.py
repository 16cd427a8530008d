"""Converts RLDS episodes to TF-Agents trajectories: frames and sequences.

Every episode is validated before any of its frames come out.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.trajectories.conversion import convert_rlds_to_trajectories
from rlds2reverb.trajectories.options import ConversionOptions
from rlds2reverb.trajectories.options import ConversionRules
from rlds2reverb.trajectories.report import ConversionReport
from rlds2reverb.trajectories.sequences import convert_rlds_to_sequences
from rlds2reverb.trajectories.specs import create_trajectory_data_spec

tf_private.mark_package(__name__)
