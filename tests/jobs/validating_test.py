"""Tests of checking every episode, against a plain check of every step."""

import os

import numpy as np
import tensorflow as tf

from rlds2reverb.jobs import describing
from rlds2reverb.jobs import sources
from rlds2reverb.jobs import validating
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import validation
from tests import golden
from tests.jobs import data_sets


class ValidateEpisodesTest(tf.test.TestCase):

  def test_first_problem_equals_error_of_conversion(self):
    rng = np.random.default_rng(0)
    episodes = [
        golden.corrupted(rng, episode)
        for episode in golden.random_episodes(rng, 200)
    ] + [case.episode for case in golden.INVALID_CASES.values()]
    spec = golden.stacked_spec(golden.COMPLETE)
    flags = ('is_first', 'is_last', 'is_terminal', 'discount')
    episodes = [
        {
            **golden.make_episode(
                [1] * golden.length_of(episode), terminal=False
            ),
            **{flag: episode[flag] for flag in flags},
        }
        for episode in episodes
    ]
    actual = validating.validate(golden.nested(episodes, spec), limit=10_000)
    expected = {
        index: golden.find_fault(episode)
        for index, episode in enumerate(episodes)
        if golden.find_fault(episode) is not None
    }
    first = {}
    for problem in actual.problems:
      first.setdefault(problem.episode, (problem.rule, problem.step))
    self.assertEqual(first, expected)
    self.assertEqual(actual.num_episodes, len(episodes))
    self.assertEqual(actual.num_invalid, len(expected))
    self.assertLen(actual.problems, actual.num_problems)
    self.assertFalse(actual.is_valid)

  def test_all_problems_of_an_episode_are_listed(self):
    episode = golden.make_episode([1, 2, 1, -0.5, 1], terminal=False)
    episode['is_first'][2] = True
    actual = validating.validate(golden.stacked([golden.COMPLETE, episode]))
    self.assertEqual(
        list(map(str, actual.problems)),
        [
            'episode 1, step 1: Mid step should not be followed by a first'
            ' step. is_first=0, is_last=0, is_terminal=0, discount=2',
            'episode 1, step 1: Discount must lie in [0, 1]. is_first=0,'
            ' is_last=0, is_terminal=0, discount=2',
            'episode 1, step 3: Discount must lie in [0, 1]. is_first=0,'
            ' is_last=0, is_terminal=0, discount=-0.5',
        ],
    )
    limited = validating.validate(golden.stacked([episode]), limit=1)
    self.assertEqual((len(limited.problems), limited.num_problems), (1, 3))
    # TF-Agents takes any discount.
    episode['is_first'][2] = False
    rules = options_lib.ConversionRules(validation='tf_agents')
    actual = validating.validate(golden.stacked([episode]), rules=rules)
    self.assertTrue(actual.is_valid)
    with self.assertRaisesRegex(ValueError, 'limit must be a positive'):
      validating.validate(golden.stacked([golden.COMPLETE]), limit=0)

  def test_lengths_that_differ_and_errors_of_the_pipeline(self):
    spec = {'steps': golden.stacked_spec(golden.COMPLETE)}
    unequal = dict(golden.COMPLETE, action=golden.COMPLETE['action'][:2])
    episodes = [golden.COMPLETE, unequal, golden.TRUNCATED, golden.COMPLETE]
    data = tf.data.Dataset.from_generator(
        lambda: ({'steps': episode} for episode in episodes),
        output_signature=spec,
    )

    def fail(episode):
      # The third episode has a discount of 0.9.
      with tf.control_dependencies(
          [
              tf.debugging.assert_equal(
                  episode['steps']['discount'][-1], 1.0, 'It broke.'
              )
          ]
      ):
        return tf.nest.map_structure(tf.identity, episode)

    actual = validating.validate(data.map(fail))
    one, other = actual.problems
    self.assertEqual((one.episode, one.rule), (1, validation.UNEQUAL_LENGTHS))
    self.assertIn('action: 2', one.values)
    self.assertEqual((other.episode, other.rule), (2, validating.UNREADABLE))
    self.assertIn('It broke.', other.values)
    self.assertEqual((actual.num_episodes, actual.num_invalid), (4, 2))

  def test_validation_continues_after_unreadable_episodes(self):
    episodes = [data_sets.episode(index, 4) for index in range(9)]
    episodes[5]['steps'][1]['is_terminal'] = True
    episodes[0]['steps'][2]['reward'] = np.float32(np.nan)
    directory = data_sets.write(
        f'{self.create_tempdir().full_path}/data', episodes, per_file=3
    )
    parts = sources.make_source(directory, 'train[4:]+train[:2]')
    actual = validating.validate(parts)
    (problem,) = actual.problems
    self.assertEqual(
        (problem.split, problem.episode, problem.step), ('train', 5, 1)
    )
    self.assertEqual(actual.num_episodes, 7)
    # The config defines the rules.
    bindings = ['ConversionRules.nan = "invalid"']
    source = sources.make_source(directory, 'train[:2]', bindings=bindings)
    (problem,) = validating.validate(source).problems
    self.assertEqual((problem.episode, problem.rule), (0, validation.NAN))
    self.assertEndsWith(problem.values, ', NaN in reward')

    # The first file loses the end of its second episode.
    files = data_sets.files_of(directory)
    os.truncate(files[0], os.path.getsize(files[0]) // 2)
    actual = validating.validate(sources.make_source(directory))
    self.assertLen(actual.problems, 1)
    self.assertEqual(actual.problems[0].episode, 5)
    (message,) = actual.not_read
    self.assertStartsWith(message, f'{files[0]}, episodes 1 to 2: ')
    self.assertFalse(actual.is_valid)
    self.assertEqual(actual.num_episodes, 7)

    # A file is missing, and one after it has lost an episode.
    os.remove(files[0])
    records = list(tf.data.TFRecordDataset(files[1]).as_numpy_iterator())
    with tf.io.TFRecordWriter(files[1]) as writer:
      for record in records[:2]:
        writer.write(record)
    actual = validating.validate(sources.make_source(directory))
    missing, short = actual.not_read
    self.assertStartsWith(missing, f'{files[0]}, episodes 0 to 2: ')
    self.assertEndsWith(
        missing,
        f' {files[0]} is missing. Copy it from where it is whole, and start the'
        ' same command again.',
    )
    self.assertEqual(
        short,
        f'{files[1]} has 2 episodes, but dataset_info.json says 3. Copy it from'
        ' where it is whole, and start the same command again.',
    )
    self.assertEqual(actual.num_episodes, 5)

    with open(files[0], 'wb') as f:
      f.write(b'version https://git-lfs.github.com/spec/v1\noid sha256:a\n')
    source = sources.make_source(directory)
    pointer = (
        f'{files[0]} is a Git LFS pointer, not the file itself. Run `git lfs'
        ' pull` in its repository.'
    )
    actual = validating.validate(source)
    self.assertEndsWith(actual.not_read[0], f'episodes 0 to 2: {pointer}')
    with self.assertRaisesRegex(tf.errors.DataLossError, pointer):
      describing.describe(source)


if __name__ == '__main__':
  tf.test.main()
