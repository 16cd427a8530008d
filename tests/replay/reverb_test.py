import sys
from unittest import mock

from absl.testing import absltest
import reverb as original

from rlds2reverb.replay import reverb


class ReverbTest(absltest.TestCase):

  def test_attributes_are_those_of_the_package(self):
    self.assertIs(reverb.Client, original.Client)
    with self.assertRaisesRegex(AttributeError, 'Nothing'):
      _ = reverb.Nothing

  def test_missing_package_raises_installation_command(self):
    with mock.patch.dict(sys.modules, reverb=None):
      with self.assertRaisesRegex(
          ModuleNotFoundError, 'with Python 3.10 or 3.11, pip install dm-reverb'
      ) as raised:
        _ = reverb.Client
    self.assertEqual(raised.exception.name, 'reverb')

  def test_sample_info_has_the_same_fields_without_the_package(self):
    self.assertIs(reverb.sample_info_class(), original.SampleInfo)
    with mock.patch.dict(sys.modules, reverb=None):
      without = reverb.sample_info_class()
    self.assertIsNot(without, original.SampleInfo)
    self.assertEqual(without._fields, original.SampleInfo._fields)


if __name__ == '__main__':
  absltest.main()
