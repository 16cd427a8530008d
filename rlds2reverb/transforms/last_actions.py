"""The transform that says of each step whether its action counts."""

import dataclasses

import gin

from rlds2reverb.episodes import last_steps
from rlds2reverb.transforms import whole_episodes


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True, eq=False)
class MarkActions(whole_episodes.WholeEpisodeTransform):
  """Adds `has_action` where it is missing: all steps but the last have one.

      step                          0    1    2 (last)
      has_action, missing           T    T    F
      has_action, of last_action    T    T    T          as it was

  In a mixture, only some data sets may have an action in their last step, by
  the `last_action` of their `StepMapping`. With this, all have the same fields.
  """

  def transform_rows(self, steps, rows):
    return {**steps, last_steps.HAS_ACTION: rows.have_action()}
