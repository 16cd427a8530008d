"""Training of TF-Agents' agents on recorded episodes.

    episodes = rlds2reverb.load_episodes('/data/pendulum')
    training.train(
        training.CqlSac(), episodes, 'Pendulum-v1', '/tmp/run', num_steps=5000)

`policies` and `environments` are for recording such data.
"""

from rlds2reverb.training.algorithm import Algorithm
from rlds2reverb.training.behavioral_cloning import BehavioralCloning
from rlds2reverb.training.cql_sac import CqlSac
from rlds2reverb.training.experience import BatchOptions
from rlds2reverb.training.policies import make_policy
from rlds2reverb.training.recurrent_dqn import RecurrentDqn
from rlds2reverb.training.trainer import Monitoring
from rlds2reverb.training.trainer import train
