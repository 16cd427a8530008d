"""Finds the output of a plan by its kind."""

from typing import Dict, Type

from rlds2reverb.jobs import checkpoint_output
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import plan as plan_lib
from rlds2reverb.jobs import rlds_output
from rlds2reverb.jobs import server_output
from rlds2reverb.jobs import statistics_output

_KINDS: Dict[str, Type[outputs.Output]] = {
    plan_lib.CHECKPOINT: checkpoint_output.CheckpointOutput,
    plan_lib.RLDS: rlds_output.RldsOutput,
    plan_lib.SERVER: server_output.ServerOutput,
    plan_lib.STATISTICS: statistics_output.StatisticsOutput,
}


def of(plan: plan_lib.Plan) -> outputs.Output:
  """Returns the output of a plan."""
  return _KINDS[plan.output.kind](plan)
