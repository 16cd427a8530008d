"""Tests of descriptions as summaries for TensorBoard."""

import glob
import os

import tensorflow as tf

from rlds2reverb.jobs import describing
from rlds2reverb.jobs.descriptions import summaries
from tests import golden
from tests.jobs.descriptions import odd_data


class SummariesTest(tf.test.TestCase):

  def test_what_is_written(self):
    description = describing.describe(golden.stacked(odd_data.with_images()))
    folder = self.create_tempdir().full_path
    summaries.write_summaries(description, folder)
    (file,) = glob.glob(os.path.join(folder, 'events*'))
    values = {}
    for record in tf.data.TFRecordDataset(file).as_numpy_iterator():
      event = tf.compat.v1.Event.FromString(record)
      for value in event.summary.value:
        values.setdefault(value.tag, []).append(
            (event.step, tf.make_ndarray(value.tensor))
        )
    ((step, mean),) = values['returns/mean']
    self.assertEqual(step, 0)
    self.assertAllClose(mean, description.returns['mean'])
    ((_, bins),) = values['histograms/lengths']
    histogram = description.histograms['lengths']
    self.assertEqual(bins[:, 2].tolist(), histogram['counts'])
    self.assertEqual(bins[:, 0].tolist(), histogram['edges'][:-1])
    self.assertLen(values['returns along the data set'], 7)
    frames = values['episode 2/observation/image']
    self.assertEqual(
        [step for step, _ in frames],
        [
            one['frame_steps']
            for one in description.episodes
            if one['episode'] == 2
        ][0],
    )
    # The width and the height, and a PNG.
    self.assertEqual(frames[0][1][:2].tolist(), [b'5', b'4'])
    self.assertIn(b'NaN or infinite', values['what is odd'][0][1].item())


if __name__ == '__main__':
  tf.test.main()
