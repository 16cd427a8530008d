"""Makes the fields of RLDS steps from a data set's own fields.

A `StepMapping` says what each field is made of. Mappings of well-known data
sets are loaded by name.
"""

from rlds2reverb.fields.named_mappings import config_names
from rlds2reverb.fields.named_mappings import load_mapping
from rlds2reverb.fields.named_mixtures import load_mixture
from rlds2reverb.fields.step_mapping import map_fields
from rlds2reverb.fields.step_mapping import step_policy_info
from rlds2reverb.fields.step_mapping import StepMapping
from rlds2reverb.fields.terminal_on_success import TerminalOnSuccess
from rlds2reverb.fields.text_of_codes import TextOfCodes
