"""Multi-agent episodes, whose fields are dicts by agent.

A field is *per agent* if it is a dict whose keys are the agents; the agents
share all other fields. The presence marks the steps at which an agent is in the
environment:

    observation    {'left': [S, ...], 'right': [S, ...]}
    action         {'left': [S, ...], 'right': [S, ...]}
    is_present     {'left': bool [S], 'right': bool [S]}
    is_last        bool [S]

The rows of an absent agent are placeholders. The last step at which an agent is
present has its last observation, but its action and reward have no meaning.
Without a presence field, all agents are present at every step.

The functions extract the episodes of single agents or policies, or stack the
per-agent fields along a dimension of agents.
"""

from rlds2reverb.agents.episodes import get_agents
from rlds2reverb.agents.episodes import select_agent
from rlds2reverb.agents.episodes import split_by_policy
from rlds2reverb.agents.stacking import stack_agents
from rlds2reverb.agents.stacking import unroll_agents
from rlds2reverb.episodes import tf_private

tf_private.mark_package(__name__)
