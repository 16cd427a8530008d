"""The `__main__` guard that a script needs to start processes.

A new process imports the script of its parent. Without the guard it would run
all of the script, and start further processes.
"""

import multiprocessing

_MESSAGE = (
    'A script that starts processes needs a guard, because each process imports'
    ' the script again. Put the code that it runs into a function main, and'
    ' call it at the end:\n\n    if __name__ == "__main__":\n      main()'
)


def check() -> None:
  """Raises a RuntimeError in a process that its parent's script starts again.

  Call it before processes are started.
  """
  # The standard library finds the same by this attribute.
  if getattr(multiprocessing.current_process(), '_inheriting', False):
    raise RuntimeError(_MESSAGE)


def explain(problem: str) -> str:
  """Returns the message for the parent when a new process has died."""
  return f'{problem} If the script has no guard, that is why. {_MESSAGE}'
