r"""Builds the index of a data set, for `random_access.open_batches`.

    rlds2reverb-build-index --dataset=/data/bridge --config=bridge \
        --index_dir=/data/indexes/bridge --num_workers=4

Training opens it without TensorFlow, by the same data set, config and split:

    sources = {'bridge': IndexedData('/data/bridge', 'bridge')}
    open_batches(sources, '/data/indexes', ...)

The images stay where they are, and the program says if they cannot. Where it is
stopped, the same command goes on.
"""

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import usage

with epy.lazy_imports():  # After the flags are parsed: `--help` is at once.
  from rlds2reverb.datasets import files
  from rlds2reverb.random_access import opening

_DATASET = flags.DEFINE_string(
    'dataset', None, 'The directory or the TFDS name of a data set.'
)
_CONFIG = flags.DEFINE_string(
    'config', None, 'The name of a config, or a gin file, that maps its fields.'
)
_SPLIT = flags.DEFINE_string('split', 'train', 'The split.')
_INDEX_DIR = flags.DEFINE_string(
    'index_dir', None, 'A new directory for the index, named as the data set.'
)
_NUM_WORKERS = flags.DEFINE_integer(
    'num_workers', 1, 'How many processes read files.', lower_bound=1
)


def main():
  for flag in (_DATASET, _INDEX_DIR):
    if flag.value is None:
      raise app.UsageError(f'Flag --{flag.name} must have a value.')
  data = files.user_path(_DATASET.value)
  if not files.exists(data):
    data = _DATASET.value  # a name in TFDS
  config = _CONFIG.value
  if config is not None and config.endswith('.gin'):
    config = files.user_path(config)
  source = opening.IndexedData(data, config, _SPLIT.value)
  folder = files.user_path(_INDEX_DIR.value)
  index = opening.open_index(folder, source, _NUM_WORKERS.value)
  print(
      f'{len(index.lengths)} episodes, {index.num_rows} steps:'
      f' {index.folder}'
  )


if __name__ == '__main__':
  usage.run(main)
