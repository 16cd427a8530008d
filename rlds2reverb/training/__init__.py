"""What trainers of TF-Agents agents on recorded episodes share.

The trainers are programs in examples/, for you to edit: behavioral cloning,
CQL-SAC and a recurrent DQN with burn-in. `make_policy` makes the policies that
record data for them.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.training.environments import get_specs
from rlds2reverb.training.environments import make_policy
from rlds2reverb.training.normalization import DenormalizedPolicy
from rlds2reverb.training.normalization import fit_normalization
from rlds2reverb.training.normalization import normalize_specs
from rlds2reverb.training.trainer import Evaluator
from rlds2reverb.training.trainer import open_run
from rlds2reverb.training.trainer import train

tf_private.mark_package(__name__)
