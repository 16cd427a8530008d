import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import reverb as original

from rlds2reverb.replay import reverb


class ReverbTest(parameterized.TestCase):

  def test_has_what_the_package_has(self):
    self.assertIs(reverb.Client, original.Client)
    with self.assertRaisesRegex(AttributeError, 'Nothing'):
      _ = reverb.Nothing

  @parameterized.parameters(
      ((3, 11), 'pip install dm-reverb==0.14.0.'),
      ((3, 12), 'no release of it for Python 3.12, so use Python 3.10 or 3.11'),
  )
  def test_says_what_to_do_without_it(self, version, advice):
    with mock.patch.dict(sys.modules, reverb=None):
      with mock.patch.object(reverb.sys, 'version_info', version):
        with self.assertRaisesRegex(ModuleNotFoundError, advice) as raised:
          _ = reverb.Client
    self.assertEqual(raised.exception.name, 'reverb')

  def test_sample_info_has_the_same_fields_without_it(self):
    self.assertIs(reverb.sample_info_class(), original.SampleInfo)
    with mock.patch.dict(sys.modules, reverb=None):
      without = reverb.sample_info_class()
    self.assertIsNot(without, original.SampleInfo)
    self.assertEqual(without._fields, original.SampleInfo._fields)


if __name__ == '__main__':
  absltest.main()
