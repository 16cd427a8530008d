"""Turns recorded reinforcement-learning data into training batches.

This module exports what most users need. The rest is in modules by task:
`rlds2reverb.datasets`, `formats`, `fields`, `transforms`, `statistics`,
`trajectories`, `windows`, `indexing`, `tokens`, `agents`, `replay` and
`random_access`. The programs import `rlds2reverb.jobs`.
"""

import importlib.util
import os
import sys
import warnings

from etils import epy

from rlds2reverb.version import __version__

# TF-Agents needs Keras 2, which newer releases of TensorFlow only use from the
# package tf_keras. TensorFlow reads this variable when it is imported.
if importlib.util.find_spec('tf_keras') is not None:
  if 'tensorflow' in sys.modules and 'TF_USE_LEGACY_KERAS' not in os.environ:
    warnings.warn(
        'TensorFlow was imported before rlds2reverb and uses Keras 3, but the'
        ' networks of TF-Agents need Keras 2. Import rlds2reverb first, or set'
        ' TF_USE_LEGACY_KERAS=1.',
        stacklevel=2,
    )
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')

# TF-Agents 0.19 imports gym 0.23, which prints three lines about its end of
# maintenance. If gym has not been imported yet, this text is removed.
if 'gym' not in sys.modules and importlib.util.find_spec('gym_notices'):
  importlib.import_module('gym_notices.notices').notices.clear()

# Imported on first use, so that `--help` does not wait for TensorFlow.
with epy.lazy_api_imports(globals()):
  from rlds2reverb import agents
  from rlds2reverb import datasets
  from rlds2reverb import episodes
  from rlds2reverb import fields
  from rlds2reverb import formats
  from rlds2reverb import indexing
  from rlds2reverb import random_access
  from rlds2reverb import replay
  from rlds2reverb import rlds_to_reverb
  from rlds2reverb import statistics
  from rlds2reverb import tokens
  from rlds2reverb import trajectories
  from rlds2reverb import transforms
  from rlds2reverb import windows
  from rlds2reverb.datasets import load_episodes
  from rlds2reverb.episodes import Windows
  from rlds2reverb.fields import map_fields
  from rlds2reverb.replay import EpisodesReplayBuffer
  from rlds2reverb.replay import open_replay_buffer
  from rlds2reverb.replay import push_rlds_to_reverb
  from rlds2reverb.replay import restore_reverb_server
  from rlds2reverb.replay import TableItems
  from rlds2reverb.replay import write_reverb_checkpoint
  from rlds2reverb.replay import write_rlds_to_reverb
  from rlds2reverb.trajectories import ConversionOptions
  from rlds2reverb.trajectories import ConversionReport
  from rlds2reverb.trajectories import ConversionRules
  from rlds2reverb.trajectories import convert_rlds_to_sequences
  from rlds2reverb.trajectories import convert_rlds_to_trajectories
  from rlds2reverb.trajectories import create_trajectory_data_spec

_import_late = globals()['__getattr__']


def __getattr__(name):
  try:
    return _import_late(name)
  except ModuleNotFoundError as e:
    if (e.name or '').partition('.')[0] != 'tf_agents':
      raise
    raise ModuleNotFoundError(
        f'rlds2reverb.{name} needs TF-Agents, which pip cannot install with its'
        ' dependencies on Python 3.12 and later: pip install --no-deps'
        ' tf-agents==0.19.0',
        name=e.name,
    ) from e
