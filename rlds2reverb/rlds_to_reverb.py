"""The drop-in for `tf_agents.replay_buffers.rlds_to_reverb`.

    from rlds2reverb import rlds_to_reverb

instead of

    from tf_agents.replay_buffers import rlds_to_reverb

The functions have the names and the positional arguments of TF-Agents 0.19.0;
additional arguments are keyword-only.
"""

from rlds2reverb.episodes.steps import get_rlds_step_features
from rlds2reverb.replay.server.push import push_rlds_to_reverb
from rlds2reverb.trajectories.conversion import convert_rlds_to_trajectories
from rlds2reverb.trajectories.specs import create_trajectory_data_spec
