"""Tests of the size of blocks."""

from absl.testing import parameterized
import tensorflow as tf

from rlds2reverb.episodes import blocks


class DefaultBlockLengthTest(tf.test.TestCase, parameterized.TestCase):

  @parameterized.named_parameters(
      ('image', tf.TensorSpec([64, 64, 3], tf.uint8), (2 << 20) // 12288),
      ('float_image', tf.TensorSpec([64, 64, 3], tf.float32), 42),
      ('small_is_capped', tf.TensorSpec([], tf.float32), 4096),
      ('at_the_cap', tf.TensorSpec([128], tf.float32), 4096),
      ('below_the_cap', tf.TensorSpec([256], tf.float32), 2048),
      ('large_is_one', tf.TensorSpec([4096, 4096], tf.float64), 1),
      ('string', tf.TensorSpec([], tf.string), 512),
      ('strings', tf.TensorSpec([4], tf.string), 128),
      ('unknown_size', tf.TensorSpec([None, None, 4], tf.uint8), 8),
      ('unknown_rank', tf.TensorSpec(None, tf.float64), 1024),
      ('nothing', {}, 4096),
      ('no_elements', tf.TensorSpec([0], tf.float32), 4096),
      (
          'sum_of_leaves',
          {
              'a': (tf.TensorSpec([256], tf.float32),),
              'b': tf.TensorSpec([128], tf.float64),
          },
          1024,
      ),
  )
  def test_about_two_mebibytes(self, spec, expected):
    self.assertEqual(blocks.default_block_length(spec), expected)


if __name__ == '__main__':
  tf.test.main()
