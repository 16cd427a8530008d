"""A description as summaries for TensorBoard."""

import base64
from typing import Any, Dict

import tensorflow as tf
import tree

from rlds2reverb.jobs.descriptions import description as description_lib
from rlds2reverb.jobs.descriptions import text


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
    tf.summary.text('description', f'```\n{text.to_text(description)}\n```')
    messages = [f'- {one["message"]}' for one in description.oddities]
    tf.summary.text('what is odd', '\n'.join(messages) or 'Nothing was found.')
    numbers = {field['path']: field['columns'] for field in description.fields}
    for name in ('counts', 'returns', 'lengths'):
      numbers[name] = getattr(description, name)
    for keys, value in tree.flatten_with_path(numbers):
      if value is not None and keys[-2] not in ('min_at', 'max_at'):
        tf.summary.scalar('/'.join(map(str, keys)), value)
    for name, histogram in description.histograms.items():
      _write_histogram(f'histograms/{name}', histogram)
    for one in description.order:
      tf.summary.scalar('returns along the data set', one['mean'], one['first'])
    for episode in description.episodes:
      for field, images in episode['frames'].items():
        for step, image in zip(episode['frame_steps'], images):
          decoded = tf.io.decode_jpeg(base64.b64decode(image))
          tf.summary.image(
              f'episode {episode["episode"]}/{field}', decoded[None], step
          )
  writer.close()


def _write_histogram(name: str, histogram: Dict[str, Any]) -> None:
  """Writes a histogram with its own bins.

  `tf.summary.histogram` would make other bins of the numbers.
  """
  edges, counts = histogram['edges'], histogram['counts']
  if not counts:
    return
  bins = tf.stack([edges[:-1], edges[1:], counts], axis=1)
  metadata = tf.compat.v1.SummaryMetadata(
      plugin_data=tf.compat.v1.SummaryMetadata.PluginData(
          plugin_name='histograms'
      )
  )
  tf.summary.write(name, tf.cast(bins, tf.float64), metadata=metadata)
