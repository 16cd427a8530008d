"""Tests of the flags that programs share."""

import os
from unittest import mock

from absl import app
from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver

from rlds2reverb.jobs import flags as flags_lib

flags_lib.define_source_flags()
flags.DEFINE_integer('num_workers', 1, 'For the test.')
flags.DEFINE_multi_string('names', ['a'], 'For the test.')


class FlagsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.enter_context(
        flagsaver.flagsaver(
            dataset=['data'],
            split=['train'],
            config=None,
            format=None,
            gin_binding=[],
        )
    )

  def test_paths_are_those_of_the_folder_in_which_the_user_is(self):
    os.mkdir(os.path.join(self.folder, 'data'))
    with open(
        os.path.join(self.folder, 'mine.gin'), 'w', encoding='utf-8'
    ) as f:
      f.write("StepMapping.action = 'torque'\n")
    with mock.patch.dict(
        os.environ, BUILD_WORKING_DIRECTORY=self.folder
    ), flagsaver.flagsaver(config=['mine.gin'], data_dir='here'):
      (source,) = flags_lib.sources_from_flags('convert')
    self.assertEqual(source.dataset, os.path.join(self.folder, 'data'))
    self.assertEqual(source.data_dir, os.path.join(self.folder, 'here'))
    self.assertEqual(source.config, os.path.join(self.folder, 'mine.gin'))
    self.assertEqual(source.bindings, "StepMapping.action = 'torque'")

  def test_a_name_stays_a_name(self):
    with flagsaver.flagsaver(dataset=['some_name/v2']):
      (source,) = flags_lib.sources_from_flags('convert')
    self.assertEqual((source.dataset, source.split), ('some_name/v2', 'train'))

  def test_a_mixture(self):
    with mock.patch.dict(
        os.environ, BUILD_WORKING_DIRECTORY=self.folder
    ), flagsaver.flagsaver(
        dataset=None,
        data_dir='here',
        gin_binding=['convert.num_workers = 3', 'FitImages.sizes = {}'],
        num_workers=flags.FLAGS.num_workers,
    ):
      sources = flags_lib.sources_from_flags('convert', 'oxe_magic_soup')
      self.assertEqual(flags.FLAGS.num_workers, 3)
    self.assertLen(sources, 25)
    self.assertEqual(
        (sources[2].dataset, sources[2].config, sources[2].split),
        (
            os.path.join(self.folder, 'here', 'bridge_dataset'),
            'bridge_dataset',
            'train',
        ),
    )
    self.assertEndsWith(sources[2].bindings, 'FitImages.sizes = {}')
    for values, message in (
        ({'data_dir': 'here'}, 'Leave out --dataset'),
        ({'dataset': None}, 'needs --data_dir'),
        (
            {'dataset': None, 'data_dir': 'x', 'split': ['a', 'b']},
            'takes one --split',
        ),
    ):
      with self.subTest(message), flagsaver.flagsaver(**values):
        with self.assertRaisesRegex(app.UsageError, message):
          flags_lib.sources_from_flags('convert', 'oxe_magic_soup')

  def test_one_split_for_all_or_one_each(self):
    with flagsaver.flagsaver(dataset=['a', 'b'], split=['train', 'test']):
      sources = flags_lib.sources_from_flags('convert')
    self.assertEqual(
        [(source.dataset, source.split) for source in sources],
        [('a', 'train'), ('b', 'test')],
    )
    with flagsaver.flagsaver(dataset=['a', 'b'], split=['test']):
      sources = flags_lib.sources_from_flags('convert')
    self.assertEqual([source.split for source in sources], ['test', 'test'])
    with flagsaver.flagsaver(dataset=['a', 'b'], split=['x', 'y', 'z']):
      with self.assertRaisesRegex(app.UsageError, '--split is there 3 times'):
        flags_lib.sources_from_flags('convert')

  def test_bindings_set_flags_that_the_user_has_not_given(self):
    bindings = [
        'convert.num_workers = 5',
        "convert.names = ['b', 'c']",
        'describe.anything = 7',
    ]
    with flagsaver.flagsaver(gin_binding=bindings):
      flags_lib.sources_from_flags('convert')
      self.assertEqual(flags.FLAGS.num_workers, 5)
      self.assertEqual(flags.FLAGS.names, ['b', 'c'])
    with flagsaver.flagsaver(gin_binding=bindings):
      flags.FLAGS['num_workers'].parse('2')
      flags.FLAGS['num_workers'].present = 1
      flags_lib.sources_from_flags('convert')
      self.assertEqual(flags.FLAGS.num_workers, 2)

  def test_bindings_of_no_flag_or_of_a_wrong_value(self):
    with flagsaver.flagsaver(gin_binding=['convert.num_worker = 5']):
      with self.assertRaisesRegex(
          app.UsageError, r'Did you mean num_workers\?'
      ):
        flags_lib.sources_from_flags('convert')
    with flagsaver.flagsaver(gin_binding=["convert.num_workers = 'many'"]):
      with self.assertRaisesRegex(
          app.UsageError, "convert.num_workers is bound to 'many'"
      ):
        flags_lib.sources_from_flags('convert')

  def test_a_flag_is_as_the_argument_that_it_stands_for(self):
    flags_lib.define(
        'jobs.describing.describe', 'most=num_excerpts', lower_bound=0
    )
    flags_lib.define('jobs.serve.serve_source', 'allow_empty', more=' Or not.')
    most, empty = flags.FLAGS['most'], flags.FLAGS['allow_empty']
    self.assertEqual((most.default, empty.default), (40, False))
    self.assertStartsWith(
        most.help, 'How many episodes are kept, at most, with'
    )
    self.assertEqual(empty.help, 'Whether a table may have no items. Or not.')
    with self.assertRaisesRegex(flags.IllegalFlagValueError, 'non-negative'):
      most.parse('-1')

  def test_a_data_set_is_needed(self):
    with flagsaver.flagsaver(dataset=None):
      with self.assertRaisesRegex(app.UsageError, '--dataset'):
        flags_lib.sources_from_flags('convert')


if __name__ == '__main__':
  absltest.main()
