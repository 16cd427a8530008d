"""Reads data in other formats as RLDS episodes, and writes TorchRL's.

`load` reads what is on disk, LeRobot, robomimic, Minari and others, and what is
in memory, each by a reader in a module of its own.
"""

from rlds2reverb.formats.readers import load
from rlds2reverb.formats.ted import to_ted
from rlds2reverb.formats.torchrl import save_torchrl
