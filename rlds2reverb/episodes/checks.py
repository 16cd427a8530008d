"""Checks of arguments, with messages that say what would be right."""

import difflib
import math
import numbers
from typing import Any, Iterable, Sequence


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
  """Raises a ValueError if `value` is not one of `choices`."""
  if value not in choices:
    names = list(map(str, choices))
    raise ValueError(
        f'{name} must be one of {", ".join(map(repr, names))}, but is'
        f' {value!r}.{did_you_mean(str(value), names)}'
    )


def check_known(where: str, what: str, name: Any, known: Iterable[Any]) -> None:
  """Raises a ValueError if `where` has nothing `what` of a name."""
  if name not in known:
    names = sorted(map(str, known))
    raise ValueError(
        f'{where} has no {what} {name!r}.{did_you_mean(str(name), names)} It'
        f' has {names}.'
    )


def check_weights(weights: Sequence[float]) -> None:
  """Raises a ValueError if nothing can be drawn in proportion to `weights`."""
  if min(weights) < 0 or not 0 < sum(weights) < math.inf:
    raise ValueError(
        'weights must be 0 or more, finite, and not all 0, but are'
        f' {list(weights)}.'
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


def did_you_mean(name: str, names: Iterable[str], prefix: str = '') -> str:
  """Returns a sentence that suggests similar `names`, or an empty string."""
  near = difflib.get_close_matches(name, list(names))
  near = [prefix + each for each in near]
  return f' Did you mean {" or ".join(near)}?' if near else ''
