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

`r2r` is `rlds2reverb`; `windows`, `formats`, `indexing`, `tokens` and `agents` are
its modules of these names.

A row is a transition, so its discount of 0 is on the transition into the
terminal step: a learner that reads rows needs nothing more. A frame is a step,
and TF-Agents' learners mask out the frame of the last one: hence
`terminal_discount`. After `n_step_transitions` all rows whose window holds the
terminal step have a discount of 0. Where padding has a discount of 0, only the
mask tells it from an end.

## The two episodes

Two small episodes go through every function. `A` has 5 transitions and
terminates, `B` has 3 and is truncated. An episode has one step more than it has
transitions; the action and reward of its last step have no meaning, here 99.
`data` is the data set of both.

`T` is true, `F` is false. Where a mask is `F`, the row was filled in."""

_SEQUENCE_ENDS = {
    'cross': 'Sequences go on in the next episode.',
}
_CHUNK_ENDS = {
    'repeat_last': 'The last row is repeated.',
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


_EPISODE = _named(
    'steps', ('observation', 'is_first', 'is_last', 'is_terminal')
)

_SECTIONS = [
    _Section(
        'transition_rows',
        'Most functions work on the transitions of an episode. A row holds the'
        ' observation before and after, and ends the episode if the step that'
        ' it leads to does. A terminal row has a discount of 0.',
        [
            _Example('windows.transition_rows(A)', _ROWS),
        ],
    ),
    _Section(
        'convert_rlds_to_sequences',
        'Makes windows of a fixed length on the frames of each episode. A frame'
        ' is a step: 0 is the step type of a first, 1 of a middle and 2 of a'
        ' last one. A line is a sequence.',
        [
            _Example(
                'r2r.convert_rlds_to_sequences(\n    data,'
                f' r2r.Windows(5, 2, "{end}"), with_mask=True)',
                (*_SEQUENCE, ('1', 'mask')),
                text,
            )
            for end, text in _SEQUENCE_ENDS.items()
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
                f'windows.unroll(\n    A, r2r.Windows(4, 4, "{end}"),'
                ' state="state")',
                _CHUNK,
                text,
            )
            for end, text in _CHUNK_ENDS.items()
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
                'windows.chop_into_sequences(\n    windows.FlatRows.of('
                'joined.rows["reward"], lengths=joined.lengths,\n    '
                '    states=joined.rows["state"]), 4)',
                ('rows', 'mask', 'seq_lens', 'initial_state'),
                '`joined` are the transitions of both: see `join_transitions`.',
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
        ],
    ),
    _Section(
        'apply_horizon',
        'Cuts each episode after some transitions. An episode that was cut is'
        ' truncated, not terminal. A line is an episode.',
        [
            _Example(
                'windows.apply_horizon(data, 2, soft=True)',
                _EPISODE,
                'A soft horizon goes on with episodes that share the observation'
                ' where they meet. Only the last can be terminal.',
            ),
        ],
    ),
    _Section(
        'n_step_transitions',
        'Takes up to n transitions together: their rewards, discounted and'
        ' added up, and the observation after them. A window never leaves its'
        ' episode. The discount is 0 where the window ends in a terminal step.',
        [
            _Example('windows.n_step_transitions(A, 3, gamma=.5)', _N_STEP),
        ],
    ),
    _Section(
        'reward_to_go',
        'Adds the discounted sum of the rewards from each transition to the'
        ' end of its episode.',
        [
            _Example(
                'windows.reward_to_go(A, gamma=.5)',
                ['reward', 'reward_to_go'],
            )
        ],
    ),
    _Section(
        'advantages',
        'Adds generalized advantage estimates (GAE), and the TD(lambda) returns,'
        ' which are these and the values. Here the value of a step is its'
        ' observation. `B` is truncated, so the value of its last step, 13,'
        ' counts; `A` terminates, and its last value does not.',
        [
            _Example(
                f'windows.advantages(\n    {steps}, {steps}["observation"],'
                ' gamma=.5, lambda_=.5)',
                ['advantage', 'td_lambda_return'],
            )
            for steps in 'AB'
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
                ('reward', '"-2:-1"', 'The two rewards before.'),
                (
                    'observation',
                    '[-1, 0, 1]',
                    'The observations before, at and after the row.',
                ),
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
            for call, text in (('A, 3', 'After the last action are zeros.'),)
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
        ' the other. Elsewhere on this page, `joined` is what it returns.',
        [
            _Example(
                'windows.join_transitions(data)',
                [
                    *_named('rows', ('observation', 'reward', 'is_last')),
                    'lengths',
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
                f'windows.sample_slices(\n    joined, {call})',
                _SLICE,
                text,
            )
            for call, text in (
                (
                    '(4, 3), seed=(0, 1)',
                    'First a trajectory is drawn, then its start.',
                ),
                (
                    '(4, 4), seed=(0, 1), strict=False',
                    'Trajectories that are too short are drawn whole, and'
                    ' padded.',
                ),
            )
        ],
    ),
    _Section(
        'draw_steps',
        'Returns some steps of one episode, or all, in a random order.',
        [
            _Example(
                'windows.draw_steps(A, 4, seed=(0, 1))',
                ('observation', 'reward'),
            )
        ],
    ),
    _Section(
        'to_ted',
        "Returns episodes in TorchRL's format, in NumPy: what is known before"
        ' each transition, and below `next` what is known after it. In the flat'
        ' form every observation is there once.',
        [
            _Example('formats.to_ted(data.take(1))', _TED),
            _Example('formats.to_ted(data, "flat")', _FLAT_TED),
        ],
    ),
    _Section(
        'from_ted',
        'Returns the episodes of either form. The last step has zeros where only'
        ' transitions have a value. A line is an episode.',
        [
            _Example(
                'formats.from_ted(formats.to_ted(data))',
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
                'index.expand(tf.constant([0., 12.]), depth=2, max_width=1,'
                ' gamma=.5)',
                ['observation', 'action', 'path_return', 'mask', 'is_leaf'],
                'The trees of what follows; a line is a tree, and its levels'
                ' are beside each other.',
            ),
        ],
    ),
    _Section(
        'draw_tree',
        'Draws a small tree; `as_dot=True` draws it in the language of'
        ' Graphviz.',
        [
            _Example(
                'indexing.draw_tree(\n    index.expand(tf.constant([2.]),'
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
                ' B["action"][:-1],\n    score=2., penalty=[.25, 0., .5],'
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
                'agents.select_agent({"steps": AB}, "b")',
                _named('steps', _STEPS),
            )
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
  team = _make_team(a, b)
  return {
      'A': a,
      'B': b,
      'data': data,
      'joined': windows.join_transitions(data),
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
          else np.asarray(leaf).tolist()
      )
      for path, leaf in tree.flatten_with_path(value)
      if tf.is_tensor(leaf) or isinstance(leaf, np.ndarray)
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
