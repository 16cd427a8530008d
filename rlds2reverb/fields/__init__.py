"""Maps the fields of a data set to RLDS steps.

A `StepMapping` defines the source of each field. Well-known data sets have
configs with their mappings.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.fields.configs import config_names
from rlds2reverb.fields.configs import load_mapping
from rlds2reverb.fields.configs import load_mixture
from rlds2reverb.fields.configs import Mixture
from rlds2reverb.fields.mapping import map_fields
from rlds2reverb.fields.sources import DiscountFromTransitions
from rlds2reverb.fields.sources import TerminalOnSuccess
from rlds2reverb.fields.sources import TerminalOnZeroDiscount
from rlds2reverb.fields.sources import TextFromCodes
from rlds2reverb.fields.step_mapping import step_policy_info
from rlds2reverb.fields.step_mapping import StepMapping

tf_private.mark_package(__name__)
