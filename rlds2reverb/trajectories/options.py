"""`ConversionOptions` and `ConversionRules`: how data is converted."""

from collections.abc import Callable
import dataclasses
import functools
import inspect
from typing import Any, ParamSpec, TypeVar

import gin

from rlds2reverb.episodes import checks
from rlds2reverb.trajectories import report as report_lib
from rlds2reverb.trajectories import specs

_P = ParamSpec('_P')
_R = TypeVar('_R')

_CHOICES = {
    'validation': ('strict', 'tf_agents'),
    'terminal_discount': ('step', 'transition'),
    'invalid_episodes': ('raise', 'skip'),
    'nan': ('report', 'invalid'),
}


@gin.configurable(module='rlds2reverb')
@dataclasses.dataclass(frozen=True)
class ConversionRules:
  """Defines how episodes are checked and converted to trajectories.

  Pass it as `ConversionOptions(rules=...)`, or configure it with gin.
  Different rules can give different frames, so prepared frames of a replay
  buffer are only used again with the same rules. Keys of items under an
  `identity` depend on `terminal_discount` alone.

  Attributes:
    validation: which episodes are valid. `"strict"` accepts an episode of a
      first step, middle steps and a last step, or of one step that is both
      first and last. Only its last step may be terminal, and its discounts must
      lie in [0, 1]. `"tf_agents"` accepts what TF-Agents accepts, which checks
      the steps of all episodes as one stream.
    terminal_discount: where the discount of a terminal episode is set to 0.
      `"step"` sets it on the frame of the last step, as TF-Agents does;
      learners mask this frame out. `"transition"` also sets it on the frame
      before, the frame of the transition into the last step, as the trainers in
      examples/ need it.
    invalid_episodes: how to treat an invalid episode. `"raise"` raises an
      error; `"skip"` drops the episode.
    nan: how to treat NaN in observations, actions, rewards and discounts, and
      in the other fields that a `policy_info_fn` reads. `"report"` lets NaN
      pass and counts it in the report; `"invalid"` makes an episode that holds
      NaN invalid.

  Raises:
    ValueError: if a value is not one of its choices, or if `"skip"` is combined
      with `"tf_agents"`.
  """

  validation: str = 'strict'
  terminal_discount: str = 'step'
  invalid_episodes: str = 'raise'
  nan: str = 'report'

  def __post_init__(self):
    for name, choices in _CHOICES.items():
      checks.check_choice(name, getattr(self, name), choices)
    if self.invalid_episodes == 'skip' and self.validation == 'tf_agents':
      raise ValueError(
          'validation="tf_agents" checks a stream of steps, in which no episode'
          ' can be skipped. Use validation="strict" with'
          ' invalid_episodes="skip".'
      )


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
  """Defines how RLDS data is converted, to any output.

  All conversion functions take these options. `identity` and the attributes
  after it have an effect on items in Reverb only.

  Attributes:
    rules: which episodes are valid, and how they are converted. The default is
      `ConversionRules()`, which gin may configure.
    policy_info_fn: makes the `policy_info` of a frame from its step and the
      step that follows; see `convert_rlds_to_trajectories`.
    report: a new `ConversionReport`, to be filled with skipped episodes and
      warnings.
    identity: a value that identifies this data: its name, its split and shard,
      and how it was processed, such as the mapping, the transforms and the
      `policy_info_fn`. It is a string, or a dict or list of strings, numbers,
      mappings and transforms. Under an identity, the keys of items depend on
      it, on the dtypes and shapes of the frames, on `rules.terminal_discount`,
      and on the item's table, length, episode and position, so data that is
      written again is in the table once. A server does not compare items: if
      two different items have the same key, because the identity is too coarse,
      the first one stays. By default, None, keys are random.
    episode_id: the name of a field of the episodes, an integer or a string,
      that identifies them under `identity`. No two episodes may have the same
      value. By default episodes are identified by their index in the data set,
      so two shards need two identities, or an `episode_id`.
    chunk_length: the maximum number of frames of a chunk. By default a chunk
      holds about 8 KiB and no more than 64 frames; if a column has 1 KiB a
      frame or more, such as an image, about 32 KiB. A sequence is always one
      chunk.
    one_episode_chunks: whether every chunk is of one episode. By default a
      chunk may hold several short episodes, whose items then take no more
      memory than items of long ones. A table counts the episodes of its chunks,
      so `num_episodes` of `server_info` then counts several as one, and an item
      keeps its chunk in memory. With `one_episode_chunks=True` the count is
      exact.

  Raises:
    TypeError: if `rules` are not `ConversionRules`, or `policy_info_fn` is not
      callable.
  """

  rules: ConversionRules = dataclasses.field(default_factory=ConversionRules)
  policy_info_fn: specs.PolicyInfoFn | None = None
  report: report_lib.ConversionReport | None = None
  identity: Any | None = None
  episode_id: str | None = None
  chunk_length: int | None = None
  one_episode_chunks: bool = False

  def __post_init__(self):
    if self.rules is None:
      object.__setattr__(self, 'rules', ConversionRules())
    _check_type('rules', self.rules, ConversionRules)
    specs.check_policy_info_fn(self.policy_info_fn)


# How to write each attribute of the options, and of their rules.
_SYNTAX = {
    **{f.name: f'{f.name}=...' for f in dataclasses.fields(ConversionOptions)},
    **{
        f.name: f'rules=rlds2reverb.ConversionRules({f.name}=...)'
        for f in dataclasses.fields(ConversionRules)
    },
    'rules': 'rules=rlds2reverb.ConversionRules(...)',
}


def takes_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
  """Decorates a function that takes `ConversionOptions` as `options=`.

  If an attribute of the options, or of their rules, is passed as an argument,
  the TypeError shows the right syntax. If the call raises an error, the report
  that it has attached can be passed to another call.

  Args:
    function: the function; or the `__init__` of a class.

  Returns:
    The decorated function.
  """
  parameters = inspect.signature(function).parameters

  @functools.wraps(function)
  def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
    for name in kwargs:
      if name in _SYNTAX and name not in parameters:
        raise TypeError(
            f'{function.__qualname__.removesuffix(".__init__")}() got an'
            f' unexpected keyword argument {name!r}.{_advice(name)}'
        )
    report = getattr(kwargs.get('options'), 'report', None)
    if report is None or report.is_attached:
      return function(*args, **kwargs)
    try:
      return function(*args, **kwargs)
    except BaseException:
      report.detach()
      raise

  return call


def complete(options: ConversionOptions | None) -> ConversionOptions:
  """Returns the options, or default ones for None.

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
  return f' Write options=rlds2reverb.ConversionOptions({_SYNTAX[attribute]}).'


def with_policy_info(
    options: ConversionOptions | None,
    policy_info_fn: specs.PolicyInfoFn | None,
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
        'policy_info_fn is both an argument and an attribute of the options,'
        ' and they differ. Pass it once.'
    )
  return dataclasses.replace(options, policy_info_fn=policy_info_fn)
