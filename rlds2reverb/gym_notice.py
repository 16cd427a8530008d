"""Leaves out what gym prints when it is imported."""

import importlib.util
import sys


def leave_out() -> None:
  """Keeps gym from printing that it is no longer maintained.

  gym 0.23 prints three lines when it is imported, and TF-Agents 0.19 imports
  it, about which a user can do nothing. A program that imports gym or TF-Agents
  before this library is told as before.
  """
  if 'gym' in sys.modules or not importlib.util.find_spec('gym_notices'):
    return
  from gym_notices import notices

  notices.notices.clear()
