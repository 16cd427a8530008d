"""Writes docs/sequences.md: a small data set, through every function.

    python -m docs.sequences

The calls in the text are those that are run, and the rows are what they return.
"""

import os
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

from absl import app
import numpy as np
import rlds2reverb
import tensorflow as tf
import tree

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'sequences.md')

_INTRO = """\
# Sequences, by example

`python -m docs.sequences` writes this file. Do not edit it by hand.

Two small episodes go through every function. `A` has 5 transitions and
terminates, `B` has 3 and is truncated. An episode has one step more than it has
transitions; the action and reward of its last step have no meaning, here 99.
`data` is the data set of both. `r2r` is `rlds2reverb`.

`T` is true, `F` is false. Where a mask is `F`, the row was filled in."""

_SIX_ENDS = {
    'drop': 'Only sequences whose frames are all there.',
    'pad': 'As `"drop"`, but an episode shorter than a sequence is padded.',
    'tile': 'A sequence starts at every second frame, and is padded.',
    'repeat_last': 'The missing frames of the last sequence repeat the last.',
    'overlap': 'The last sequence starts earlier, so that it ends in time.',
    'cross': 'Sequences go on in the next episode.',
}
_RESIDUALS = {
    'repeat_last': 'The last row is repeated.',
    'overlap': (
        'The last chunk starts earlier. An episode shorter than a chunk is'
        ' padded.'
    ),
    'drop': 'The rows left over are left out.',
    'null': 'The rest is zeros that are `is_last`.',
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
    'observation', 'action', 'reward', 'next_observation', 'discount',
    'is_first', 'is_last', 'is_terminal',
)
_CHUNK = ('observation', 'is_last', 'mask', 'initial_state')
_N_STEP = (
    'observation', 'reward', 'discount', 'next_observation', 'steps', 'gamma'
)
_SLICE = (('rows/observation', 'observation'), 'mask', 'trajectory', 'start')

_SECTIONS = [
    _Section(
        'transition_rows',
        'Most functions work on the transitions of an episode. A row holds the'
        ' observation before and after, and ends the episode if the step that'
        ' it leads to does. A terminal row has a discount of 0.',
        [
            _Example('r2r.transition_rows(A)', _ROWS),
            _Example('r2r.transition_rows(B)', _ROWS),
        ],
    ),
    _Section(
        'convert_rlds_to_sequences',
        'Makes windows of a fixed length on the frames of each episode. A frame'
        ' is a step: 0 is the step type of a first, 1 of a middle and 2 of a'
        ' last one. There are six ways to end an episode. A line is a'
        ' sequence.',
        [
            _Example(
                'r2r.convert_rlds_to_sequences(\n    data, 5, 2,'
                f' end_of_episode="{end}", with_mask=True)',
                (*_SEQUENCE, ('1', 'mask')),
                text,
            )
            for end, text in _SIX_ENDS.items()
        ],
    ),
    _Section(
        'convert_rlds_to_sequence_batches',
        'Returns the same sequences, many an element. Here one element is one'
        ' line, with two sequences or what is left.',
        [
            _Example(
                'r2r.convert_rlds_to_sequence_batches(\n    data, 2, 2,'
                ' max_batch_size=2)',
                ('observation', 'step_type'),
            )
        ],
    ),
    _Section(
        'unroll',
        'Cuts the transitions of one episode into chunks, one behind the other.'
        ' A residual says what becomes of the rows left over. The initial state'
        ' is that of the first row of a chunk, and zero where an episode'
        ' starts. A line is a chunk.',
        [
            _Example(
                f'r2r.unroll({steps}, 4, "{residual}", state="state")',
                _CHUNK,
                text,
            )
            for residual, sentence in _RESIDUALS.items()
            for steps, text in (('A', sentence), ('B', ''))
        ],
    ),
    _Section(
        'split_burn_in',
        'Splits sequences into rows that warm up a recurrent state, rows to'
        ' learn from, and rows for the targets. There is one sequence of 5'
        ' rows here, with 2 rows of burn-in and targets 1 row ahead.',
        [
            _Example(
                'r2r.split_burn_in(r2r.unroll(A, 5), burn_in=2, n_step=1)',
                (
                    'burn_in_observation', 'main_observation',
                    'target_observation', 'action', 'reward', 'is_terminal',
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
                'r2r.chop_into_sequences(\n    rows["reward"],'
                ' [1, 1, 1, 1, 1, 2, 2, 2], 4, states=rows["state"])',
                ('rows', 'mask', 'seq_lens', 'initial_state'),
                '`rows` are the transitions of both: see `join_transitions`.',
            ),
            _Example(
                'r2r.chop_into_sequences(\n    rows["reward"],'
                ' [1, 1, 2, 2, 2, 3, 3, 3], 4, dynamic_max=True)',
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
                'r2r.convert_rlds_to_fragments(data, 3, "truncate_episodes")',
                ('observation', 'episode', 't'),
                'Each batch has 3 transitions, whatever episode they are of.',
            ),
            _Example(
                'r2r.convert_rlds_to_fragments(data, 3, "complete_episodes")',
                ('observation', 'episode', 't'),
                'A batch ends with an episode, once it has 3 transitions.',
            ),
            _Example(
                'r2r.convert_rlds_to_fragments(\n    data, 3,'
                ' fragment_fn=lambda rows: {\n        **rows, "total":'
                ' tf.cumsum(rows["reward"])})',
                ('reward', 'total', 'episode'),
                'A `fragment_fn` never sees rows of two episodes: the total'
                ' starts anew with each episode, and with each batch.',
            ),
        ],
    ),
    _Section(
        'apply_horizon',
        'Cuts one episode after some transitions. An episode that was cut is'
        ' truncated, not terminal.',
        [
            _Example('r2r.apply_horizon(A, 3)', _STEPS),
            _Example('r2r.apply_horizon(B, 3)', _STEPS),
            _Example(
                'r2r.apply_horizon(A, 5, no_done_at_end=True)',
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
                'r2r.split_at_horizon(data, 2)',
                [
                    (f'steps/{field}', field)
                    for field in (
                        'observation', 'is_first', 'is_last', 'is_terminal'
                    )
                ],
            )
        ],
    ),
    _Section(
        'n_step_transitions',
        'Takes up to n transitions together: their rewards, discounted and'
        ' added up, and the observation behind them. A window never leaves its'
        ' episode. The discount is 0 where the window ends in a terminal step.',
        [
            _Example('r2r.n_step_transitions(A, 3, gamma=.5)', _N_STEP),
            _Example('r2r.n_step_transitions(B, 3, gamma=.5)', _N_STEP),
        ],
    ),
    _Section(
        'reward_to_go',
        'Returns the discounted sum of the rewards from each transition to the'
        ' end of its episode.',
        [
            _Example(
                f'r2r.reward_to_go({steps}, gamma=.5)', [('', 'reward_to_go')]
            )
            for steps in 'AB'
        ],
    ),
    _Section(
        'td_lambda_returns',
        'Mixes the rewards with the values of the steps. Here the value of a'
        ' step is its observation. `B` is truncated, so the value of its last'
        ' step, 13, counts; `A` terminates, and its last value does not.',
        [
            _Example(
                f'r2r.td_lambda_returns(\n    {steps},'
                f' {steps}["observation"], gamma=.5, lambda_={lambda_})',
                [('', 'return')],
            )
            for steps in 'AB'
            for lambda_ in ('0', '.5', '1')
        ],
    ),
    _Section(
        'apply_views',
        'Shows each transition columns of its past and future. What is not'
        ' there is zero; before an episode observations repeat the first. Where'
        ' `valid` is `F`, the row was filled in.',
        [
            _Example(
                'r2r.apply_views(A, {\n'
                f'    "view": r2r.ViewRequirement("{column}", {shift})'
                f'}}{fragment})',
                [('columns/view', column), ('valid/view', 'valid')],
                text,
            )
            for column, shift, fragment, text in (
                ('reward', '-1', '', 'The reward before.'),
                ('reward', '"-2:-1"', '', 'The two rewards before.'),
                ('action', '1', '', 'The next action.'),
                (
                    'observation',
                    '[-1, 0, 1]',
                    '',
                    'The observations before, at and behind the row.',
                ),
                (
                    'reward',
                    '"-1:1"',
                    ', start=2, stop=4',
                    'A fragment, rows 2 and 3, sees the row before it, and not'
                    ' the row behind it.',
                ),
            )
        ],
    ),
    _Section(
        'stack_observations',
        'Gives each step its last observations, the oldest first. A line is a'
        ' step.',
        [
            _Example(
                f'r2r.stack_observations({call})',
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
                f'r2r.chunk_actions({call})',
                ('observation', 'action', 'action_mask'),
                text,
            )
            for call, text in (
                ('A, 3', 'Behind the last action are zeros.'),
                ('B, 3, fill="repeat"', 'The last action is repeated.'),
            )
        ],
    ),
    _Section(
        'join_transitions',
        'Reads the transitions of all episodes into memory, one episode after'
        ' the other. Elsewhere on this page, `rows` and `lengths` are what it'
        ' returns.',
        [
            _Example(
                'r2r.join_transitions(data)',
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
                f'r2r.sample_slices(\n    rows, lengths, 4, {call})',
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
                    ' pad="repeat_last"',
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
                f'r2r.random_crop({steps}, 2, seed=(0, 1))',
                ('observation', 'reward', 'is_last'),
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
                'r2r.pad_trajectories(rows, lengths)',
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
      columns = _columns(eval(example.call, names))
      shown = {}
      for field in example.show:
        path, label = (field, field) if isinstance(field, str) else field
        shown[label] = columns[path]
      if example.text:
        parts.append(_wrap(example.text))
      parts.append(
          _block([
              *example.call.splitlines(),
              '',
              *_layout(shown, in_lines=example.in_lines),
          ])
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


def _make_names() -> Dict[str, Any]:
  """Returns what the calls may name."""
  a = _make_steps(range(6), [1, 2, 3, 4, 5], terminal=True)
  b = _make_steps(range(10, 14), [10, 20, 30], terminal=False)
  data = tf.data.Dataset.from_tensors({'steps': a}).concatenate(
      tf.data.Dataset.from_tensors({'steps': b})
  )
  rows, lengths = rlds2reverb.join_transitions(data)
  return {
      'A': a, 'B': b, 'data': data, 'rows': rows, 'lengths': lengths,
      'r2r': rlds2reverb, 'tf': tf,
  }


def _columns(value: Any) -> Dict[str, List[Any]]:
  """Returns, by path, the fields of a nest, or of a data set's elements."""
  if isinstance(value, tf.data.Dataset):
    columns = {}
    for element in value:
      for path, column in _columns(element).items():
        columns.setdefault(path, []).append(column)
    return columns
  return {
      '/'.join(map(str, path)): leaf.numpy().tolist()
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
  with open(PATH, 'w', encoding='utf-8') as f:
    f.write(make_text())


if __name__ == '__main__':
  app.run(main)
