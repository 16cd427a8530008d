"""Reads, records, saves and mixes RLDS data sets on disk."""

from rlds2reverb.datasets.loading import load_episodes
from rlds2reverb.datasets.mixtures import mix_datasets
from rlds2reverb.datasets.recording import record_episodes
from rlds2reverb.datasets.saving import save_episodes
from rlds2reverb.episodes import tf_private

tf_private.mark_package(__name__)
