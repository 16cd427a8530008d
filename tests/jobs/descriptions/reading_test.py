"""Tests of the pass over a data set, against numpy."""

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from rlds2reverb.jobs.descriptions import metadata
from rlds2reverb.jobs.descriptions import reading
from rlds2reverb.statistics import compute
from tests import golden
from tests.jobs.descriptions import odd_data


class ReadingTest(parameterized.TestCase, tf.test.TestCase):

  @parameterized.named_parameters(*golden.FORMS_AND_BATCHES.items())
  def test_numbers_and_excerpts_are_those_of_numpy(self, form):
    # Short episodes beside a long one, and one without steps.
    episodes = odd_data.clean(40) + [
        odd_data.make(7, 1000),
        odd_data.make(1, 0),
    ]
    episodes[4]['observation']['position'][3, 1] = np.nan
    found = reading.Reading(form(episodes))
    lengths = np.array(list(map(golden.length_of, episodes)))
    returns = np.array([episode['reward'][:-1].sum() for episode in episodes])
    self.assertAllEqual(found.episodes['index'], np.arange(42))
    self.assertAllEqual(found.episodes['num_steps'], lengths)
    self.assertAllClose(found.episodes['return'], returns)
    # The statistics are those of `compute_statistics`.
    expected = compute.compute_statistics(golden.stacked(episodes))
    self.assertCountEqual(found.statistics.fields, expected.fields)
    for name, field in expected.fields.items():
      for key in ('mean', 'std', 'min', 'max', 'count'):
        self.assertAllClose(
            getattr(found.statistics.fields[name], key),
            getattr(field, key),
            1e-12,
            1e-12,
        )
    columns = {
        'action[0]': [episode['action'][:-1, 0] for episode in episodes],
        'observation/position[1]': [
            episode['observation']['position'][:, 1] for episode in episodes
        ],
    }
    for index, column in enumerate(found.columns):
      values = columns.get(column.name)
      if values is None:
        continue
      everything = np.concatenate(values)
      everything = np.sort(everything[np.isfinite(everything)])
      sample = found.samples[column.field][column.number]
      self.assertAllEqual(np.sort(sample), everything)
      for end, expected in ((0, everything[0]), (1, everything[-1])):
        episode, step = found.places[end * len(found.columns) + index]
        self.assertEqual(values[episode][step], expected)
        self.assertIn(step, found.excerpts[episode]['steps'])
    best = np.argsort(returns[:-1])
    self.assertContainsSubset(
        [*best[:3], *best[-3:], 40, 41, 4], found.excerpts
    )
    for index, excerpt in found.excerpts.items():
      length, steps = lengths[index], excerpt['steps']
      self.assertEqual(excerpt['episode'], index)
      numbers = {
          column.name: numbers
          for column, numbers in zip(found.columns, excerpt['curves'].T)
      }
      self.assertContainsSubset({0, length - 1} if length else (), steps)
      self.assertBetween(len(steps), min(length, 200), 300)
      self.assertLessEqual(max(np.diff(steps), default=0), -(-length // 199))
      for name, values in columns.items():
        inside = steps[steps < len(values[index])]
        self.assertAllEqual(numbers[name][: len(inside)], values[index][inside])
        self.assertAllEqual(
            numbers[name][len(inside) :],
            [np.nan] * (len(steps) - len(inside)),
        )
    # The second number of the position is NaN in step 3.
    self.assertEqual(
        found.shown['not_finite', 'observation/position'][:4], [1, 4, 3, 1]
    )

  def test_lengths_that_are_known_or_differ(self):
    episodes = [odd_data.make(index, 5) for index in range(3)]
    data = tf.data.Dataset.from_tensor_slices(
        {'steps': tf.nest.map_structure(lambda *all: np.stack(all), *episodes)}
    )
    self.assertEqual(reading.Reading(data).statistics.num_steps, 15)
    spec = {'steps': golden.stacked_spec(episodes[0])}
    episodes[0]['action'] = episodes[0]['action'][:4]
    data = tf.data.Dataset.from_generator(
        lambda: iter([{'steps': episodes[0]}]), output_signature=spec
    )
    found = reading.Reading(data)
    self.assertEqual(found.shown['unequal_lengths', None][:3], [1, 0, None])
    self.assertEqual(found.statistics.num_steps, 4)

  def test_fields_without_numbers(self):
    episode = odd_data.make(0)
    episode['observation']['nothing'] = np.zeros([6, 0], np.float32)
    episode['void'] = np.zeros([6, 0], np.float32)  # the last one
    episode['observation']['position'][4, 1] = np.nan
    found = reading.Reading(golden.stacked([episode]))
    (place,) = [key for key in found.shown if key[1] is not None]
    self.assertEqual(place, ('not_finite', 'observation/position'))
    self.assertEqual(found.shown[place][2], 4)

  def test_arrays_of_the_user_stay_as_they_are(self):
    # TensorFlow may write into arrays that begin at a multiple of 64 bytes.
    def aligned(array):
      room = np.zeros(array.nbytes + 64, np.uint8)
      start = -room.ctypes.data % 64
      copy = room[start : start + array.nbytes].view(array.dtype)
      copy = copy.reshape(array.shape)
      copy[...] = array
      return copy

    episodes = odd_data.with_images()
    lent = [tf.nest.map_structure(aligned, episode) for episode in episodes]
    reading.Reading(golden.stacked(lent))
    for found, expected in zip(lent, episodes):
      tf.nest.map_structure(self.assertAllEqual, found, expected)

  def test_bad_arguments(self):
    data = golden.stacked([odd_data.make(0)])
    for name, low, message in (
        ('acton', 0, 'Did you mean action'),
        ('observation', 0, 'observation cannot have bounds'),
        ('action', [0, 0, 0], r'shape \(2,\), but low is'),
    ):
      bounds = {name: metadata.Bounds(low, 1, 'me')}
      with self.assertRaisesRegex(ValueError, message):
        reading.Reading(data, bounds=bounds)


if __name__ == '__main__':
  tf.test.main()
