"""Episodes of many agents, whose fields are dicts by agent.

They become the episodes of each agent, or of each policy, or stacked fields.
"""

from rlds2reverb.agents.layout import agents_of
from rlds2reverb.agents.policies import split_by_policy
from rlds2reverb.agents.selecting import select_agent
from rlds2reverb.agents.stacking import stack_agents
from rlds2reverb.agents.stacking import unroll_agents
