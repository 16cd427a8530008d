"""What pytest needs to run tests that are written as absl programs."""

from absl import flags

flags.FLAGS.mark_as_parsed()
