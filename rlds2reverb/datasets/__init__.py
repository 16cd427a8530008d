"""RLDS data sets are read, recorded, saved and mixed here.

Flat arrays, data sets of robomimic, LeRobot, Minari and imitation, TorchRL's
buffers and episodes of your own become RLDS episodes here, too.
"""

from rlds2reverb.datasets.alignment import align
from rlds2reverb.datasets.alignment import Aligned
from rlds2reverb.datasets.flat_arrays import from_flat_arrays
from rlds2reverb.datasets.flat_arrays import load_hdf5
from rlds2reverb.datasets.flat_arrays import load_npz
from rlds2reverb.datasets.imitation import load_imitation
from rlds2reverb.datasets.lerobot import load_lerobot
from rlds2reverb.datasets.loading import load_episodes
from rlds2reverb.datasets.minari import load_minari
from rlds2reverb.datasets.mixtures import mix_datasets
from rlds2reverb.datasets.mixtures import Mixed
from rlds2reverb.datasets.python_episodes import from_episodes
from rlds2reverb.datasets.recording import record_episodes
from rlds2reverb.datasets.robomimic import load_robomimic
from rlds2reverb.datasets.saving import save_episodes
from rlds2reverb.datasets.ted import from_ted
from rlds2reverb.datasets.ted import join_ted
from rlds2reverb.datasets.ted import split_ted
from rlds2reverb.datasets.ted import Ted
from rlds2reverb.datasets.ted import to_ted
from rlds2reverb.datasets.torchrl import load_torchrl
from rlds2reverb.datasets.torchrl import save_torchrl
from rlds2reverb.episodes.packs import Pack
from rlds2reverb.episodes.packs import packs_of
from rlds2reverb.episodes.packs import unpack
