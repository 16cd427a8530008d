"""Reads data of other formats as RLDS episodes, and writes TorchRL's.

`load` reads LeRobot, robomimic, Minari and other data on disk, and data in
memory. Each format has a reader in a separate module.
"""

from rlds2reverb.episodes import tf_private
from rlds2reverb.formats.readers import load
from rlds2reverb.formats.ted import to_ted
from rlds2reverb.formats.torchrl import save_torchrl

tf_private.mark_package(__name__)
