"""Tests for zarr_buffers, on what Zarr wrote: see write_zarr_data.py."""

import os

import numpy as np
import pytest
import tensorflow as tf

import rlds2reverb
from rlds2reverb import transforms
from rlds2reverb.formats import zarr_buffers
from tests.formats import expected

pytest.importorskip('zarr')

_DATA = os.path.join(expected.DATA, 'zarr')
_BOUNDS = ((0, 5), (5, 6), (6, 14))


def _path(name):
  return os.path.join(_DATA, name)


class ZarrTest(tf.test.TestCase):

  def _assert_read(self, dataset, name):
    self.assertEqual(dataset.cardinality(), 3)
    with np.load(_path(f'{name}.npz')) as arrays:
      columns = dict(arrays)
    episodes = []
    for begin, end in _BOUNDS:
      rows = {key: column[begin:end] for key, column in columns.items()}
      actions = rows.pop('action', rows[next(iter(rows))])
      episodes.append(expected.steps(rows, actions))
      if 'action' not in columns:
        del episodes[-1]['action']
    for _ in range(2):
      expected.assert_read(self, dataset, episodes)

  def test_diffusion_policy(self):
    dataset = zarr_buffers.load_zarr(_path('pusht.zarr'))
    self._assert_read(dataset, 'pusht')
    self.assertEqual(
        dataset.element_spec['steps']['observation']['img'],
        tf.TensorSpec([None, 8, 8, 3], tf.float32),
    )

  def test_umi(self):
    dataset = zarr_buffers.load_zarr(_path('umi.zarr.zip'))
    self.assertNotIn('action', dataset.element_spec['steps'])
    self._assert_read(dataset, 'umi')

  def test_actions_of_umi(self):
    names = ('eef_pos', 'eef_rot_axis_angle', 'gripper_width')
    mapping = rlds2reverb.fields.StepMapping(
        action=[f'observation/robot0_{name}' for name in names]
    )
    dataset = zarr_buffers.load_zarr(_path('umi.zarr.zip'))
    dataset = rlds2reverb.map_fields(dataset, mapping).map(
        transforms.ActionsFromStates(state='action', kind='absolute', kept=())
    )
    with np.load(_path('umi.npz')) as arrays:
      poses = np.concatenate([arrays[f'robot0_{name}'] for name in names], 1)
    for (begin, end), episode in zip(_BOUNDS, dataset.as_numpy_iterator()):
      self.assertAllEqual(
          episode['steps']['action'][:-1], poses[begin + 1 : end]
      )

  def test_arrays_left_out(self):
    dataset = zarr_buffers.load_zarr(
        _path('pusht.zarr'), leave_out=['img', 'keypoint']
    )
    self.assertEqual(
        list(dataset.element_spec['steps']['observation']),
        ['n_contacts', 'state'],
    )
    with self.assertRaisesRegex(ValueError, "data has no field 'image'"):
      zarr_buffers.load_zarr(_path('pusht.zarr'), leave_out=['image'])

  def _changed(self, array, **changed):
    path = expected.copy_of(self, 'zarr', 'pusht.zarr')
    file = os.path.join(path, array, '.zarray')
    expected.change_json(file, lambda metadata: metadata.update(changed))
    return path

  def test_what_is_no_buffer(self):
    ends = expected.copy_of(self, 'zarr', 'pusht.zarr')
    np.array([5, 3, 14]).tofile(os.path.join(ends, 'meta', 'episode_ends', '0'))
    pickles = [{'id': 'pickle', 'protocol': 5}]
    expected.assert_refused(
        self,
        zarr_buffers.load_zarr,
        ('/nowhere', 'There is no Zarr'),
        (f'{expected.DATA}/lerobot/v3.0', 'is not a Zarr replay buffer'),
        (_path('pusht.npz'), 'is not a Zarr replay buffer'),
        (
            self._changed('data/state', shape=[13, 5]),
            r'data/state .* shape \(13, 5\), but there are 14 frames',
        ),
        (ends, 'increasing ends of episodes'),
        (
            self._changed('data/state', filters=pickles),
            'state .* may run any code',
        ),
    )
    path = self._changed('data/img', compressor={'id': 'no_such_codec'})
    with self.assertRaisesRegex(ImportError, 'no_such_codec.*imagecodecs'):
      zarr_buffers.load_zarr(path)


if __name__ == '__main__':
  tf.test.main()
