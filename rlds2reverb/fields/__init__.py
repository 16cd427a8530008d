"""Makes the fields of RLDS steps from a data set's own fields.

A `StepMapping` says what each field is made of. Those of well-known data sets
have names.
"""

from rlds2reverb.fields.configs import config_names
from rlds2reverb.fields.configs import load_mixture
from rlds2reverb.fields.derived_sources import TerminalOnSuccess
from rlds2reverb.fields.derived_sources import TextOfCodes
from rlds2reverb.fields.mapping import map_fields
from rlds2reverb.fields.step_mapping import step_policy_info
from rlds2reverb.fields.step_mapping import StepMapping
