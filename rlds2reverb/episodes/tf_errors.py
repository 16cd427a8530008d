"""Errors of TensorFlow, in words that help a user."""

import re

import tensorflow as tf

# The names of nodes and operations of TensorFlow's own graph.
_NODES = re.compile(
    r'\{\{function_node [^}]*\}\} ?'
    r'| ?\[\[\{\{node [^}]*\}\}.*?\]\]'
    r'| ?\[Op:[^]]*\].*'
)


def message_of(error: tf.errors.OpError) -> str:
  """Returns the message of a TensorFlow error in one line, without nodes."""
  line, *_ = _NODES.sub('', error.message).strip().splitlines() or ['']
  return line
