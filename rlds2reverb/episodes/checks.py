"""Checks of arguments, and of the `__main__` guard of a script."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import difflib
import multiprocessing
import numbers
import operator
from typing import Any

import numpy as np

_MAIN_GUARD = (
    'A script that starts processes needs a guard, because each process imports'
    ' the script again. Put the code that it runs into a function main, and'
    ' call it at the end:\n\n    if __name__ == "__main__":\n      main()'
)


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
  """Raises a ValueError if `value` is not one of `choices`."""
  if value not in choices:
    names = list(map(str, choices))
    raise ValueError(
        f'{name} must be one of {", ".join(map(repr, names))}, but is'
        f' {value!r}.{did_you_mean(str(value), names)}'
    )


def check_known(owner: str, kind: str, name: Any, names: Iterable[Any]) -> None:
  """Raises a ValueError if `owner` has no `kind` of this name.

  For example, `check_known('Table a', 'column', 'x', columns)`.
  """
  if name not in names:
    sorted_names = sorted(map(str, names))
    raise ValueError(
        f'{owner} has no {kind} {name!r}.'
        f'{did_you_mean(str(name), sorted_names)} It has {sorted_names}.'
    )


def check_weights(
    weights: Mapping[str, float] | Sequence[float] | np.ndarray,
    names: Iterable[str] | None = None,
    *,
    name: str = 'weights',
    of: str = 'data set',
    are_positive: bool = False,
) -> None:
  """Raises a ValueError if weights cannot be sampling weights.

  Args:
    weights: the weights, a sequence or a mapping by name.
    names: the names that the weights must have; by default any.
    name: the name of the argument, for errors.
    of: a noun for the weighted objects, for errors.
    are_positive: whether 0 is refused.
  """
  values = weights
  labels: Sequence[Any] = range(len(weights))
  if isinstance(weights, Mapping):
    values, labels = list(weights.values()), list(weights)
    if names is not None and set(weights) != set(names):
      raise ValueError(
          f'{name} must be of the {of}s {sorted(names)}, but are of'
          f' {sorted(weights)}.'
      )
  values = np.asarray(values, np.float64)
  is_valid = (values > 0) if are_positive else (values >= 0)
  invalid = np.flatnonzero(~is_valid | np.isinf(values))
  if len(invalid):
    bound = 'above 0' if are_positive else 'from 0 up'
    raise ValueError(
        f'The {name} must be finite numbers {bound}, but {of}'
        f' {labels[invalid[0]]} has {values[invalid[0]]}.'
    )
  if not values.any():
    raise ValueError(f'All {name} are 0, so that no {of} can be drawn.')


def check_count(weights: Sequence[float], count: int) -> None:
  """Raises a ValueError unless there is one weight for each data set."""
  if np.shape(weights) != (count,):
    raise ValueError(
        f'There must be a weight for each of the {count} data sets, but weights'
        f' are {np.asarray(weights).tolist()}.'
    )


def check_positive(name: str, value: int) -> None:
  """Raises a ValueError if `value` is not a positive integer of 64 bits."""
  is_integer = isinstance(value, numbers.Integral)
  if isinstance(value, bool) or not is_integer or value < 1:
    message = f'{name} must be a positive integer, but is {value!r}.'
    if not is_integer:
      message += ' It must be known when the pipeline is built.'
    raise ValueError(message)
  if value >= 1 << 63:
    raise ValueError(f'{name} must be below 2**63, but is {value}.')


def check_not_negative(name: str, value: int) -> None:
  """Raises a ValueError if `value` is not an integer of at least 0."""
  is_integer = isinstance(value, numbers.Integral)
  if isinstance(value, bool) or not is_integer or value < 0:
    raise ValueError(f'{name} must be an integer from 0 up, but is {value!r}.')


def to_index(name: str, value: Any) -> int:
  """Returns an index as an int.

  Args:
    name: the name of the index, for errors.
    value: an integer of Python or NumPy, or a scalar integer array or tensor.

  Raises:
    TypeError: if it is anything else.
  """
  try:
    if isinstance(value, bool):
      raise TypeError
    return operator.index(value)
  except TypeError:
    raise TypeError(f'{name} must be one integer, but is {value!r}.') from None


def counted(count: int, singular: str, plural: str = '') -> str:
  """Returns a count and its noun: `1 file`, `1,234 files`.

  Args:
    count: the count.
    singular: the noun, which may include a verb, such as `episode is`.
    plural: the plural form; by default `singular` with an `s`.
  """
  noun = singular if count == 1 else plural or singular + 's'
  return f'{count:,} {noun}'


def did_you_mean(name: str, names: Iterable[str], prefix: str = '') -> str:
  """Returns a sentence that suggests similar `names`, or an empty string."""
  similar = difflib.get_close_matches(name, list(names))
  if not similar:
    return ''
  return f' Did you mean {" or ".join(prefix + other for other in similar)}?'


def check_main_guard() -> None:
  """Raises a RuntimeError in a process that its parent's script starts again.

  A new process imports the script of its parent. Without a `__main__` guard it
  would run all of the script, and start further processes. Call this before
  processes are started.
  """
  # The standard library finds the same by this attribute.
  if getattr(multiprocessing.current_process(), '_inheriting', False):
    raise RuntimeError(_MAIN_GUARD)


def explain_main_guard(problem: str) -> str:
  """Returns the message for the parent when a new process has died."""
  return f'{problem} If the script has no guard, that is why. {_MAIN_GUARD}'
