"""`ConversionOptions`: how data is converted, and the keys of its items."""

import dataclasses
import functools
import inspect
from typing import Any, Callable, Optional, ParamSpec, TypeVar

from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs

_P = ParamSpec('_P')
_R = TypeVar('_R')


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
  """Says how RLDS data is converted, whatever it is converted to.

  Every function that converts takes these options, and uses those for its
  output: `identity` and the attributes after it are for items in Reverb.

  Attributes:
    rules: which episodes are valid, and how they are converted. The default is
      `ConversionRules()`, which gin may configure.
    policy_info_fn: makes the `policy_info` of a frame from its step and the
      step that follows; see `convert_rlds_to_trajectories`.
    report: a new `ConversionReport`, to be filled with what was skipped or
      looks wrong.
    identity: a value that identifies this data: its name, its
      split and shard, and whatever was done to it, such as the mapping, the
      transforms and the `policy_info_fn`. It is a string, or a dict or list of
      strings, numbers, mappings and transforms. Under an identity, the keys of
      items depend on it, on the dtypes and shapes of the frames, on
      `rules.terminal_discount`, and on the item's table, length, episode and
      place, so data that is written again is in the table once. A server does
      not compare items: if two that differ have the same key, because the
      identity is too coarse, the first one stays. By default, None, keys are
      random.
    episode_id: the name of a field of the episodes, an integer or a string,
      that identifies them under `identity`. No two episodes may have the same
      value. By default episodes are identified by their index in the data set,
      so two shards need two identities, or an `episode_id`.
    chunk_length: the largest number of frames of a chunk. By default a chunk
      holds about 8 KiB and no more than 64 frames; where a column has 1 KiB a
      frame or more, such as an image, about 32 KiB. A sequence is always one
      chunk.
    one_episode_chunks: whether every chunk is of one episode. By default a
      chunk may hold several short episodes, whose items then take no more
      memory than those of long ones. A table counts the episodes of its chunks,
      so `num_episodes` of `server_info` then counts several as one, and an item
      keeps its whole chunk in memory. With `one_episode_chunks=True` the count
      is exact.

  Raises:
    TypeError: if `rules` are no `ConversionRules`, or `policy_info_fn` is not
      callable.
  """

  rules: Optional[rules_lib.ConversionRules] = None
  policy_info_fn: Optional[specs.PolicyInfoFn] = None
  report: Optional[report_lib.ConversionReport] = None
  identity: Optional[Any] = None
  episode_id: Optional[str] = None
  chunk_length: Optional[int] = None
  one_episode_chunks: bool = False

  def __post_init__(self):
    if self.rules is None:
      object.__setattr__(self, 'rules', rules_lib.ConversionRules())
    _check_type('rules', self.rules, rules_lib.ConversionRules)
    specs.check_policy_info_fn(self.policy_info_fn)


# How each attribute of the options, and of their rules, is written.
_WRITTEN = {
    **{f.name: f'{f.name}=...' for f in dataclasses.fields(ConversionOptions)},
    **{
        f.name: f'rules=rlds2reverb.ConversionRules({f.name}=...)'
        for f in dataclasses.fields(rules_lib.ConversionRules)
    },
    'rules': 'rules=rlds2reverb.ConversionRules(...)',
}


def takes_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
  """Decorates a function that takes `ConversionOptions` as `options=`.

  An attribute of the options, or of their rules, that is passed as an argument
  is a TypeError that says what to write. A `ConversionReport` serves one
  conversion: if the call that took it raises, the report can be given to
  another call. It can still be read.

  Args:
    function: the function; or the `__init__` of a class.

  Returns:
    The decorated function.
  """
  parameters = inspect.signature(function).parameters

  @functools.wraps(function)
  def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
    for name in kwargs:
      if name in _WRITTEN and name not in parameters:
        raise TypeError(
            f'{function.__qualname__.removesuffix(".__init__")}() got an'
            f' unexpected keyword argument {name!r}.{_advice(name)}'
        )
    report = getattr(kwargs.get('options'), 'report', None)
    # pylint: disable=protected-access
    was_free = report is not None and not report._is_taken
    try:
      return function(*args, **kwargs)
    except BaseException:
      if was_free:
        report._is_taken = False
      raise

  return call


def complete(options: Optional[ConversionOptions]) -> ConversionOptions:
  """Returns the options, or the default ones in place of None.

  Raises:
    TypeError: if they have another type, such as `ConversionRules`.
  """
  if options is None:
    return ConversionOptions()
  _check_type('options', options, ConversionOptions)
  return options


def _check_type(name, value, kind):
  if not isinstance(value, kind):
    raise TypeError(f'{name}={value!r} is no {kind.__name__}.{_advice()}')


def _advice(attribute='rules') -> str:
  return f' Write options=rlds2reverb.ConversionOptions({_WRITTEN[attribute]}).'


def with_policy_info(
    options: Optional[ConversionOptions],
    policy_info_fn: Optional[specs.PolicyInfoFn],
) -> ConversionOptions:
  """Returns options with the `policy_info_fn` of an argument, as in TF-Agents.

  Raises:
    TypeError: as `complete` does, or if the function is not callable.
    ValueError: if the options have another function.
  """
  options = complete(options)
  if policy_info_fn is None:
    return options
  if options.policy_info_fn not in (None, policy_info_fn):
    raise ValueError(
        'policy_info_fn is an argument and an attribute of the options, and'
        ' they differ. Pass it in one of the two.'
    )
  return dataclasses.replace(options, policy_info_fn=policy_info_fn)
