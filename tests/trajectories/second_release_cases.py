"""More of `open_x_cases`: data sets of the second release, by one builder.

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


def _case(images, state=None, action=(_ALL,), metadata=()):
  """Returns the function that makes what a config should make.

  Args:
    images: the name of each image in the data, by its name here.
    state: the columns of each field that the state is made of, by its path.
    action: the columns of the action.
    metadata: fields of the episode that are in the policy_info.
  """

  def make(steps: Dict[str, Any], episode: Dict[str, Any]):
    own = steps['observation']
    observation = {
        'language': steps['language_embedding'],
        **{name: own[field] for name, field in images.items()},
    }
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
    return observation, _columns(steps['action'], action), info

  return make


_MAIN = {'image': 'image'}
_BOTH = {'image': 'image', 'wrist_image': 'wrist_image'}
_HAND = {'wrist_image': 'hand_image'}
_WHOLE = {'state': (_ALL,)}
_THREE_AND_GRIPPER = (slice(3), None, None, None, slice(-1, None))
_LAST = slice(-1, None)

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
}
