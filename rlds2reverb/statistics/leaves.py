"""Chooses the leaves of a step that have statistics."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from rlds2reverb.episodes import last_steps
from rlds2reverb.episodes import paths
from rlds2reverb.episodes import rlds

_MAX_LEAF_SIZE = 1024


def choose_leaves(
    step_spec: Dict[str, Any], fields: Optional[Sequence[paths.Path]]
) -> List[Tuple[paths.KeyPath, tf.TensorSpec]]:
  """Returns the keys and specs of the leaves that have statistics.

  Args:
    step_spec: the spec of a step.
    fields: the paths of fields; or None for all but the flags, strings, and
      leaves that have more than 1024 numbers or a shape that is not known.

  Raises:
    ValueError: if there is no such field, or a leaf of one is not of numbers of
      a known shape.
  """
  above = [()] if fields is None else fields
  above = [paths.find(step_spec, path) for path in above]
  chosen = []
  for name, spec in paths.leaves(step_spec).items():
    keys = paths.find(step_spec, name)
    if not any(keys[: len(one)] == one for one in above):
      continue
    is_numbers = (
        isinstance(spec, tf.TensorSpec)
        and spec.dtype != tf.string
        and spec.shape.is_fully_defined()
    )
    if fields is None and (
        keys[0] in (*rlds.FLAGS, last_steps.HAS_ACTION)
        or not is_numbers
        or spec.shape.num_elements() > _MAX_LEAF_SIZE
    ):
      continue
    if not is_numbers:
      raise ValueError(
          f'{name} must have numbers of a known shape, but its spec is {spec}.'
          ' Name the fields one by one.'
      )
    chosen.append((keys, spec))
  return chosen
