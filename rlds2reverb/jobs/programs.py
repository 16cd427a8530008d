"""The names of the programs in scripts/, under which gin knows their flags.

A config may set a flag of a program, as in `convert.sequence_length = 80`. The
program uses such a value unless the command line has the flag. Other programs
ignore it, so one file can serve several programs.
"""

import gin

PROGRAMS = (
    'convert',
    'describe',
    'validate',
    'serve',
    'record_episodes',
    'train',
)


def _register(name: str) -> None:
  # Gin needs only the names; nothing calls these functions.
  def program(**flags):
    return flags

  gin.register(name, module='rlds2reverb.programs')(program)


for _program in PROGRAMS:
  _register(_program)
