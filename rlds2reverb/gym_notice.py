"""Leaves out what gym prints when this library imports it."""

import importlib.util
import sys


class _Notice(str):
  """A notice that does not count where this library imports gym."""

  def __bool__(self):
    frame = sys._getframe(1)
    while frame is not None:
      module = frame.f_globals.get('__name__') or ''
      if module.partition('.')[0] == 'rlds2reverb':
        return False
      frame = frame.f_back
    return True


def leave_out() -> None:
  """Keeps gym from printing that it is no longer maintained.

  gym 0.23 prints three lines when it is imported, and TF-Agents 0.19 imports
  it, which no user can mend. A program that imports gym or TF-Agents before
  this library does so is told as before.
  """
  if 'gym' in sys.modules or not importlib.util.find_spec('gym_notices'):
    return
  from gym_notices import notices

  for version, notice in notices.notices.items():
    notices.notices[version] = _Notice(notice)
