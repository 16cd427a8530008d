"""What each config of Open X-Embodiment and its peers should make of steps.

Each function takes the stacked steps and the episode as TFDS reads them, and
returns the observation, the action and the policy_info.
"""

import numpy as np


def vector(*columns):
  """Returns float32 vectors of all columns, in their order."""
  return np.concatenate(
      [np.reshape(np.float32(column), [len(column), -1]) for column in columns],
      axis=1,
  )


def every_step(value, steps):
  return np.array([value] * len(steps['is_first']))


def _own(steps, **fields):
  """Returns the named fields of the observation under other names."""
  return {name: steps['observation'][field] for name, field in fields.items()}


def _first_release(steps, action, **fields):
  """A data set of the first release, whose language is in the observation."""
  own = steps['observation']
  observation = {
      **_own(steps, **fields),
      'language': own['natural_language_embedding'],
  }
  info = {'instruction': own['natural_language_instruction']}
  return observation, action, info


def _arm_and_gripper(steps, gripper='gripper_closedness_action'):
  action = steps['action']
  return vector(
      action['world_vector'], action['rotation_delta'], action[gripper]
  )


def _columbia_cairlab_pusht_real(steps, _):
  return _first_release(
      steps,
      _arm_and_gripper(steps),
      image='image',
      wrist_image='wrist_image',
      state='robot_state',
  )


def _jaco_play(steps, _):
  action = steps['action']
  translation = action['world_vector']
  return _first_release(
      steps,
      vector(
          translation,
          np.zeros_like(translation),
          action['gripper_closedness_action'],
      ),
      image='image',
      wrist_image='image_wrist',
      state='end_effector_cartesian_pos',
  )


def _cable_routing(steps, _):
  action = steps['action']
  return _first_release(
      steps,
      vector(
          action['world_vector'],
          action['rotation_delta'],
          np.zeros(len(steps['is_first'])),
      ),
      image='image',
      secondary_image='top_image',
      wrist_image='wrist45_image',
      state='robot_state',
  )


def _roboturk(steps, _):
  return _first_release(steps, _arm_and_gripper(steps), image='front_rgb')


def _nyu_door_opening(steps, _):
  return _first_release(steps, _arm_and_gripper(steps), wrist_image='image')


def _viola(steps, _):
  own = steps['observation']
  observation, action, info = _first_release(
      steps,
      _arm_and_gripper(steps),
      image='agentview_rgb',
      wrist_image='eye_in_hand_rgb',
  )
  observation['state'] = vector(own['joint_states'], own['gripper_states'])
  return observation, action, info


def _autolab_ur5(steps, _):
  observation, action, info = _first_release(
      steps,
      _arm_and_gripper(steps),
      image='image',
      wrist_image='hand_image',
      depth='image_with_depth',
  )
  observation['state'] = steps['observation']['robot_state'][:, 6:14]
  return observation, action, info


def _toto(steps, _):
  action = _arm_and_gripper(steps, 'open_gripper')
  return _first_release(steps, action, image='image', state='state')


def _taco_play(steps, _):
  observation, action, info = _first_release(
      steps,
      steps['action']['rel_actions_world'],
      image='rgb_static',
      wrist_image='rgb_gripper',
      depth='depth_static',
      wrist_depth='depth_gripper',
  )
  own = steps['observation']
  observation['state'] = own['robot_obs'][:, :7]
  info['task'] = own['structured_language_instruction']
  return observation, action, info


def _kuka(steps, episode):
  observation, action, info = _first_release(
      steps,
      _arm_and_gripper(steps),
      image='image',
      pose='clip_function_input/base_pose_tool_reached',
      gripper='gripper_closed',
      height='height_to_bottom',
  )
  del observation['language']
  info['success'] = every_step(episode['success'], steps)
  return observation, action, info


def _bc_z(steps, _):
  own, action = steps['observation'], steps['action']
  observation, action, info = _first_release(
      steps,
      vector(
          action['future/xyz_residual'][:, :3],
          action['future/axis_angle_residual'][:, :3],
          action['future/target_close'][:, 0],
      ),
      image='image',
  )
  observation['state'] = vector(
      own['present/xyz'], own['present/axis_angle'], own['present/sensed_close']
  )
  info['success'] = own['episode_success']
  info['autonomous'] = own['present/autonomous']
  return observation, action, info


def _language_table(steps, _):
  translation = steps['action']
  zeros = np.zeros([len(translation), 4])
  text = [
      b''.join(bytes([code]) for code in codes).split(b'\0')[0]
      for codes in steps['observation']['instruction']
  ]
  return (
      _own(steps, image='rgb', state='effector_translation'),
      vector(translation, zeros, np.ones(len(translation))),
      {'instruction': np.array(text, object)},
  )


def _second_release(steps, columns=None, **fields):
  """A data set whose language is beside the observation.

  Args:
    steps: the steps.
    columns: a slice of the numbers of the state, or the indices of some.
    **fields: the fields of the observation; by default image and wrist_image.
  """
  if not fields:
    fields = {'image': 'image', 'wrist_image': 'wrist_image'}
  observation = {
      **_own(steps, **fields),
      'state': steps['observation']['state'][
          :, slice(None) if columns is None else columns
      ],
      'language': steps['language_embedding'],
  }
  info = {'instruction': steps['language_instruction']}
  return observation, steps['action'], info


def _hydra(steps, _):
  columns = [0, 1, 2, 7, 8, 9, 24]
  observation, action, info = _second_release(steps, columns)
  return observation, action, {**info, 'is_dense': steps['is_dense']}


def _first_eight(steps, _):
  return _second_release(steps, slice(8))


def _sirius(steps, _):
  observation, action, info = _second_release(steps)
  return observation, action, {**info, 'mode': steps['action_mode']}


def _nyu_franka_play(steps, _):
  observation, action, info = _second_release(
      steps,
      slice(7, 13),
      image='image',
      secondary_image='image_additional_view',
      depth='depth',
      secondary_depth='depth_additional_view',
  )
  return observation, action[:, 7:14], info


def _furniture_bench(steps, episode):
  columns = [0, 1, 2, 3, 4, 5, 6, 34]
  observation, action, info = _second_release(steps, columns)
  furniture = episode['episode_metadata']['furniture']
  info['skill_completion'] = steps['skill_completion']
  info['furniture'] = every_step(furniture, steps)
  return observation, action, info


def _ucsd_kitchen(steps, _):
  observation, action, info = _second_release(steps, slice(7), image='image')
  return observation, action[:, :7], info


def _dlr_edan(steps, _):
  return _second_release(steps, image='image')


def _fanuc(steps, _):
  observation, action, info = _second_release(steps, slice(7))
  gripper = steps['observation']['state'][:, 6]
  return observation, vector(action, gripper), info


def _stretch(steps, _):
  observation, action, info = _second_release(steps, image='image')
  state = observation['state']
  zeros = np.zeros([len(state), 3])
  observation['state'] = vector(state[:, :3], zeros, state[:, 3])
  return observation, action[:, :7], info


def _dobbe(steps, _):
  return _second_release(steps, image='wrist_image', wrist_image='wrist_image')


def _fmb(steps, _):
  own = steps['observation']
  observation = {
      **_own(
          steps,
          image='image_side_1',
          secondary_image='image_side_2',
          wrist_image='image_wrist_1',
      ),
      'state': vector(own['eef_pose'], own['state_gripper_pose']),
      'language': steps['language_embedding'],
  }
  info = {
      'instruction': steps['language_instruction'],
      'primitive': own['primitive'],
  }
  return observation, steps['action'], info


def _without_embedding(steps, **fields):
  info = {'instruction': steps['language_instruction']}
  return _own(steps, **fields), steps['action'], info


def _robo_set(steps, _):
  return _without_embedding(
      steps,
      image='image_left',
      secondary_image='image_right',
      top_image='image_top',
      wrist_image='image_wrist',
      state='state',
      velocity='state_velocity',
  )


def _aloha_mobile(steps, _):
  return _without_embedding(
      steps,
      image='cam_high',
      wrist_image='cam_right_wrist',
      left_wrist_image='cam_left_wrist',
      state='state',
  )


def _droid(steps, _):
  own, action = steps['observation'], steps['action_dict']
  observation = {
      **_own(
          steps,
          image='exterior_image_1_left',
          secondary_image='exterior_image_2_left',
          wrist_image='wrist_image_left',
      ),
      'state': vector(own['cartesian_position'], own['gripper_position']),
  }
  info = {
      'instruction' + end: steps['language_instruction' + end]
      for end in ('', '_2', '_3')
  }
  action = vector(action['cartesian_velocity'], action['gripper_position'])
  return observation, action, info


def _libero(steps, _):
  return _without_embedding(
      steps,
      image='image',
      wrist_image='wrist_image',
      state='state',
      joints='joint_state',
  )


def _calvin(steps, _):
  observation, action, info = _without_embedding(
      steps, image='image', wrist_image='wrist_image'
  )
  observation['state'] = np.float32(steps['observation']['state'])
  return observation, np.float32(action), info


_RLDS = '_converted_externally_to_rlds'
# By the name of a config, which is that of its data set.
CASES = {
    'aloha_mobile': _aloha_mobile,
    f'austin_buds_dataset{_RLDS}': _first_eight,
    f'austin_sailor_dataset{_RLDS}': _first_eight,
    f'austin_sirius_dataset{_RLDS}': _sirius,
    'bc_z': _bc_z,
    'berkeley_autolab_ur5': _autolab_ur5,
    'berkeley_cable_routing': _cable_routing,
    'berkeley_fanuc_manipulation': _fanuc,
    'calvin': _calvin,
    'cmu_stretch': _stretch,
    'columbia_cairlab_pusht_real': _columbia_cairlab_pusht_real,
    f'dlr_edan_shared_control{_RLDS}': _dlr_edan,
    'dobbe': _dobbe,
    'droid': _droid,
    'fmb': _fmb,
    f'furniture_bench_dataset{_RLDS}': _furniture_bench,
    f'iamlab_cmu_pickup_insert{_RLDS}': _first_eight,
    'jaco_play': _jaco_play,
    'kuka': _kuka,
    'language_table': _language_table,
    'libero': _libero,
    'nyu_door_opening_surprising_effectiveness': _nyu_door_opening,
    f'nyu_franka_play_dataset{_RLDS}': _nyu_franka_play,
    'robo_set': _robo_set,
    'roboturk': _roboturk,
    f'stanford_hydra_dataset{_RLDS}': _hydra,
    'taco_play': _taco_play,
    'toto': _toto,
    f'ucsd_kitchen_dataset{_RLDS}': _ucsd_kitchen,
    'utaustin_mutex': _first_eight,
    'viola': _viola,
}
# Those of the first release have none, so it is filled in.
NO_DISCOUNT = (
    'bc_z',
    'berkeley_autolab_ur5',
    'berkeley_cable_routing',
    'columbia_cairlab_pusht_real',
    'jaco_play',
    'kuka',
    'language_table',
    'nyu_door_opening_surprising_effectiveness',
    'roboturk',
    'taco_play',
    'toto',
    'viola',
)
