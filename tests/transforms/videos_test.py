"""Tests of decoding the frames of videos late."""

import os

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

import rlds2reverb
from rlds2reverb.formats import video_frames
from rlds2reverb.transforms import images

_DATA = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    'data',
    'lerobot',
    'v3.0',
)
_FIELD = 'observation/images/wrist'
_VIDEOS = 'videos/observation.images.{}/chunk-000/file-000.mp4'


class VideosTest(tf.test.TestCase, parameterized.TestCase):

  def test_frames_of_shuffled_batches(self):
    whole = np.concatenate(
        [
            episode['steps']['observation']['images']['wrist']
            for episode in rlds2reverb.formats.load(_DATA)
        ]
    )
    references = rlds2reverb.formats.load(_DATA, decode_videos=False)
    frames = references.flat_map(
        lambda episode: tf.data.Dataset.from_tensor_slices(episode['steps'])
    )
    frames = frames.shuffle(18, seed=1).batch(6)
    frames = frames.map(
        lambda steps: images.decode_video_frames(steps, [_FIELD], size=(48, 64))
    )
    self.assertEqual(
        frames.element_spec['observation']['images']['wrist'],
        tf.TensorSpec([None, 48, 64, 3], tf.uint8),
    )
    seen = []
    for steps in frames.as_numpy_iterator():
      self.assertAllEqual(
          steps['observation']['images']['wrist'], whole[steps['index']]
      )
      seen += steps['index'].tolist()
    self.assertEqual(sorted(seen), [*range(18)])
    self.assertNotEqual(seen, [*range(18)])

  def test_sizes_empty_strings_and_leading_dimensions(self):
    path = os.path.join(_DATA, _VIDEOS.format('top'))
    frames = video_frames.read_frames(path, [0.0, 0.3])
    references = video_frames.to_references(path, [0.0, 0.3])
    nest = {'a': tf.constant([[references[0], b''], [b'', references[1]]])}
    found = images.decode_video_frames(nest, ['a'], size=(32, 32))['a']
    self.assertAllEqual(
        found[0, 0], images.resize_images(tf.constant(frames[0]), (32, 32))
    )
    self.assertAllEqual(
        found[1, 1], images.resize_images(tf.constant(frames[1]), (32, 32))
    )
    self.assertAllEqual(found[0, 1], np.zeros((32, 32, 3)))
    empty = images.decode_video_frames(
        {'a': tf.constant([b''])}, ['a'], size=(8, 9)
    )
    self.assertAllEqual(empty['a'], np.zeros((1, 8, 9, 3)))

  def test_errors(self):
    with self.assertRaisesRegex(ValueError, 'a must be references .*int32'):
      images.decode_video_frames(
          {'a': tf.zeros([2], tf.int32)}, ['a'], size=(8, 8)
      )
    paths = [os.path.join(_DATA, _VIDEOS.format(c)) for c in ('top', 'wrist')]
    for references, message in (
        (['a.mp4'], "'a.mp4' is not a reference"),
        (['/nowhere/a.mp4#t=1'], 'There is no video file /nowhere/a.mp4'),
        ([f'{path}#t=0' for path in paths], 'must be of one size'),
        ([f'{paths[0]}#t=99'], 'no frame within half a frame of 99.0000'),
    ):
      dataset = tf.data.Dataset.from_tensors({'a': references}).map(
          lambda nest: images.decode_video_frames(nest, ['a'], size=(8, 8))
      )
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
        list(dataset)


if __name__ == '__main__':
  tf.test.main()
