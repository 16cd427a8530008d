"""The names of the fields of RLDS episodes and steps.

They are those of the package `rlds`. That package imports Reverb (version 0.1.8
does), which has no release for Python 3.12 and later, so this library does
without it.
"""

STEPS = 'steps'

OBSERVATION = 'observation'
ACTION = 'action'
REWARD = 'reward'
DISCOUNT = 'discount'
IS_FIRST = 'is_first'
IS_LAST = 'is_last'
IS_TERMINAL = 'is_terminal'
FLAGS = (IS_FIRST, IS_LAST, IS_TERMINAL)
