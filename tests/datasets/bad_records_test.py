"""Tests of data sets on disk some of whose records cannot be read."""

import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from rlds2reverb.datasets import loading
from rlds2reverb.episodes import episode_dataset
from rlds2reverb.statistics import compute
from rlds2reverb.trajectories import conversion
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.transforms import applying
from rlds2reverb.transforms import filters
from rlds2reverb.transforms import normalization
from tests import tfds_files

_FEATURES = {
    'episode_id': np.int64,
    'steps': tfds.features.Dataset(
        {
            'observation': tfds.features.Tensor(shape=(3,), dtype=np.float32),
            'image': tfds.features.Image(shape=(2, 2, 3)),
            **dict.fromkeys(('action', 'reward', 'discount'), np.float32),
            **dict.fromkeys(('is_first', 'is_last', 'is_terminal'), np.bool_),
        }
    ),
}
_STEPS = 4
_PER_FILE = 20
_MEND = 'An episode must be stored as features.json says, but it '
_DAMAGED = f'{_MEND}is damaged or has another type.'
_COUNTS = ', '.join(
    f'{name}: %s' for name in sorted(_FEATURES['steps'].feature)
)
_UNEQUAL = 'All fields of an episode must have the same number of steps.'


def _record(number):
  row, ones = np.arange(_STEPS), np.ones(_STEPS, np.float32)
  return tfds.features.FeaturesDict(_FEATURES).serialize_example(
      {
          'episode_id': number,
          'steps': {
              'observation': np.full([_STEPS, 3], number, np.float32),
              'image': np.zeros([_STEPS, 2, 2, 3], np.uint8),
              **dict.fromkeys(('action', 'reward', 'discount'), ones),
              'is_first': row == 0,
              'is_last': row == _STEPS - 1,
              'is_terminal': row < 0,
          },
      }
  )


def _with(record, field, values):
  """Returns the record with other values of a field, or without it."""
  example = tf.train.Example.FromString(record)
  del example.features.feature[field]
  if values and isinstance(values[0], bytes):
    example.features.feature[field].bytes_list.value.extend(values)
  elif values:
    example.features.feature[field].float_list.value.extend(values)
  return example.SerializeToString()


# How a record is damaged, and the rule, field and values of the fault.
_CASES = {
    3: (
        ('steps/observation', [0.0] * 11),
        'The values stored for a step field are not a multiple of those of a'
        ' step.',
        'observation',
        'observation: 11',
    ),
    8: (
        ('steps/observation', [0.0] * 9),
        _UNEQUAL,
        '',
        _COUNTS % (4, 4, 4, 4, 4, 4, 3, 4),
    ),
    9: (
        ('steps/reward', None),
        _UNEQUAL,
        '',
        _COUNTS % (4, 4, 4, 4, 4, 4, 4, 0),
    ),
    22: (
        ('episode_id', None),
        'A field of an episode must have all of its values.',
        'episode_id',
        'episode_id: 0',
    ),
    30: (('steps/reward', [b'x'] * 4), _DAMAGED, '', ''),
    39: (None, _DAMAGED, '', ''),
    45: (
        ('steps/image', [b'no image'] * 4),
        f'{_MEND}cannot be decoded.',
        '',
        '',
    ),
}


class BadRecordsTest(tf.test.TestCase):

  def _load(self, bad):
    directory = os.path.join(self.create_tempdir().full_path, '1.0.0')
    self._write(directory, bad)
    config = tfds.ReadConfig(interleave_cycle_length=2)
    return directory, loading.load_episodes(directory, read_config=config)

  def _write(self, directory, bad):
    records = [_record(number) for number in range(60)]
    for number in bad:
      change = _CASES[number][0]
      records[number] = (
          _with(records[number], *change) if change else b'\xff\xfe damaged'
      )
    tfds_files.write_records(
        directory,
        _FEATURES,
        [
            records[first : first + _PER_FILE]
            for first in range(0, 60, _PER_FILE)
        ],
    )

  @pytest.mark.long
  def test_episodes_before_a_bad_one_are_read(self):
    directory, data = self._load([])
    forms = (
        conversion.convert_rlds_to_trajectories(data, batched=True),
        conversion.convert_rlds_to_trajectories(
            data,
            batched=True,
            options=options_lib.ConversionOptions(
                options_lib.ConversionRules(validation='tf_agents')
            ),
        ),
        episode_dataset.unbatch(episode_dataset.batches_of(data)),
        data,
    )
    for number in 3, 39, 45:
      self._write(directory, [number])
      # The records of two files come in turn, 16 at a time.
      order = [*range(16), *range(20, 36), *range(16, 20), *range(36, 60)]
      position = order.index(number)
      expected = order[:position]
      message = (
          f'{_CASES[number][1]} Found at episode {position}, record'
          f' {number % _PER_FILE} of .*-0000{number // _PER_FILE}-of-00003'
      )
      for found in forms:
        numbers = []
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
          for element in found:
            if isinstance(element, dict):
              numbers.append(int(element['episode_id']))
            else:
              numbers += element.observation.numpy()[::_STEPS, 0].tolist()
        self.assertEqual(numbers, expected)
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
        compute.compute_statistics(data)

  @pytest.mark.long
  def test_bad_episodes_are_skipped(self):
    _, data = self._load(_CASES)
    # A filter does not take them away unseen.
    changed = applying.transform_episodes(
        data,
        [filters.KeepEpisodes(min_length=1), normalization.ScaleReward(2.0)],
    )
    for episodes in data, changed:
      report = report_lib.ConversionReport()
      blocks = conversion.convert_rlds_to_trajectories(
          episodes,
          options=options_lib.ConversionOptions(
              rules=options_lib.ConversionRules(invalid_episodes='skip'),
              report=report,
          ),
          batched=True,
      )
      actual = np.concatenate([block.observation[:, 0] for block in blocks])
      self.assertCountEqual(
          actual[::_STEPS], [n for n in range(60) if n not in _CASES]
      )
      self.assertLen(report.skipped_episodes, len(_CASES))
      faults = {}
      for skipped in report.skipped_episodes:
        words = skipped.fault.place.split()
        file = int(words[-1].partition('-of-')[0][-5:])
        faults[file * _PER_FILE + int(words[1])] = skipped.fault
      for number, (_, rule, field, values) in _CASES.items():
        with self.subTest(number):
          fault = faults[number]
          self.assertEqual(
              (fault.rule, fault.field, fault.values), (rule, field, values)
          )

  def test_fields_of_unequal_length_raise_without_batches(self):
    with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'the same number of steps.*reward'
    ):
      list(self._load([8])[1])


if __name__ == '__main__':
  tf.test.main()
