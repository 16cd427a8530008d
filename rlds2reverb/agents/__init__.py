"""Episodes of many agents, whose fields are dicts by agent.

A field is *by agent* if it is a dict whose keys are the agents; every other
field is of all of them. The presence says who is there at a step:

    observation    {'left': [S, ...], 'right': [S, ...]}
    action         {'left': [S, ...], 'right': [S, ...]}
    is_present     {'left': bool [S], 'right': bool [S]}
    is_last        bool [S]

The rows of an agent that is absent have no meaning. The last step at which an
agent is there has its last observation, and no action or reward that means
anything. Where there is no presence, all agents are there at every step.

The functions make the episodes of single agents or policies, or steps whose
fields have a dimension of agents.
"""

from rlds2reverb.agents.layout import agents_of
from rlds2reverb.agents.policies import split_by_policy
from rlds2reverb.agents.selecting import select_agent
from rlds2reverb.agents.stacking import stack_agents
from rlds2reverb.agents.stacking import unroll_agents
