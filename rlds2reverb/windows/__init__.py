"""Functions on the transitions of one episode.

They take an episode's steps or its `TransitionRows`, and work inside of
`tf.data.Dataset.map`. They can be chained: functions that add columns return
rows again, and the last function of a chain cuts the rows into windows.

The class `Windows`, which defines where windows start, is in
`episodes.windows`, because sequences and replay buffers are windows, too.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.windows.fragments import apply_horizon
from rlds2reverb.windows.fragments import chop_into_sequences
from rlds2reverb.windows.fragments import convert_rlds_to_fragments
from rlds2reverb.windows.returns import advantages
from rlds2reverb.windows.returns import n_step_transitions
from rlds2reverb.windows.returns import reward_to_go
from rlds2reverb.windows.slices import draw_steps
from rlds2reverb.windows.slices import sample_slices
from rlds2reverb.windows.stacking import stack_and_chunk
from rlds2reverb.windows.transitions import FlatRows
from rlds2reverb.windows.transitions import transition_rows
from rlds2reverb.windows.unrolling import split_burn_in
from rlds2reverb.windows.unrolling import unroll
from rlds2reverb.windows.views import apply_views
from rlds2reverb.windows.views import compute_views
from rlds2reverb.windows.views import ViewRequirement

tf_private.mark_package(__name__)
