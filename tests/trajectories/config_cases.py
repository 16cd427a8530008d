"""What each config should make of the steps of its data set.

A field is made of a *source*: a path in the observation, in the step after a
`/`, or in the episode after `//`; or a list of sources, which become one vector
of floats. There `(path, columns)` takes some columns, and a number stands for
as many columns of zeros.
"""

from typing import Any, Callable, Dict, NamedTuple

import numpy as np
import tensorflow as tf

_RLDS = '_converted_externally_to_rlds'
_ALL, _LAST, _SEVEN = slice(None), slice(-1, None), slice(7)


class Case(NamedTuple):
  """What a config makes of a step.

  Attributes:
    observation: the sources of its fields by their names, or one source.
    action: a source.
    policy_info: the sources of its fields.
  """

  observation: Any = ''
  action: Any = '/action'
  policy_info: Any = ()


def fields_of(case: Case, steps: Dict[str, Any], episode: Any) -> Any:
  """Returns the observation, the action and the policy_info, in numpy."""

  def make(source):
    if isinstance(source, dict):
      return {name: make(one) for name, one in source.items()}
    if isinstance(source, list):
      return np.concatenate([column(part) for part in source], axis=1)
    if callable(source):
      return source(steps)
    if source.startswith('//'):
      return np.array([_find(episode, source[2:])] * len(steps['is_first']))
    return _find(steps, source[1:] if source[:1] == '/' else _inside(source))

  def column(part):
    if isinstance(part, int):
      return np.zeros([len(steps['is_first']), part], np.float32)
    path, columns = part if isinstance(part, tuple) else (part, _ALL)
    leaf = np.float32(make(path))
    return np.reshape(leaf, [len(leaf), -1])[:, columns]

  info = make(case.policy_info) if case.policy_info else ()
  return make(case.observation), make(case.action), info


def _inside(path):
  return f'observation/{path}' if path else 'observation'


def _find(nest, path):
  if path in nest:
    return nest[path]
  key, rest = path.split('/', 1)
  return _find(nest[key], rest)


def _in_float32(name: str) -> Callable[..., Any]:
  return lambda steps: tf.nest.map_structure(
      lambda leaf: np.float32(leaf) if leaf.dtype == np.float64 else leaf,
      steps[name],
  )


def _first(action: Any, info: Any = (), **fields: Any) -> Case:
  """A data set of the first release: language is in the observation."""
  return Case(
      {'language': 'natural_language_embedding', **fields},
      action,
      {'instruction': 'natural_language_instruction', **dict(info)},
  )


def _arm(gripper: Any = '/action/gripper_closedness_action') -> Any:
  return ['/action/world_vector', '/action/rotation_delta', gripper]


def _second(
    state: Any = 'state',
    action: Any = '/action',
    info: Any = (),
    embedding: bool = True,
    **fields: Any,
) -> Case:
  """A data set of the second release: language is beside the observation."""
  if embedding:
    fields['language'] = '/language_embedding'
  if state:
    fields['state'] = state
  return Case(
      fields, action, {'instruction': '/language_instruction', **dict(info)}
  )


def _instruction(steps):
  codes = steps['observation']['instruction']
  texts = [b''.join(bytes([code]) for code in one) for one in codes]
  return np.array([text.split(b'\0')[0] for text in texts], object)


def _ones(steps):
  return np.ones([len(steps['is_first']), 1])


_MAIN = {'image': 'image'}
_BOTH = {'image': 'image', 'wrist_image': 'wrist_image'}
_HAND = {'wrist_image': 'hand_image'}
_TWO = {'image': 'image_1', 'secondary_image': 'image_2'}
_EIGHT = [('state', slice(8))]
_THREE_AND_GRIPPER = [('/action', slice(3)), 3, ('/action', _LAST)]
_POSITIONS = ['cartesian_position', 'gripper_position']
_ALOHA = {'image': 'cam_high', 'wrist_image': 'cam_right_wrist'}
_LEFT = {'left_wrist_image': 'cam_left_wrist'}


def _tall(field):
  """Four numbers, two zeros and the gripper."""
  return [(field, slice(4)), 2, (field, _LAST)]


_AS_IT_IS = Case()
_FLOAT32 = Case(_in_float32('observation'), _in_float32('action'))

# By the name of a config, which is that of its data set: Open X-Embodiment, and
# then data sets of Octo and OpenVLA.
OPEN_X = {
    'aloha_mobile': _second(embedding=False, **_ALOHA, **_LEFT),
    f'austin_buds_dataset{_RLDS}': _second(_EIGHT, **_BOTH),
    f'austin_sailor_dataset{_RLDS}': _second(_EIGHT, **_BOTH),
    f'austin_sirius_dataset{_RLDS}': _second(
        info={'mode': '/action_mode'}, **_BOTH
    ),
    'bc_z': _first(
        [
            ('/action/future/xyz_residual', slice(3)),
            ('/action/future/axis_angle_residual', slice(3)),
            ('/action/future/target_close', slice(1)),
        ],
        {'success': 'episode_success', 'autonomous': 'present/autonomous'},
        image='image',
        state=['present/xyz', 'present/axis_angle', 'present/sensed_close'],
    ),
    'berkeley_autolab_ur5': _first(
        _arm(),
        image='image',
        wrist_image='hand_image',
        depth='image_with_depth',
        state=[('robot_state', slice(6, 14))],
    ),
    'berkeley_cable_routing': _first(
        ['/action/world_vector', '/action/rotation_delta', 1],
        image='image',
        secondary_image='top_image',
        wrist_image='wrist45_image',
        state='robot_state',
    ),
    'berkeley_fanuc_manipulation': _second(
        [('state', _SEVEN)], ['/action', ('state', slice(6, 7))], **_BOTH
    ),
    'calvin': _second(['state'], ['/action'], embedding=False, **_BOTH),
    'cmu_stretch': _second(
        [('state', slice(3)), 3, ('state', slice(3, 4))],
        [('/action', _SEVEN)],
        **_MAIN,
    ),
    'columbia_cairlab_pusht_real': _first(_arm(), state='robot_state', **_BOTH),
    f'dlr_edan_shared_control{_RLDS}': _second(**_MAIN),
    'dobbe': _second(image='wrist_image', wrist_image='wrist_image'),
    'droid': _second(
        _POSITIONS,
        ['/action_dict/cartesian_velocity', '/action_dict/gripper_position'],
        {
            'instruction_2': '/language_instruction_2',
            'instruction_3': '/language_instruction_3',
        },
        False,
        image='exterior_image_1_left',
        secondary_image='exterior_image_2_left',
        wrist_image='wrist_image_left',
    ),
    'fmb': _second(
        ['eef_pose', 'state_gripper_pose'],
        info={'primitive': 'primitive'},
        image='image_side_1',
        secondary_image='image_side_2',
        wrist_image='image_wrist_1',
    ),
    f'furniture_bench_dataset{_RLDS}': _second(
        [('state', [0, 1, 2, 3, 4, 5, 6, 34])],
        info={
            'skill_completion': '/skill_completion',
            'furniture': '//episode_metadata/furniture',
        },
        **_BOTH,
    ),
    f'iamlab_cmu_pickup_insert{_RLDS}': _second(_EIGHT, **_BOTH),
    'jaco_play': _first(
        ['/action/world_vector', 3, '/action/gripper_closedness_action'],
        image='image',
        wrist_image='image_wrist',
        state='end_effector_cartesian_pos',
    ),
    'kuka': Case(
        {
            'image': 'image',
            'pose': 'clip_function_input/base_pose_tool_reached',
            'gripper': 'gripper_closed',
            'height': 'height_to_bottom',
        },
        _arm(),
        {'instruction': 'natural_language_instruction', 'success': '//success'},
    ),
    'language_table': Case(
        {'image': 'rgb', 'state': 'effector_translation'},
        ['/action', 4, _ones],
        {'instruction': _instruction},
    ),
    'libero': _second(embedding=False, joints='joint_state', **_BOTH),
    'nyu_door_opening_surprising_effectiveness': _first(
        _arm(), wrist_image='image'
    ),
    f'nyu_franka_play_dataset{_RLDS}': _second(
        [('state', slice(7, 13))],
        [('/action', slice(7, 14))],
        image='image',
        secondary_image='image_additional_view',
        depth='depth',
        secondary_depth='depth_additional_view',
    ),
    'robo_set': _second(
        embedding=False,
        image='image_left',
        secondary_image='image_right',
        top_image='image_top',
        wrist_image='image_wrist',
        velocity='state_velocity',
    ),
    'roboturk': _first(_arm(), image='front_rgb'),
    f'stanford_hydra_dataset{_RLDS}': _second(
        [('state', [0, 1, 2, 7, 8, 9, 24])],
        info={'is_dense': '/is_dense'},
        **_BOTH,
    ),
    'taco_play': _first(
        '/action/rel_actions_world',
        {'task': 'structured_language_instruction'},
        image='rgb_static',
        wrist_image='rgb_gripper',
        depth='depth_static',
        wrist_depth='depth_gripper',
        state=[('robot_obs', _SEVEN)],
    ),
    'toto': _first(_arm('/action/open_gripper'), state='state', **_MAIN),
    f'ucsd_kitchen_dataset{_RLDS}': _second(
        [('state', _SEVEN)], [('/action', _SEVEN)], **_MAIN
    ),
    'utaustin_mutex': _second(_EIGHT, **_BOTH),
    'viola': _first(
        _arm(),
        image='agentview_rgb',
        wrist_image='eye_in_hand_rgb',
        state=['joint_states', 'gripper_states'],
    ),
}
SECOND_RELEASE = {
    f'asu_table_top{_RLDS}': _second(
        ['/ground_truth_states/EE', ('state', _LAST)], **_MAIN
    ),
    f'berkeley_mvp{_RLDS}': _second(['pose', 'gripper'], **_HAND),
    f'berkeley_rpt{_RLDS}': _second(['joint_pos', 'gripper'], **_HAND),
    f'cmu_franka_exploration_dataset{_RLDS}': _second(
        None, [('/action', _SEVEN)], image='highres_image'
    ),
    'cmu_play_fusion': _second(
        action=[('/action', slice(3)), ('/action', slice(5, 9))], **_MAIN
    ),
    f'dlr_sara_grid_clamp{_RLDS}': _second([('state', slice(6))], **_MAIN),
    f'dlr_sara_pour{_RLDS}': _second(**_MAIN),
    'imperialcollege_sawyer_wrist_cam': _second(
        action=[('/action', _SEVEN)], **_BOTH
    ),
    f'kaist_nonprehensile{_RLDS}': _second(
        [('state', slice(14, 21))], [('/action', slice(6)), 1], **_MAIN
    ),
    f'maniskill_dataset{_RLDS}': _second(
        ['tcp_pose', ('state', slice(7, 8))], **_BOTH
    ),
    f'nyu_rot_dataset{_RLDS}': _second(**_MAIN),
    f'stanford_kuka_multimodal_dataset{_RLDS}': _second(
        ['ee_position', 'ee_orientation'], _THREE_AND_GRIPPER, **_MAIN
    ),
    f'stanford_mask_vit{_RLDS}': _second(
        _tall('end_effector_pose'), _tall('/action'), **_MAIN
    ),
    f'stanford_robocook{_RLDS}': _second(**_TWO),
    f'tokyo_u_lsmo{_RLDS}': _second(
        [('state', slice(6)), ('state', _LAST)], **_MAIN
    ),
    f'ucsd_pick_and_place_dataset{_RLDS}': _second(
        action=_THREE_AND_GRIPPER,
        info={'success': '//episode_metadata/success'},
        **_MAIN,
    ),
    'uiuc_d3field': _second(None, ['/action', 4], **_TWO),
    f'utokyo_pr2_opening_fridge{_RLDS}': _second(
        action=[('/action', _SEVEN)], **_MAIN
    ),
    f'utokyo_pr2_tabletop_manipulation{_RLDS}': _second(
        action=[('/action', _SEVEN)], **_MAIN
    ),
    f'utokyo_xarm_bimanual{_RLDS}': _second(
        'pose_r', [('/action', slice(7, 14))], **_MAIN
    ),
    f'utokyo_xarm_pick_and_place{_RLDS}': _second(
        'end_effector_pose', secondary_image='image2', **_HAND, **_MAIN
    ),
    'cmu_playing_with_food': _second(
        image='image', wrist_image='finger_vision_1'
    ),
    'robo_net': _second(
        _tall('state'),
        _tall('/action'),
        {'robot': '//episode_metadata/robot'},
        image='image',
        secondary_image='image1',
    ),
    'gnm_dataset': _second(['state'], ['/action'], embedding=False, **_MAIN),
    'mujoco_manip': _second(**_MAIN),
    'rh20t': _second(
        ['tcp_base', 'gripper_width'],
        ['/action/tcp_base', '/action/gripper'],
        embedding=False,
        image='image_front',
        secondary_image='image_side_right',
        wrist_image='image_wrist',
    ),
    'tdroid': _second(
        _POSITIONS,
        embedding=False,
        image='static_image',
        wrist_image='wrist_image',
    ),
    'droid_wipe': _second(
        _POSITIONS,
        ['/action_dict/cartesian_velocity', '/action_dict/gripper_position'],
        embedding=False,
        image='exterior_image_2_left',
        secondary_image='exterior_image_1_left',
        wrist_image='wrist_image_left',
    ),
    **{
        f'aloha_static_dataset/{variant}': _second(
            embedding=False, secondary_image='cam_low', **_ALOHA, **_LEFT
        )
        for variant in ('static', 'dagger')
    },
}
# By the name of a data set; that of its config is the part before a `/`.
OTHERS = {
    'berkeley_gnm_recon': Case(
        {'image': 'image', 'state': ['state']}, ['/action_angle']
    ),
    'bridge': Case(
        {
            'image': 'image_0',
            'state': 'state',
            'language': '/language_embedding',
        },
        policy_info={'instruction': '/language_instruction'},
    ),
    'bridge_open_x': _first(
        _arm('/action/open_gripper'), image='image', state='state'
    ),
    'd4rl_adroit_pen/v0-cloned': _FLOAT32,
    'd4rl_antmaze/umaze-v2': _AS_IT_IS,
    'd4rl_maze2d': Case(['', '/infos/goal']),
    'd4rl_mujoco_hopper/v1-medium-replay': _FLOAT32,
    'd4rl_mujoco_ant/v2-medium': _FLOAT32,
    'fractal20220817_data': _first(
        _arm(),
        {
            'success': '//aspects/success',
            'has_aspects': '//aspects/has_aspects',
        },
        image='image',
        pose='base_pose_tool_reached',
        gripper='gripper_closed',
    ),
    'minari_antmaze': Case(['observation', 'achieved_goal', 'desired_goal']),
    'minari_kitchen': Case(['observation'], ['/action']),
    'mt_opt/rlds': Case(
        {
            'image': 'image',
            'state': ['state_dense', 'height_to_bottom', 'gripper_closed'],
        },
        [
            '/action/target_pose',
            '/action/close_gripper',
            '/action/open_gripper',
            '/action/terminate',
        ],
        {'skill': '//skill', 'task': '//task_code'},
    ),
    'recorded_gym': _AS_IT_IS,
    'rlu_atari/Pong_run_1': _AS_IT_IS,
    'rlu_control_suite/fish_swim': _AS_IT_IS,
    'rlu_locomotion/rodent_gaps': Case('walker'),
    'rlu_rwrl/walker_walk_combined_challenge_none_100_percent': _AS_IT_IS,
    'robomimic_ph/can_ph_image': _FLOAT32,
    'robomimic_mh/transport_mh_low_dim': _FLOAT32,
    'robosuite_panda_pick_place_can/human_dc29b40a': Case(
        {'robot': ['robot0_proprio-state'], 'object': ['object-state']},
        ['/action'],
        {'placed': '/tag:placed'},
    ),
}
