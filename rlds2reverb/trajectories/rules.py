"""The rules by which episodes are checked and converted."""

import dataclasses

import gin

from rlds2reverb.episodes import checks

_CHOICES = {
    'validation': ('strict', 'tf_agents'),
    'terminal_discount': ('step', 'transition'),
    'invalid_episodes': ('raise', 'skip'),
    'nan': ('report', 'invalid'),
}


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class ConversionRules:
  """The rules by which episodes are checked and converted to trajectories.

  They travel together through every function that converts, may be configured
  with gin, and may be part of an `identity`, as of every key that is made
  under one.

  Attributes:
    validation: which episodes are valid. `"strict"` takes an episode of a first
      step, middle steps and a last step, or of one step that is both first and
      last; only its last step may be terminal, and discounts lie in [0, 1].
      `"tf_agents"` takes what TF-Agents takes, on the stream of the steps of
      all episodes.
    terminal_discount: where a terminal episode gets its discount of 0.
      `"step"` puts it on the frame of the last step, as TF-Agents does, which
      learners mask out. `"transition"` also puts it on the frame of the
      transition into the last step.
    invalid_episodes: what becomes of an invalid episode. `"raise"` raises an
      error; `"skip"` leaves the whole episode out.
    nan: what becomes of NaN in observations, actions and rewards. `"report"`
      lets it pass, and counts it in the report; `"invalid"` makes the episode
      that holds it invalid.

  Raises:
    ValueError: if one of them is none of its choices, or if episodes are to be
      skipped from a stream of steps.
  """

  validation: str = 'strict'
  terminal_discount: str = 'step'
  invalid_episodes: str = 'raise'
  nan: str = 'report'

  def __post_init__(self):
    for name, choices in _CHOICES.items():
      checks.check_choice(name, getattr(self, name), choices)
    if self.invalid_episodes == 'skip' and self.validation == 'tf_agents':
      raise ValueError(
          'validation="tf_agents" checks a stream of steps, in which no episode'
          ' can be skipped: use validation="strict" with'
          ' invalid_episodes="skip".'
      )
