"""Episodes of many agents, whose fields are dicts by agent.

A field is *by agent* if it is a dict whose keys are the agents; all agents
share every other field. The presence says which agents are there at a step:

    observation    {'left': [S, ...], 'right': [S, ...]}
    action         {'left': [S, ...], 'right': [S, ...]}
    is_present     {'left': bool [S], 'right': bool [S]}
    is_last        bool [S]

The rows of an agent that is absent have no meaning. The last step at which an
agent is there has its last observation, but its action and reward have no
meaning. Without a presence, all agents are there at every step.

The functions make the episodes of single agents or policies, or steps whose
fields have a dimension of agents.
"""

from rlds2reverb.agents.policies import split_by_policy
from rlds2reverb.agents.selecting import select_agent
from rlds2reverb.agents.stacking import stack_agents
from rlds2reverb.agents.stacking import unroll_agents
