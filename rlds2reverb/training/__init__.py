"""What trainers of TF-Agents' agents on recorded episodes share.

The trainers themselves are in examples/, for their users to edit: behavioural
cloning, CQL-SAC and a recurrent DQN with burn-in. `make_policy` and
`make_environment` are for recording such data.
"""

from rlds2reverb.training.environments import make_environment
from rlds2reverb.training.environments import specs_of
from rlds2reverb.training.evaluation import Evaluator
from rlds2reverb.training.normalization import DenormalizedPolicy
from rlds2reverb.training.normalization import fit_normalization
from rlds2reverb.training.normalization import normalized_specs
from rlds2reverb.training.policies import make_policy
from rlds2reverb.training.trainer import open_run
from rlds2reverb.training.trainer import train
