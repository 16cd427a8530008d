"""A description for TensorBoard."""

import base64

import tensorflow as tf
import tree

from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import views


def write_summaries(
    description: description_lib.Description, directory: str
) -> None:
  """Writes a description for TensorBoard.

  Counts and statistics become scalars, at step 0; the returns along the data
  set are scalars whose step is the episode. Histograms have the bins of the
  description. Oddities and the whole description are text; the frames of each
  episode are one image summary.

  Args:
    description: the description.
    directory: the directory, which is made, or gets one more file.
  """
  writer = tf.summary.create_file_writer(directory)
  with writer.as_default(step=0):
    tf.summary.text('description', f'```\n{views.to_text(description)}\n```')
    messages = [f'- {one}' for one in views.messages(description)]
    tf.summary.text('what is odd', '\n'.join(messages))
    numbers = {
        'counts': description.counts,
        'returns': description.returns,
        'lengths': description.lengths,
        **{field['path']: field['columns'] for field in description.fields},
    }
    for keys, value in tree.flatten_with_path(numbers):
      if value is not None and keys[-2] not in ('min_at', 'max_at'):
        tf.summary.scalar('/'.join(map(str, keys)), value)
    # `tf.summary.histogram` would make other bins of the numbers.
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = 'histograms'
    for name, one in description.histograms.items():
      if one['counts']:
        bins = tf.stack([one['edges'][:-1], one['edges'][1:], one['counts']], 1)
        bins = tf.cast(bins, tf.float64)
        tf.summary.write(f'histograms/{name}', bins, metadata=metadata)
    for one in description.order:
      tf.summary.scalar('returns along the data set', one['mean'], one['first'])
    for episode in description.episodes:
      for field, images in episode['frames'].items():
        for step, image in zip(episode['frame_steps'], images):
          decoded = tf.io.decode_jpeg(base64.b64decode(image))[None]
          tag = f'episode {episode["episode"]}/{field}'
          tf.summary.image(tag, decoded, step)
  writer.close()
