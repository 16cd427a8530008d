"""Checks of arguments, with messages that say what would be right."""

import difflib
import numbers
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

import numpy as np


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
  """Raises a ValueError if `value` is not one of `choices`."""
  if value not in choices:
    names = list(map(str, choices))
    raise ValueError(
        f'{name} must be one of {", ".join(map(repr, names))}, but is'
        f' {value!r}.{did_you_mean(str(value), names)}'
    )


def check_known(where: str, what: str, name: Any, known: Iterable[Any]) -> None:
  """Raises a ValueError if `where` has no `what` of a name."""
  if name not in known:
    names = sorted(map(str, known))
    raise ValueError(
        f'{where} has no {what} {name!r}.{did_you_mean(str(name), names)} It'
        f' has {names}.'
    )


def check_weights(
    weights: Union[Mapping[str, float], Sequence[float], np.ndarray],
    names: Optional[Iterable[str]] = None,
    *,
    name: str = 'weights',
    of: str = 'data set',
    are_positive: bool = False,
) -> None:
  """Raises a ValueError if nothing can be drawn in proportion to weights.

  Args:
    weights: the weights, in a sequence or by the names of weighted things.
    names: the names that the weights must have, by default any.
    name: what the weights are called, for errors.
    of: what each of them is of, for errors.
    are_positive: whether none may be 0.
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
  is_right = (values > 0) if are_positive else (values >= 0)
  wrong = np.flatnonzero(~is_right | np.isinf(values))
  if len(wrong):
    least = 'above 0' if are_positive else 'from 0 up'
    raise ValueError(
        f'The {name} must be finite numbers {least}, but that of {of}'
        f' {labels[wrong[0]]} is {values[wrong[0]]}.'
    )
  if not values.any():
    raise ValueError(f'All {name} are 0, so that no {of} can be drawn.')
  if np.isinf(values.sum()):
    raise ValueError(f'The sum of the {name} is too large for a float.')


def check_count(weights: Sequence[float], count: int) -> None:
  """Raises a ValueError unless there is a weight for each of the data sets."""
  if np.shape(weights) != (count,):
    raise ValueError(
        f'There must be a weight for each of the {count} data sets, but weights'
        f' are {np.asarray(weights).tolist()}.'
    )


def check_positive(name: str, value: int) -> None:
  """Raises a ValueError if `value` is not an integer above 0, of 64 bits."""
  is_integer = isinstance(value, numbers.Integral)
  if isinstance(value, bool) or not is_integer or value < 1:
    message = f'{name} must be a positive integer, but is {value!r}.'
    if not is_integer:
      message += ' It must be known when the pipeline is built.'
    raise ValueError(message)
  if value >= 1 << 63:
    raise ValueError(f'{name} must be below 2**63, but is {value}.')


def check_not_negative(name: str, value: int) -> None:
  """Raises a ValueError if `value` is not an integer from 0 up."""
  if not isinstance(value, numbers.Integral) or value < 0:
    raise ValueError(f'{name} must be an integer from 0 up, but is {value!r}.')


def counted(count: int, one: str, several: str = '') -> str:
  """Returns how many there are, in words: `1 file`, `1,234 files`.

  Args:
    count: how many there are.
    one: what one of them is called, which may be `episode is`.
    several: what any other number is called; by default `one` with an `s`.
  """
  return f'{count:,} {one if count == 1 else several or one + "s"}'


def did_you_mean(name: str, names: Iterable[str], prefix: str = '') -> str:
  """Returns a sentence that suggests similar `names`, or an empty string."""
  near = difflib.get_close_matches(name, list(names))
  near = [prefix + each for each in near]
  return f' Did you mean {" or ".join(near)}?' if near else ''
