import sys
from unittest import mock

from absl.testing import absltest
import reverb

from rlds2reverb.replay import sample_info


class SampleInfoTest(absltest.TestCase):

  def test_is_that_of_reverb(self):
    self.assertIs(sample_info.sample_info_class(), reverb.SampleInfo)

  def test_has_its_fields_without_it(self):
    with mock.patch.dict(sys.modules, reverb=None):
      without = sample_info.sample_info_class()
    self.assertIsNot(without, reverb.SampleInfo)
    self.assertEqual(without._fields, reverb.SampleInfo._fields)


if __name__ == '__main__':
  absltest.main()
