"""Checks that configs can be read, and fit their data sets.

To check all configs of the library, without data:

    rlds2reverb-validate-configs

To check your own gin file against your data:

    rlds2reverb-validate-configs --config=mine.gin --data=/data/mine/1.0.0

The program prints a line for each config. If a config does not fit, it prints
the reason, and the exit code is 1.
"""

import sys

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  import tensorflow as tf

  from rlds2reverb.datasets import files
  from rlds2reverb.datasets import loading
  from rlds2reverb.episodes import rlds
  from rlds2reverb.fields import configs
  from rlds2reverb.fields import mapping as mapping_lib
  from rlds2reverb.transforms import base

flags.DEFINE_string(
    'config', None, 'The name of a config or a gin file; by default all.'
)
flags.DEFINE_string(
    'data',
    None,
    'The directory or the TFDS name of a data set that --config should fit.',
)
flags.DEFINE_string('split', 'train', 'The split of --data to read.')
FLAGS = flags.FLAGS


def _validate(config):
  """Returns a phrase with the data that a config fits.

  Raises:
    ValueError: if the config does not fit.
  """
  config = flags_lib.user_config(config)
  mapping = configs.load_mapping(config)
  if FLAGS.data is not None:
    data = files.user_path(FLAGS.data)
    if not files.is_folder(data):
      data = FLAGS.data  # A name in TFDS.
    mapping_lib.map_fields(loading.load_episodes(data, FLAGS.split), mapping)
    return f'fits {data}'
  transforms = configs.load_transforms(config)

  def preprocess(episode):
    episode = mapping(episode)
    for transform in transforms:
      if not isinstance(transform, base.EpisodeFilter):
        episode = transform(episode)
    return episode

  known_features = configs.load_known_features(config)
  checked = set()
  for name, features in known_features.items():
    spec = features.get_tensor_spec()
    spec[rlds.STEPS] = tf.data.DatasetSpec(spec[rlds.STEPS])
    if repr(spec) in checked:  # Many data sets have the same spec.
      continue
    checked.add(repr(spec))
    try:
      tf.function(preprocess).get_concrete_function(spec)
    except ValueError as e:
      raise ValueError(f'{name}: {e}') from e
  if not known_features:
    return 'can be read; pass --data to see whether it fits'
  first, *remaining = known_features
  return f'fits {first}' + (
      f' and {len(remaining)} others' if remaining else ''
  )


def main():
  if FLAGS.data is not None and FLAGS.config is None:
    raise app.UsageError('--data needs --config: a config for that data.')
  names = configs.config_names()
  errors = []
  for config in [FLAGS.config] if FLAGS.config is not None else names:
    try:
      outcome = _validate(config)
    except (OSError, SyntaxError, ValueError) as e:
      errors.append(f'{config}: {e}')
      outcome = 'FAILS'
    print(f'{config:<{max(map(len, names))}}  {outcome}', flush=True)
  if errors:
    sys.exit('\n\n' + '\n\n'.join(errors))


if __name__ == '__main__':
  usage.run(main)
