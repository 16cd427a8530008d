"""Names of the fields of RLDS episodes and steps.

They equal the constants of the package `rlds`, which cannot be imported
without Reverb (as of version 0.1.8), and so not on Python 3.12 and later.
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
