"""Data in other formats become RLDS episodes here, and come back.

Flat arrays, data sets of robomimic, LeRobot, Minari and imitation, TorchRL's
buffers, and episodes of your own.
"""

from rlds2reverb.formats.calvin import load_calvin
from rlds2reverb.formats.d3rlpy_buffers import load_d3rlpy
from rlds2reverb.formats.flat_arrays import from_flat_arrays
from rlds2reverb.formats.flat_arrays import load_hdf5
from rlds2reverb.formats.flat_arrays import load_npz
from rlds2reverb.formats.imitation import load_imitation
from rlds2reverb.formats.lerobot import load_lerobot
from rlds2reverb.formats.maniskill import load_maniskill
from rlds2reverb.formats.minari import load_minari
from rlds2reverb.formats.parquet_tables import load_parquet
from rlds2reverb.formats.python_dicts import from_episodes
from rlds2reverb.formats.readers import load
from rlds2reverb.formats.robomimic import load_robomimic
from rlds2reverb.formats.ted import from_ted
from rlds2reverb.formats.ted import to_ted
from rlds2reverb.formats.torchrl import load_torchrl
from rlds2reverb.formats.torchrl import save_torchrl
from rlds2reverb.formats.zarr_buffers import load_zarr
