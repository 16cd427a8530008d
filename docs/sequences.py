"""Writes docs/sequences.md: a small data set, through every function.

    python -m docs.sequences

The calls in the text are those that are run, and the rows are what they return.
"""

import os
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

from absl import app
import numpy as np
import tensorflow as tf
import tree

import rlds2reverb
from rlds2reverb import agents
from rlds2reverb import formats
from rlds2reverb import indexing
from rlds2reverb import tokens
from rlds2reverb import windows

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'sequences.md')

_INTRO = """\
# Sequences, by example

`python -m docs.sequences` writes this file. Do not edit it by hand.

`r2r` is `rlds2reverb`; `windows`, `datasets`, `indexing`, `tokens` and `agents`
are its modules of these names.

## Which function for which need

| need | function | a terminal's discount of 0 |
|---|---|---|
| frames for TF-Agents, in windows of one length | `convert_rlds_to_sequences`; with `batched=True` many to an element, which is faster | on the frame of the last step; with `terminal_discount="transition"` also on the frame before it |
| chunks of one episode for recurrent agents, disjoint or overlapping, with stored state (R2D2) | `unroll`, then `split_burn_in` | on the last row; on rows that `"zero_pad"` adds, too |
| the same for rows of many episodes at once, padded with zeros (RLlib) | `chop_into_sequences` | on the last row of each episode, and on padding |
| batches of a number of transitions, across episodes or of whole ones (RLlib) | `convert_rlds_to_fragments` | on the last row of each episode, anywhere in a batch |
| random parts of many trajectories, from memory | `join_transitions`, then `sample_slices` | on the last row of each episode: in slices that reach its end, and on zeros |
| one random part of each episode | `random_crop` | on the last row, if the crop reaches it |
| some steps of each episode, in any order | `draw_steps` | where the steps had it |
| whole trajectories side by side, padded | `join_transitions`, then `pad_trajectories` | on the last row of each episode, and on padding |
| what was recorded for an observation and an action, and after it | `TransitionIndex` | on the last row of each episode |
| prompts and responses, a token a step | `make_token_episode`, `convert_texts_to_episodes` | on the last two steps, if the response was finished |
| episodes of many agents: of one of them, of each policy, or side by side | `select_agent`, `split_by_policy`, `stack_agents`, `unroll_agents` | where the steps had it |
| TorchRL's root and `next`, of one episode or of all | `to_ted`, `join_ted` | where the steps had it; `terminated` is a flag of its own |
| shorter episodes, as RLDS steps | `split_at_horizon`, `apply_horizon` | where the steps had it; where an episode was cut there is none, and with `no_done_at_end` nowhere |

A row is a transition, so its discount of 0 is on the transition into the
terminal step: a learner that reads rows needs nothing more. A frame is a step,
and TF-Agents' learners mask out the frame of the last one: hence
`terminal_discount`. After `n_step_transitions` all rows whose window holds the
terminal step have a discount of 0. Where padding has a discount of 0, only the
mask tells it from an end.

## Functions that build on each other

Most functions take the steps of an episode or its `TransitionRows`. Those that
add or change columns give rows again: `n_step_transitions`, `reward_to_go`,
`td_lambda_returns`, `advantages`, `apply_views`, `stack_observations`,
`chunk_actions` and `stack_and_chunk`. The last function of a chain cuts the rows. R2D2, whole:

```
def make_chunks(episode):
  rows = windows.n_step_transitions(episode['steps'], n_step=5, gamma=0.997)
  return windows.unroll(
      rows, r2r.Windows(80, stride=40, end='repeat_last'), state='state')

chunks = data.map(make_chunks).unbatch().shuffle(10_000).batch(64)
parts = chunks.map(lambda chunks: windows.split_burn_in(chunks, burn_in=40))
```

What reads single steps comes before `n_step_transitions`.

## The two episodes

Two small episodes go through every function. `A` has 5 transitions and
terminates, `B` has 3 and is truncated. An episode has one step more than it has
transitions; the action and reward of its last step have no meaning, here 99.
`data` is the data set of both.

`T` is true, `F` is false. Where a mask is `F`, the row was filled in."""

_SIX_ENDS = {
    'drop': 'Only sequences whose frames are all there.',
    'pad': 'As `"drop"`, but an episode shorter than a sequence is padded.',
    'tile': 'A sequence starts at every second frame, and is padded.',
    'repeat_last': 'The missing frames of the last sequence repeat the last.',
    'overlap': 'The last sequence starts earlier, so that it ends in time.',
    'cross': 'Sequences go on in the next episode.',
}
_FOUR_ENDS = {
    'repeat_last': 'The last row is repeated.',
    'overlap': (
        'The last chunk starts earlier. An episode shorter than a chunk is'
        ' padded.'
    ),
    'drop': 'The rows left over are left out.',
    'zero_pad': 'The rest is zeros that are `is_last`.',
}


class _Example(NamedTuple):
  """A call and what is shown of what it returns.

  Attributes:
    call: the expression.
    show: the paths of the fields; or pairs of a path and what it is called.
    text: a sentence above it.
    in_lines: whether each field is a line. By default those of one dimension
      are; others stand side by side, and a line is a sequence.
  """

  call: str
  show: Sequence[Union[str, Tuple[str, str]]]
  text: str = ''
  in_lines: bool = False


class _Section(NamedTuple):
  """A function: its name, what it does, and examples."""

  function: str
  text: str
  examples: List[_Example]


_SEQUENCE = (('0/observation', 'observation'), ('0/step_type', 'step_type'))
_STEPS = ('observation', 'action', 'reward', 'is_last', 'is_terminal')
_ROWS = (
    'observation',
    'action',
    'reward',
    'next_observation',
    'discount',
    'is_first',
    'is_last',
    'is_terminal',
)
_CHUNK = (
    ('columns/observation', 'observation'),
    ('columns/is_last', 'is_last'),
    'mask',
    'initial_state',
)
_N_STEP = (
    'observation',
    'reward',
    'discount',
    'next_observation',
    'steps',
    'gamma',
)
_SLICE = (('rows/observation', 'observation'), 'mask', 'trajectory', 'start')
_FLAT_TED = ('observation', 'action', 'reward', 'terminated', 'truncated')
_TED = (
    'observation',
    'action',
    'done',
    *(
        f'next/{key}'
        for key in ('observation', 'reward', 'done', 'terminated', 'truncated')
    ),
)


def _named(above: str, fields: Sequence[str]) -> List[Tuple[str, str]]:
  """Returns what to show of `fields` that are below another."""
  return [(f'{above}/{field}', field) for field in fields]


_SECTIONS = [
    _Section(
        'transition_rows',
        'Most functions work on the transitions of an episode. A row holds the'
        ' observation before and after, and ends the episode if the step that'
        ' it leads to does. A terminal row has a discount of 0.',
        [
            _Example('windows.transition_rows(A)', _ROWS),
            _Example('windows.transition_rows(B)', _ROWS),
        ],
    ),
    _Section(
        'convert_rlds_to_sequences',
        'Makes windows of a fixed length on the frames of each episode. A frame'
        ' is a step: 0 is the step type of a first, 1 of a middle and 2 of a'
        ' last one. Here are six of the ends that windows may have. A'
        ' line is a sequence.',
        [
            _Example(
                'r2r.convert_rlds_to_sequences(\n    data,'
                f' r2r.Windows(5, 2, "{end}"), with_mask=True)',
                (*_SEQUENCE, ('1', 'mask')),
                text,
            )
            for end, text in _SIX_ENDS.items()
        ]
        + [
            _Example(
                'r2r.convert_rlds_to_sequences(\n    data, r2r.Windows(2, 2),'
                ' batched=True, max_batch_size=2)',
                ('observation', 'step_type'),
                'With `batched` there are many an element. Here an element is a'
                ' line, with two sequences or what is left.',
            )
        ],
    ),
    _Section(
        'unroll',
        'Cuts the transitions of one episode into chunks, one after the other.'
        ' The end of the windows says what becomes of the rows left over. The initial'
        ' state is that of the first row of a chunk, and zero where an episode'
        ' starts. A line is a chunk.',
        [
            _Example(
                f'windows.unroll(\n    {steps}, r2r.Windows(4, 4, "{end}"),'
                ' state="state")',
                _CHUNK,
                text,
            )
            for end, sentence in _FOUR_ENDS.items()
            for steps, text in (('A', sentence), ('B', ''))
        ]
        + [
            _Example(
                'windows.unroll(\n    windows.n_step_transitions(A, 2,'
                ' gamma=.5),\n    r2r.Windows(3, 2, "repeat_last"),'
                ' state="state")',
                [
                    (f'columns/{field}', field)
                    for field in ('observation', 'reward', 'discount')
                ]
                + ['initial_state'],
                'With a stride chunks overlap. Rows may have columns of other'
                ' functions, here those of 2-step transitions.',
            )
        ],
    ),
    _Section(
        'split_burn_in',
        'Splits sequences into rows that warm up a recurrent state, rows to'
        ' learn from, and rows for the targets. There is one sequence of 5'
        ' rows here, with 2 rows of burn-in and targets 1 row ahead.',
        [
            _Example(
                'windows.split_burn_in(\n    windows.unroll(A, r2r.Windows(5)),'
                ' burn_in=2, n_step=1)',
                (
                    'burn_in_observation',
                    'main_observation',
                    'target_observation',
                    'action',
                    'reward',
                    'is_terminal',
                    ('columns/discount', 'discount'),
                    'mask',
                ),
                in_lines=True,
            )
        ],
    ),
    _Section(
        'chop_into_sequences',
        'Cuts rows of many episodes into sequences of one episode each, with'
        ' zeros on the right.',
        [
            _Example(
                'windows.chop_into_sequences(\n    rows["reward"], 4,'
                ' lengths=lengths, states=rows["state"])',
                ('rows', 'mask', 'seq_lens', 'initial_state'),
                '`rows` are the transitions of both: see `join_transitions`.',
            ),
            _Example(
                'windows.chop_into_sequences(\n    rows["reward"], 4,'
                ' episode_ids=[1, 1, 2, 2, 2, 3, 3, 3],\n'
                '    dynamic_max=True)',
                ('rows', 'mask', 'seq_lens'),
                'With `dynamic_max` the longest sequence sets the width.',
            ),
        ],
    ),
    _Section(
        'convert_rlds_to_fragments',
        'Batches the transitions of consecutive episodes. A line is a batch.',
        [
            _Example(
                'windows.convert_rlds_to_fragments(\n    data, 3,'
                ' "truncate_episodes")',
                ('observation', 'episode', 't'),
                'Each batch has 3 transitions, whatever episode they are of.',
            ),
            _Example(
                'windows.convert_rlds_to_fragments(\n    data, 3,'
                ' "complete_episodes")',
                ('observation', 'episode', 't'),
                'A batch ends with an episode, once it has 3 transitions.',
            ),
            _Example(
                'windows.convert_rlds_to_fragments(\n    data, 3,'
                ' fragment_fn=windows.reward_to_go)',
                ('reward', 'reward_to_go', 'episode'),
                'A `fragment_fn` never sees rows of two episodes: the sum ends'
                ' with each episode, and with each batch.',
            ),
            _Example(
                'windows.convert_rlds_to_fragments(\n    team, 4,'
                ' count_steps_by="agent_steps")',
                ('t',),
                'Of many agents, each that acts counts; `team` has the episode'
                ' `AB`, twice. See `select_agent` for it.',
            ),
        ],
    ),
    _Section(
        'apply_horizon',
        'Cuts one episode after some transitions. An episode that was cut is'
        ' truncated, not terminal.',
        [
            _Example('windows.apply_horizon(A, 3)', _STEPS),
            _Example('windows.apply_horizon(B, 3)', _STEPS),
            _Example(
                'windows.apply_horizon(A, 5, no_done_at_end=True)',
                _STEPS,
                'With `no_done_at_end` no step is terminal.',
            ),
        ],
    ),
    _Section(
        'split_at_horizon',
        'Cuts each episode into shorter ones, which share the observation where'
        ' they meet. Only the last can be terminal. A line is an episode.',
        [
            _Example(
                'windows.split_at_horizon(data, 2)',
                [
                    (f'steps/{field}', field)
                    for field in (
                        'observation',
                        'is_first',
                        'is_last',
                        'is_terminal',
                    )
                ],
            )
        ],
    ),
    _Section(
        'n_step_transitions',
        'Takes up to n transitions together: their rewards, discounted and'
        ' added up, and the observation after them. A window never leaves its'
        ' episode. The discount is 0 where the window ends in a terminal step.',
        [
            _Example('windows.n_step_transitions(A, 3, gamma=.5)', _N_STEP),
            _Example('windows.n_step_transitions(B, 3, gamma=.5)', _N_STEP),
        ],
    ),
    _Section(
        'reward_to_go',
        'Adds the discounted sum of the rewards from each transition to the'
        ' end of its episode.',
        [
            _Example(
                f'windows.reward_to_go({steps}, gamma=.5)',
                ['reward', 'reward_to_go'],
            )
            for steps in 'AB'
        ],
    ),
    _Section(
        'td_lambda_returns',
        'Adds returns that mix rewards and the values of the steps. Here the'
        ' value of a step is its observation. `B` is truncated, so the value of'
        ' its last step, 13, counts; `A` terminates, and its last value does'
        ' not.',
        [
            _Example(
                f'windows.td_lambda_returns(\n    {steps},'
                f' {steps}["observation"], gamma=.5, lambda_={lambda_})',
                ['td_lambda_return'],
            )
            for steps in 'AB'
            for lambda_ in ('0', '.5', '1')
        ],
    ),
    _Section(
        'advantages',
        'Adds generalized advantage estimates (GAE), with the same values. They'
        ' are the TD(lambda) returns less the values.',
        [
            _Example(
                f'windows.advantages(\n    {steps},'
                f' {steps}["observation"], gamma=.5, lambda_={lambda_})',
                ['advantage'],
            )
            for steps in 'AB'
            for lambda_ in ('0', '.5', '1')
        ],
    ),
    _Section(
        'apply_views',
        'Adds columns that show each transition its past and future. What is'
        ' not there is zero; before an episode observations repeat the first.',
        [
            _Example(
                'windows.apply_views(A, {\n'
                f'    "view": windows.ViewRequirement("{column}", {shift})}})',
                ['view', 'view_mask'],
                text,
            )
            for column, shift, text in (
                ('reward', '-1', 'The reward before.'),
                ('reward', '"-2:-1"', 'The two rewards before.'),
                ('action', '1', 'The next action.'),
                (
                    'observation',
                    '[-1, 0, 1]',
                    'The observations before, at and after the row.',
                ),
            )
        ]
        + [
            _Example(
                'windows.apply_views(AB, {\n    "view":'
                ' windows.ViewRequirement("observation", agent="b")})',
                ['view', 'view_mask'],
                'Of many agents, the observation of `b`, which comes later and'
                ' leaves earlier. See `select_agent` for `AB`.',
            )
        ],
    ),
    _Section(
        'compute_views',
        'Computes views on their own, where they have fewer rows than the'
        ' episode.',
        [
            _Example(
                'windows.compute_views(A, {\n    "view":'
                ' windows.ViewRequirement("reward", "-1:1")},\n    start=2,'
                ' stop=4)',
                [('columns/view', 'view'), ('mask/view', 'mask')],
                'A fragment, rows 2 and 3, sees the row before it, and not the'
                ' row after it.',
            ),
            _Example(
                'windows.compute_views(A, {\n    "view":'
                ' windows.ViewRequirement(\n        "reward", -1,'
                ' batch_repeat_value=2)})',
                [('columns/view', 'view'), ('mask/view', 'mask')],
                'A row for every other transition.',
            ),
        ],
    ),
    _Section(
        'stack_observations',
        'Gives each step its last observations, the oldest first. A line is a'
        ' step.',
        [
            _Example(
                f'windows.stack_observations({call})',
                ('observation', 'observation_mask'),
                text,
            )
            for call, text in (
                ('A, 3', 'Before the first step its observation is repeated.'),
                ('B, 3, fill="zeros"', 'The same with zeros.'),
            )
        ],
    ),
    _Section(
        'chunk_actions',
        'Gives each step its next actions, its own first. The action of the'
        ' last step is in no chunk. A line is a step.',
        [
            _Example(
                f'windows.chunk_actions({call})',
                ('observation', 'action', 'action_mask'),
                text,
            )
            for call, text in (
                ('A, 3', 'After the last action are zeros.'),
                ('B, 3, fill="repeat"', 'The last action is repeated.'),
            )
        ],
    ),
    _Section(
        'stack_and_chunk',
        'Gives each step its last observations, and for each of them its next'
        ' actions. A line is a step.',
        [
            _Example(
                'windows.stack_and_chunk(B, 2, 2)',
                ('observation', 'action', 'action_mask'),
                'The chunk of a frame that is not there is that of the first.',
            ),
        ],
    ),
    _Section(
        'join_transitions',
        'Reads the transitions of all episodes into memory, one episode after'
        ' the other. Elsewhere on this page, `rows` and `lengths` are what it'
        ' returns.',
        [
            _Example(
                'windows.join_transitions(data)',
                [
                    *(
                        (f'0/{field}', field)
                        for field in ('observation', 'reward', 'is_last')
                    ),
                    ('1', 'lengths'),
                ],
            )
        ],
    ),
    _Section(
        'sample_slices',
        'Draws parts of trajectories at random. `trajectory` says which one a'
        ' slice is of, `start` where in it the slice starts. The same seed'
        ' gives the same slices.',
        [
            _Example(
                'windows.sample_slices(\n    rows, 4, lengths=lengths,'
                f' {call})',
                _SLICE,
                text,
            )
            for call, text in (
                (
                    'slice_length=3, seed=(0, 1)',
                    'First a trajectory is drawn, then its start.',
                ),
                (
                    'slice_length=3, seed=(0, 1),\n    weighting="window",'
                    ' replacement=False',
                    'All four starts are as likely, and none is drawn twice.',
                ),
                (
                    'slice_length=4, seed=(0, 1), strict=False',
                    'Trajectories that are too short are drawn whole, and'
                    ' padded.',
                ),
                (
                    'slice_length=3, seed=(0, 1),\n    span=(1, 1),'
                    ' fill="repeat"',
                    'Slices may start one row early and end one row late.',
                ),
            )
        ],
    ),
    _Section(
        'random_crop',
        'Returns consecutive transitions of one episode, from a random start.',
        [
            _Example(
                f'windows.random_crop({steps}, 2, seed=(0, 1))',
                ('observation', 'reward', 'is_last'),
            )
            for steps in 'AB'
        ],
    ),
    _Section(
        'draw_steps',
        'Returns some steps of one episode, or all, in a random order.',
        [
            _Example(
                f'windows.draw_steps({steps}, 4, seed=(0, 1))',
                ('observation', 'reward'),
            )
            for steps in 'AB'
        ],
    ),
    _Section(
        'pad_trajectories',
        'Lays trajectories side by side, with zeros on the right. A line is a'
        ' trajectory.',
        [
            _Example(
                'windows.pad_trajectories(rows, lengths=lengths)',
                [
                    *(
                        (f'0/{field}', field)
                        for field in ('observation', 'reward')
                    ),
                    ('1', 'mask'),
                ],
            )
        ],
    ),
    _Section(
        'to_ted',
        "Returns an episode in TorchRL's format: what is known before each"
        ' transition, and below `next` what is known after it. The last step'
        ' is kept beside it, because its action and reward have no place.',
        [
            _Example(
                f'formats.to_ted({{"steps": {name}}})',
                [*_named('data', _TED), 'last_step/reward'],
            )
            for name in 'AB'
        ],
    ),
    _Section(
        'from_ted',
        'Returns the episode that `to_ted` was given. Of a nest alone, the last'
        ' step has zeros where only transitions have a value.',
        [
            _Example(
                f'formats.from_ted(formats.to_ted({{"steps": A}}){part})',
                _named('steps', _STEPS),
                text,
            )
            for part, text in (('', ''), ('.data', 'A nest alone.'))
        ],
    ),
    _Section(
        'join_ted',
        'Returns all episodes of a data set. In the flat form every observation'
        ' is there once, one more for each episode than there are transitions;'
        ' the nested form has a line for each episode.',
        [
            _Example(
                f'formats.join_ted(data, "{form}")',
                _named('data', _FLAT_TED) + [('num_steps', 'num_steps')],
            )
            for form in ('flat', 'nested')
        ],
    ),
    _Section(
        'split_ted',
        'Returns the episodes of joined ones. A line is an episode.',
        [
            _Example(
                'formats.split_ted(formats.join_ted(data))',
                _named('steps', ('observation', 'reward', 'is_terminal')),
            )
        ],
    ),
    _Section(
        'TransitionIndex',
        'Finds what was recorded for an observation and an action, by their'
        ' bytes. `index` is `indexing.TransitionIndex.from_episodes(data)`. A'
        ' column is a key.',
        [
            _Example(
                'index.lookup({\n    "observation": tf.constant([0., 11., -0.,'
                ' 9.]),\n    "action": tf.constant([1, 2, 1, 1], tf.int64)})',
                [
                    'found',
                    'count',
                    'index',
                    *_named('rows', ('reward', 'next_observation')),
                ],
            ),
            _Example(
                'index.successors(tf.constant([0., 12., 13., 9.]))',
                [
                    'found',
                    'rows/action',
                    'rows/next_observation',
                    'reward',
                    'count',
                ],
                'What follows an observation; a line is one.',
            ),
            _Example(
                'index.expand(tf.constant([0., 12.]), depth=2, max_width=1,'
                ' gamma=.5)',
                ['observation', 'action', 'path_return', 'mask', 'is_leaf'],
                'The trees of what follows; a line is a tree, and its levels'
                ' are beside each other.',
            ),
        ],
    ),
    _Section(
        'tree_to_text',
        'Draws a small tree; `tree_to_dot` draws it in the language of'
        ' Graphviz.',
        [
            _Example(
                'indexing.tree_to_text(\n    index.expand(tf.constant([2.]),'
                ' depth=3, max_width=2))',
                (),
            )
        ],
    ),
    _Section(
        'make_token_episode',
        'Makes an episode of a prompt and a response, one token a step. Here'
        ' the actions of `A` and `B` are the tokens; the response of `B` was'
        ' cut. `convert_texts_to_episodes` does it for strings.',
        [
            _Example(
                'tokens.make_token_episode(\n    tf.constant([7, 8], tf.int64),'
                ' B["action"][:-1],\n    score=2., log_ratio=[1., 0., 2.],'
                ' kl_coefficient=.25,'
                ' is_terminal=False)',
                [
                    (f'steps/{field}', label)
                    for field, label in (
                        ('observation/input_ids', 'input_ids'),
                        ('observation/attention_mask', 'attention_mask'),
                        ('action', 'action'),
                        ('reward', 'reward'),
                        ('is_terminal', 'is_terminal'),
                    )
                ],
                'All tokens so far; a line is a step.',
            ),
            _Example(
                'tokens.make_token_episode(\n    tf.constant([7, 8], tf.int64),'
                ' A["action"][:-1],\n    score=2., observation="new")',
                [
                    (f'steps/{field}', label)
                    for field, label in (
                        ('observation/token', 'token'),
                        ('observation/position', 'position'),
                        ('action', 'action'),
                        ('reward', 'reward'),
                        ('is_terminal', 'is_terminal'),
                    )
                ]
                + [('prompt_ids', 'prompt_ids')],
                'Only the new token.',
            ),
        ],
    ),
    _Section(
        'pad_tokens',
        'Lays prompts and their responses side by side, padded or cut. A line'
        ' is one of them.',
        [
            _Example(
                'tokens.pad_tokens(\n    tf.ragged.constant([[7, 8],'
                ' [7, 8, 9]], tf.int64),\n'
                '    tf.ragged.stack([A["action"][:-1],'
                ' B["action"][:-1]]),\n    max_length=7)',
                (
                    'input_ids',
                    'attention_mask',
                    'prompt_rindex',
                    'valid_sample',
                ),
            )
        ],
    ),
    _Section(
        'select_agent',
        'Returns the episode of one of many agents. `AB` has both episodes side'
        ' by side: `b` comes one step after `a`, and leaves one step before.',
        [
            _Example(
                f'agents.select_agent({{"steps": AB}}, "{agent}")',
                _named('steps', _STEPS),
            )
            for agent in 'ab'
        ],
    ),
    _Section(
        'stack_agents',
        'Puts the agents side by side, with zeros where one is away. A line is'
        ' a step.',
        [
            _Example(
                'agents.stack_agents(AB, team_reward="sum")',
                ('observation', 'action', 'reward', 'agent_mask', 'is_last'),
            )
        ],
    ),
    _Section(
        'unroll_agents',
        'Cuts such steps into chunks for QMIX and COMA. Now the mask of an'
        ' agent is true where it acts. A line is a chunk.',
        [
            _Example(
                'agents.unroll_agents(\n    AB, r2r.Windows(2, 2, "repeat_last"))',
                [
                    (f'columns/{field}', field)
                    for field in (
                        'observation',
                        'action',
                        'reward',
                        'agent_mask',
                    )
                ]
                + [('mask', 'mask')],
            )
        ],
    ),
    _Section(
        'split_by_policy',
        'Returns a data set for each policy; here both agents have one. A line'
        ' is an episode.',
        [
            _Example(
                'agents.split_by_policy(team, lambda agent: "all")["all"]',
                _named('steps', ('observation', 'is_terminal')),
            )
        ],
    ),
]


def functions() -> List[str]:
  """Returns the names of the functions shown."""
  return [section.function for section in _SECTIONS]


def make_text() -> str:
  """Returns the text of docs/sequences.md."""
  names = _make_names()
  parts = [_INTRO]
  for name in 'AB':
    lines = [f'{name}:', *_layout(_columns(names[name]), in_lines=True)]
    parts.append(_block(lines))
  for section in _SECTIONS:
    parts += [f'## {section.function}', _wrap(section.text)]
    for example in section.examples:
      # pylint: disable-next=eval-used
      value = eval(example.call, names)
      if example.text:
        parts.append(_wrap(example.text))
      parts.append(
          _block([*example.call.splitlines(), '', *_show(example, value)])
      )
  return '\n\n'.join(parts) + '\n'


def _make_steps(observations, rewards, *, terminal) -> Dict[str, tf.Tensor]:
  step = np.arange(len(observations))
  is_last = step == len(step) - 1
  steps = {
      'observation': np.array(observations, np.float32),
      'action': np.where(is_last, 99, step + 1),
      'reward': np.array([*rewards, 99], np.float32),
      'discount': np.ones(len(step), np.float32),
      'is_first': step == 0,
      'is_last': is_last,
      'is_terminal': is_last & terminal,
      'state': 100 + np.array(observations, np.float32),
  }
  return tf.nest.map_structure(tf.constant, steps)


def _make_team(a, b) -> Dict[str, Any]:
  """Returns steps in which `b` comes one step after `a`, and leaves before."""
  length = len(a['reward'])
  late = tf.clip_by_value(tf.range(length) - 1, 0, len(b['reward']) - 1)
  step = tf.range(length)
  team = {
      field: {'a': a[field], 'b': tf.gather(b[field], late)}
      for field in ('observation', 'action', 'reward')
  }
  team['is_present'] = {
      'a': tf.fill([length], True),
      'b': (step >= 1) & (step <= 4),
  }
  return {**{key: a[key] for key in a if key not in team}, **team}


def _make_names() -> Dict[str, Any]:
  """Returns what the calls may name."""
  a = _make_steps(range(6), [1, 2, 3, 4, 5], terminal=True)
  b = _make_steps(range(10, 14), [10, 20, 30], terminal=False)
  data = tf.data.Dataset.from_tensors({'steps': a}).concatenate(
      tf.data.Dataset.from_tensors({'steps': b})
  )
  rows, lengths = windows.join_transitions(data)
  team = _make_team(a, b)
  return {
      'A': a,
      'B': b,
      'data': data,
      'rows': rows,
      'lengths': lengths,
      'r2r': rlds2reverb,
      'formats': formats,
      'indexing': indexing,
      'tokens': tokens,
      'agents': agents,
      'AB': team,
      'team': tf.data.Dataset.from_tensors({'steps': team}).repeat(2),
      'windows': windows,
      'tf': tf,
      'index': indexing.TransitionIndex.from_episodes(data),
  }


def _show(example: _Example, value: Any) -> List[str]:
  """Returns the lines that show what a call has returned."""
  if isinstance(value, str):
    return value.splitlines()
  columns = _columns(value)
  shown = {}
  for field in example.show:
    path, label = (field, field) if isinstance(field, str) else field
    shown[label] = columns[path]
  return _layout(shown, in_lines=example.in_lines)


def _columns(value: Any) -> Dict[str, List[Any]]:
  """Returns, by path, the fields of a nest, or of a data set's elements."""
  if isinstance(value, tf.data.Dataset):
    columns = {}
    for element in value:
      for path, column in _columns(element).items():
        columns.setdefault(path, []).append(column)
    return columns
  if isinstance(value, windows.TransitionRows):
    value = value.columns
  return {
      '/'.join(map(str, path)): (
          leaf.to_list()
          if isinstance(leaf, tf.RaggedTensor)
          else np.asarray(leaf.numpy()).tolist()
      )
      for path, leaf in tree.flatten_with_path(value)
      if tf.is_tensor(leaf)
  }


def _layout(columns: Dict[str, List[Any]], *, in_lines: bool) -> List[str]:
  """Lays fields out: each in a line, or side by side under their names."""
  if not any(columns.values()):
    return ['(none)']
  if in_lines or not any(
      isinstance(row, list) for column in columns.values() for row in column
  ):
    cells = {label: _flatten(column) for label, column in columns.items()}
    width = _width(cells.values())
    indent = max(map(len, cells)) + 2
    return [
        label.ljust(indent) + _join(values, width)
        for label, values in cells.items()
    ]
  blocks = []
  for label, column in columns.items():
    cells = [_flatten(row) for row in column]
    block = [label] + [_join(row, _width(cells)) for row in cells]
    width = max(map(len, block))
    blocks.append([line.ljust(width) for line in block])
  return ['   '.join(lines).rstrip() for lines in zip(*blocks)]


def _flatten(values: Any) -> List[str]:
  return [
      {True: 'T', False: 'F'}[value]
      if isinstance(value, bool)
      else f'{value:.9g}'
      for value in tf.nest.flatten(values)
  ]


def _width(rows: Iterable[Sequence[str]]) -> int:
  return max((len(cell) for row in rows for cell in row), default=0)


def _join(cells: Sequence[str], width: int) -> str:
  return ' '.join(cell.rjust(width) for cell in cells)


def _block(lines: Sequence[str]) -> str:
  return '\n'.join(['```', *lines, '```'])


def _wrap(text: str, width: int = 80) -> str:
  lines = ['']
  for word in text.split():
    if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
      lines.append('')
    lines[-1] += (' ' if lines[-1] else '') + word
  return '\n'.join(lines)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError('Too many command-line arguments.')
  text = make_text()
  with open(PATH, 'w', encoding='utf-8') as f:
    f.write(text)


if __name__ == '__main__':
  app.run(main)
