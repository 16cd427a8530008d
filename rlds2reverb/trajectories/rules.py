"""`ConversionRules` says how episodes are checked and converted."""

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
  """Says how episodes are checked and converted to trajectories.

  Every function that converts takes one of these, and gin can configure it.
  Different rules can give different frames, so the rules are a part of the
  identity of converted data.

  Attributes:
    validation: which episodes are valid. `"strict"` accepts an episode of a
      first step, middle steps and a last step, or of one step that is both
      first and last. Only its last step may be terminal, and its discounts must
      lie in [0, 1]. `"tf_agents"` accepts what TF-Agents accepts, which checks
      the steps of all episodes as one stream.
    terminal_discount: where the discount of a terminal episode is set to 0.
      `"step"` sets it on the frame of the last step, as TF-Agents does;
      learners mask this frame out. `"transition"` also sets it on the frame
      before, which is that of the transition into the last step, as the
      trainers in examples/ need it.
    invalid_episodes: how to treat an invalid episode. `"raise"` raises an
      error; `"skip"` leaves the whole episode out.
    nan: how to treat NaN in observations, actions, rewards and discounts, and
      in the other fields that a `policy_info_fn` reads. `"report"` lets NaN
      pass and counts it in the report; `"invalid"` makes an episode that holds
      NaN invalid.

  Raises:
    ValueError: if a value is not one of its choices, or if `"skip"` is combined
      with `"tf_agents"`.
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
