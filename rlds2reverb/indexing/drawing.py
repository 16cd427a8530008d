"""Draws small trees of recorded data as text, or for Graphviz."""

from typing import Any, Callable, List, Optional

import numpy as np
import tensorflow as tf

from rlds2reverb.indexing import transition_graph

Label = Callable[[Any, Any], str]


def draw_tree(
    tree: transition_graph.Tree,
    root: int = 0,
    label: Optional[Label] = None,
    *,
    as_dot: bool = False,
) -> str:
  """Returns a tree as indented lines, a node each.

      0
        1 -> 2  reward 0.5, 3 times
          7 -> 4  reward 1, once, terminal

  Args:
    tree: the result of `TransitionIndex.expand`, in eager mode.
    root: the index of the tree.
    label: returns the text for an action and the observation that it led to;
      the action is None at a root. By default `action -> observation`.
    as_dot: whether to return a digraph in the language of Graphviz's `dot`, in
      which a terminal node has a double line.

  Returns:
    The lines. An observation that was not recorded is one line.
  """
  nodes = _nodes(tree, root, label)
  if as_dot:
    return _dot(nodes)
  if not nodes:
    return '(not recorded)'
  lines: List[str] = []

  def add(node, indent):
    lines.append(' ' * indent + node.words)
    for child in node.children:
      add(child, indent + 2)

  add(nodes[0], 0)
  if tree.num_left_out[root]:
    lines.append(f'({int(tree.num_left_out[root])} nodes have no room)')
  return '\n'.join(lines)


def _dot(nodes) -> str:
  lines = ['digraph {', '  node [shape=box];']
  names = {id(node): f'n{number}' for number, node in enumerate(nodes)}
  for node in nodes:
    words = node.words.replace('\\', '\\\\').replace('"', '\\"')
    double = ', peripheries=2' * node.is_terminal
    lines.append(f'  {names[id(node)]} [label="{words}"{double}];')
  for node in nodes:
    for child in node.children:
      lines.append(f'  {names[id(node)]} -> {names[id(child)]};')
  return '\n'.join([*lines, '}'])


class _Node:
  """A node, its words, and the nodes below it."""

  def __init__(self, words: str, is_terminal: bool):
    self.words = words
    self.is_terminal = is_terminal
    self.children: List['_Node'] = []


def _nodes(tree, root, label) -> List[_Node]:
  """Returns the nodes of one tree, level after level."""
  label = label or _default_label
  one = tf.nest.map_structure(lambda leaf: leaf[root].numpy(), tree)
  found: List[_Node] = []
  above: List[_Node] = []
  for depth, mask in enumerate(one.mask):
    level = []
    for place in np.flatnonzero(mask):
      at = lambda leaf: leaf[depth, place]  # pylint: disable=cell-var-from-loop
      action = tf.nest.map_structure(at, one.action) if depth else None
      words = label(action, tf.nest.map_structure(at, one.observation))
      if depth:
        count = int(at(one.count))
        times = 'once' if count == 1 else f'{count} times'
        words += f'  reward {at(one.reward):.6g}, {times}'
        words += ', terminal' * bool(at(one.is_terminal))
      node = _Node(words, bool(at(one.is_terminal)))
      if depth:
        above[at(one.parent)].children.append(node)
      level.append(node)
    found += level
    above = level
  return found


def _default_label(action, observation) -> str:
  words = _words(observation)
  return words if action is None else f'{_words(action)} -> {words}'


def _words(nest) -> str:
  return ', '.join(
      np.array2string(np.asarray(leaf), precision=4, separator=' ')
      for leaf in tf.nest.flatten(nest)
  )
