r"""Describes a data set or a Reverb checkpoint: fields, statistics, oddities.

rlds2reverb-describe --dataset=/data/cartpole --html=report.html

rlds2reverb-describe --checkpoint_dir=/data/checkpoint

rlds2reverb-describe --dataset=/data/kuka --config=kuka \
        --html=report.html --compare_with=/data/kuka
"""

import os

from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  import tensorflow as tf

  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import errors
  from rlds2reverb.jobs import describing
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.jobs.descriptions import views
  from rlds2reverb.replay.checkpoint import records

_OPTIONS = ('sample', 'num_excerpts', 'seed')

flags_lib.define_source_flags()
flags.DEFINE_integer(
    'sample',
    None,
    'The number of episodes to read, in at most 16 runs of consecutive episodes'
    ' that are spread over the data set. By default all are read.',
    lower_bound=1,
)
flags.DEFINE_integer(
    'num_excerpts',
    40,
    'The maximum number of episodes to show with steps and images: the best,'
    ' the worst, the longest, the odd, and examples of the others.',
    lower_bound=0,
)
flags.DEFINE_integer(
    'seed', 0, 'The seed of the sample for quantiles and histograms of steps.'
)
flags.DEFINE_string(
    'checkpoint_dir',
    None,
    'A Reverb checkpoint to describe, instead of a --dataset.',
)
flags.DEFINE_string(
    'compare_with',
    None,
    'A data set to compare with, described without --config. To see the effect'
    ' of --config, pass the same path as --dataset.',
)
flags.DEFINE_string(
    'environment',
    None,
    'The id of the environment whose action space bounds the actions.',
)
flags.DEFINE_string(
    'html', None, 'A file for the description as one HTML page.'
)
flags.DEFINE_string(
    'tensorboard_dir', None, 'A directory for summaries for TensorBoard.'
)
flags.DEFINE_bool('json', False, 'Whether to print JSON instead of text.')
FLAGS = flags.FLAGS


def _sources():
  """Yields the sources to describe, or the path of a checkpoint."""
  ignored = ['config', 'gin_binding', 'environment']
  if FLAGS.compare_with is None:
    ignored += ['split', 'data_dir']
  yield flags_lib.source_or_checkpoint(
      'describe',
      'Describe one --dataset at a time, or pass another one as'
      ' --compare_with.',
      ignored,
  )
  if FLAGS.compare_with is not None:
    with usage.wrong_usage():
      yield sources_lib.make_source(
          flags_lib.user_data_set(FLAGS.compare_with),
          FLAGS.split[0],
          data_dir=FLAGS.data_dir and files.user_path(FLAGS.data_dir),
      )


def _describe(source, environment=None):
  options = {name: FLAGS[name].value for name in _OPTIONS}
  try:
    return describing.describe(source, bounds=environment, **options)
  except tf.errors.OpError as e:
    if isinstance(source, str):
      raise
    problem = errors.message_of(e)
    raise ValueError(f'The data cannot be read: {problem}') from e


def _check_writable(folder):
  """Creates a folder; raises an OSError if it is not writable."""
  if not files.is_url(folder):
    with files.writing_to(folder):
      os.makedirs(folder, exist_ok=True)
    if not os.access(folder, os.W_OK):
      raise PermissionError(f'{folder} cannot be written.')


def main():
  page = FLAGS.html and files.user_path(FLAGS.html)
  if page:
    views.import_page_libraries()
    _check_writable(os.path.dirname(page))
  folder = FLAGS.tensorboard_dir and files.user_path(FLAGS.tensorboard_dir)
  if folder:
    _check_writable(folder)
  first, *compared = _sources()
  descriptions = [_describe(first, FLAGS.environment)]
  descriptions += map(_describe, compared)
  if page:
    files.write_text(page, views.to_html(*descriptions))
  if folder:
    for description, name in zip(descriptions, ('', 'compared')):
      views.write_summaries(description, os.path.join(folder, name))
  if FLAGS.json:
    texts = [description.to_json() for description in descriptions]
    print(f'[{", ".join(texts)}]' if len(texts) > 1 else texts[0])
  else:
    print('\n\n'.join(map(views.to_text, descriptions)))


if __name__ == '__main__':
  usage.run(main, errors=lambda: (records.CheckpointError,))
