"""More of `open_x_cases`: data sets of the second release, by one builder.

The last ones are not in Open X-Embodiment: Octo's and OpenVLA's own.

Each says which fields of the observation have another name, which columns of
which fields are the state, and which of the action are kept; `None` is a 0.
"""

from typing import Any, Callable, Dict

import numpy as np

_RLDS = '_converted_externally_to_rlds'
_ALL = slice(None)


def _columns(leaf, columns):
  if leaf.ndim == 1:
    leaf = leaf[:, None]
  parts = [
      np.zeros([len(leaf), 1]) if part is None else leaf[:, part]
      for part in columns
  ]
  return np.float32(np.concatenate(parts, axis=1))


def _case(images, state=None, action=(_ALL,), metadata=(), has_embedding=True):
  """Returns the function that makes what a config should make.

  Args:
    images: the name of each image in the data, by its name here.
    state: the columns of each field that the state is made of, by its path.
    action: the columns of the action, or of fields by their paths.
    metadata: fields of the episode that are in the policy_info.
    has_embedding: whether the instruction has one.
  """

  def make(steps: Dict[str, Any], episode: Dict[str, Any]):
    own = steps['observation']
    observation = {name: own[field] for name, field in images.items()}
    if has_embedding:
      observation['language'] = steps['language_embedding']
    if state is not None:
      parts = []
      for path, columns in state.items():
        *above, name = path.split('/')
        fields = steps[above[0]] if above else own
        parts.append(_columns(fields[name], columns))
      observation['state'] = np.concatenate(parts, axis=1)
    info = {'instruction': steps['language_instruction']}
    for name in metadata:
      value = episode['episode_metadata'][name]
      info[name] = np.array([value] * len(steps['is_first']))
    given = steps['action']
    if isinstance(action, dict):
      given = np.concatenate(
          [
              _columns(_find(steps, path), columns)
              for path, columns in action.items()
          ],
          axis=1,
      )
      return observation, given, info
    return observation, _columns(given, action), info

  return make


def _find(steps, path):
  for name in path.split('/'):
    steps = steps[name]
  return steps


_MAIN = {'image': 'image'}
_BOTH = {'image': 'image', 'wrist_image': 'wrist_image'}
_HAND = {'wrist_image': 'hand_image'}
_WHOLE = {'state': (_ALL,)}
_THREE_AND_GRIPPER = (slice(3), None, None, None, slice(-1, None))
_LAST = slice(-1, None)
_POSITIONS = {'cartesian_position': (_ALL,), 'gripper_position': (_ALL,)}

CASES: Dict[str, Callable[..., Any]] = {
    f'asu_table_top{_RLDS}': _case(
        _MAIN, {'ground_truth_states/EE': (_ALL,), 'state': (_LAST,)}
    ),
    f'berkeley_mvp{_RLDS}': _case(_HAND, {'pose': (_ALL,), 'gripper': (_ALL,)}),
    f'berkeley_rpt{_RLDS}': _case(
        _HAND, {'joint_pos': (_ALL,), 'gripper': (_ALL,)}
    ),
    f'cmu_franka_exploration_dataset{_RLDS}': _case(
        {'image': 'highres_image'}, action=(slice(7),)
    ),
    'cmu_play_fusion': _case(_MAIN, _WHOLE, (slice(3), slice(5, 9))),
    f'dlr_sara_grid_clamp{_RLDS}': _case(_MAIN, {'state': (slice(6),)}),
    f'dlr_sara_pour{_RLDS}': _case(_MAIN, _WHOLE),
    'imperialcollege_sawyer_wrist_cam': _case(_BOTH, _WHOLE, (slice(7),)),
    f'kaist_nonprehensile{_RLDS}': _case(
        _MAIN, {'state': (slice(14, 21),)}, (slice(6), None)
    ),
    f'maniskill_dataset{_RLDS}': _case(
        _BOTH, {'tcp_pose': (_ALL,), 'state': (slice(7, 8),)}
    ),
    f'nyu_rot_dataset{_RLDS}': _case(_MAIN, _WHOLE),
    f'stanford_kuka_multimodal_dataset{_RLDS}': _case(
        _MAIN,
        {'ee_position': (_ALL,), 'ee_orientation': (_ALL,)},
        _THREE_AND_GRIPPER,
    ),
    f'stanford_mask_vit{_RLDS}': _case(
        _MAIN,
        {'end_effector_pose': (slice(4), None, None, _LAST)},
        (slice(4), None, None, _LAST),
    ),
    f'stanford_robocook{_RLDS}': _case(
        {'image': 'image_1', 'secondary_image': 'image_2'}, _WHOLE
    ),
    f'tokyo_u_lsmo{_RLDS}': _case(_MAIN, {'state': (slice(6), _LAST)}),
    f'ucsd_pick_and_place_dataset{_RLDS}': _case(
        _MAIN, _WHOLE, _THREE_AND_GRIPPER, ('success',)
    ),
    'uiuc_d3field': _case(
        {'image': 'image_1', 'secondary_image': 'image_2'},
        action=(_ALL, None, None, None, None),
    ),
    f'utokyo_pr2_opening_fridge{_RLDS}': _case(_MAIN, _WHOLE, (slice(7),)),
    f'utokyo_pr2_tabletop_manipulation{_RLDS}': _case(
        _MAIN, _WHOLE, (slice(7),)
    ),
    f'utokyo_xarm_bimanual{_RLDS}': _case(
        _MAIN, {'pose_r': (_ALL,)}, (slice(7, 14),)
    ),
    f'utokyo_xarm_pick_and_place{_RLDS}': _case(
        {**_HAND, 'image': 'image', 'secondary_image': 'image2'},
        {'end_effector_pose': (_ALL,)},
    ),
    'cmu_playing_with_food': _case(
        {'image': 'image', 'wrist_image': 'finger_vision_1'}, _WHOLE
    ),
    'robo_net': _case(
        {'image': 'image', 'secondary_image': 'image1'},
        {'state': (slice(4), None, None, _LAST)},
        (slice(4), None, None, _LAST),
        ('robot',),
    ),
    'gnm_dataset': _case(_MAIN, _WHOLE, has_embedding=False),
    'mujoco_manip': _case(_MAIN, _WHOLE),
    'rh20t': _case(
        {
            'image': 'image_front',
            'secondary_image': 'image_side_right',
            'wrist_image': 'image_wrist',
        },
        {'tcp_base': (_ALL,), 'gripper_width': (_ALL,)},
        {'action/tcp_base': (_ALL,), 'action/gripper': (_ALL,)},
        has_embedding=False,
    ),
    'tdroid': _case(
        {'image': 'static_image', 'wrist_image': 'wrist_image'},
        _POSITIONS,
        has_embedding=False,
    ),
    'droid_wipe': _case(
        {
            'image': 'exterior_image_2_left',
            'secondary_image': 'exterior_image_1_left',
            'wrist_image': 'wrist_image_left',
        },
        _POSITIONS,
        {
            'action_dict/cartesian_velocity': (_ALL,),
            'action_dict/gripper_position': (_ALL,),
        },
        has_embedding=False,
    ),
    **{
        f'aloha_static_dataset/{variant}': _case(
            {
                'image': 'cam_high',
                'secondary_image': 'cam_low',
                'wrist_image': 'cam_right_wrist',
                'left_wrist_image': 'cam_left_wrist',
            },
            _WHOLE,
            has_embedding=False,
        )
        for variant in ('static', 'dagger')
    },
}
