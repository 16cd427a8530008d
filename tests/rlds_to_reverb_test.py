"""TF-Agents' own tests of `rlds_to_reverb`, run against ours."""

import importlib.util
import inspect
import os
import sys
from unittest import mock

import tensorflow as tf
from tf_agents import replay_buffers
from tf_agents.replay_buffers import rlds_to_reverb as original

import rlds2reverb
from rlds2reverb import rlds_to_reverb


def _load_original_tests():
  """Loads the test file that ships with TF-Agents, with our module in it."""
  path = os.path.join(
      os.path.dirname(original.__file__), 'rlds_to_reverb_test.py'
  )
  spec = importlib.util.spec_from_file_location('original_tests', path)
  module = importlib.util.module_from_spec(spec)
  with mock.patch.object(replay_buffers, 'rlds_to_reverb', rlds_to_reverb):
    with mock.patch.dict(sys.modules, {original.__name__: rlds_to_reverb}):
      spec.loader.exec_module(module)
  return module


_original_tests = _load_original_tests()

RldsToReverbTest = _original_tests.RldsToReverbTest
RldsToTrajectoriesTest = _original_tests.RldsToTrajectoriesTest


class DropInTest(tf.test.TestCase):

  def test_original_tests_run_against_our_module(self):
    self.assertIs(_original_tests.rlds_to_reverb, rlds_to_reverb)

  def test_package_exports_the_functions_of_the_module(self):
    for name in (
        'create_trajectory_data_spec',
        'convert_rlds_to_trajectories',
        'push_rlds_to_reverb',
    ):
      self.assertIs(getattr(rlds2reverb, name), getattr(rlds_to_reverb, name))
    self.assertEmpty(rlds2reverb.ConversionReport().skipped_episodes)

  def test_module_has_names_and_positional_arguments_of_the_original(self):
    self.assertEqual(
        rlds_to_reverb.get_rlds_step_features(),
        original.get_rlds_step_features(),
    )
    for name in (
        'create_trajectory_data_spec',
        'convert_rlds_to_trajectories',
        'push_rlds_to_reverb',
    ):
      ours, theirs = (
          list(inspect.signature(getattr(module, name)).parameters.values())
          for module in (rlds_to_reverb, original)
      )
      self.assertNotEmpty(theirs)
      for our, their in zip(ours, theirs):
        self.assertEqual(our.name, their.name)
        self.assertEqual(our.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD)
      for our in ours[len(theirs) :]:
        if our.kind != inspect.Parameter.VAR_KEYWORD:
          self.assertIsNot(our.default, inspect.Parameter.empty)


if __name__ == '__main__':
  tf.test.main()
