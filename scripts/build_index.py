r"""Builds the index of a data set, for `random_access.open_batches`.

    rlds2reverb-build-index --dataset=/data/bridge --config=bridge \
        --index_dir=/data/indexes/bridge --num_workers=4

A trainer opens the index without TensorFlow, with the same data set, config,
split, and options of the format:

    sources = {'bridge': IndexedData('/data/bridge', 'bridge')}
    open_batches(sources, '/data/indexes', ...)

Images stay in the data set; the program fails if an index would need copies of
them. After an interruption, the same command starts from the beginning.
"""

from absl import app
from absl import flags
from etils import epy

from rlds2reverb.jobs import flags as flags_lib
from rlds2reverb.jobs import usage

with epy.lazy_imports():  # So that `--help` is fast.
  from rlds2reverb.datasets import files
  from rlds2reverb.episodes import checks
  from rlds2reverb.fields import configs
  from rlds2reverb.jobs import sources as sources_lib
  from rlds2reverb.random_access import index as index_lib

flags_lib.define_single_source_flags()
flags.DEFINE_string(
    'index_dir', None, 'A new directory, named after the data set.'
)
flags.DEFINE_integer(
    'num_workers', 1, 'The number of processes that read files.', lower_bound=1
)
FLAGS = flags.FLAGS


def _options(data):
  """Returns the arguments of `formats.load` except for the path."""
  bindings = FLAGS.gin_binding
  with usage.wrong_usage():
    source = sources_lib.make_source(
        data,
        bindings=bindings,
        format=FLAGS.format,
        options=flags_lib.reader_options(),
    )
    options = source.get_reader_options()
    bound = configs.parse_bindings(source.bindings, '--gin_binding')
  if sum(map(len, bound.values())) != len(options):
    raise app.UsageError(
        "--gin_binding is for options of the format's reader, and the format"
        f' is {source.format or "rlds"}. Pass a mapping as --config.'
    )
  return {**options, **({'format': source.format} if FLAGS.format else {})}


def main():
  usage.require('dataset', 'index_dir')
  data = flags_lib.user_data_set(FLAGS.dataset)
  config = flags_lib.user_config(FLAGS.config)
  source = index_lib.IndexedData(
      data, config, FLAGS.split, options=_options(data)
  )
  folder = files.user_path(FLAGS.index_dir)
  index = index_lib.open_index(folder, source, FLAGS.num_workers)
  print(
      f'{checks.counted(len(index.lengths), "episode")},'
      f' {checks.counted(index.num_rows, "step")}:'
      f' {index.folder}'
  )


if __name__ == '__main__':
  usage.run(main)
