"""Says which episodes are valid, and what is wrong with the others.

An episode that breaks a rule would make frames that a learner misreads, so it
is refused, or skipped, before any of its frames come out. The rules are about
the *outline* of episodes: their flags, discounts, and where they hold NaN.
"""

from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence

import tensorflow as tf

from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import faults as faults_lib
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import rlds
from rlds2reverb.episodes import stacked_steps
from rlds2reverb.episodes import steps as steps_lib

# The sentences of tf_agents.replay_buffers.rlds_to_reverb (TF-Agents 0.19.0).
TERMINAL_NOT_LAST = 'Terminal step must be the last step of an episode.'
FIRST_AFTER_MID = 'Mid step should not be followed by a first step.'
NO_FIRST_AFTER_LAST = (
    'Last step of an episode must be followed by a first step.'
)
# Our own sentences, for faults that TF-Agents accepts. Unequal lengths are
# refused under both validations.
UNEQUAL_LENGTHS = stacked_steps.UNEQUAL_LENGTHS
NO_FIRST = 'An episode must begin with a first step.'
FIRST_AFTER_FIRST = (
    'First step should not be followed by a first step, unless it is the last'
    ' step too.'
)
STEPS_AFTER_LAST = 'Last step of an episode must end it.'
DISCOUNT_RANGE = 'Discount must lie in [0, 1].'
NAN = 'Step must not hold NaN.'
EMPTY = 'An episode must have a step.'
# Advice for an episode whose last step is not marked as one.
_NO_LAST = (
    'If the data set never sets is_last, StepMapping(is_last=None) marks the'
    ' last step of every episode by its position.'
)

# A dict of columns [N + 1], of the steps of a batch and of the step after them:
# the flags are bool, and the discount is float32.
Outline = Dict[str, tf.Tensor]
FIELDS = (*rlds.FLAGS, rlds.DISCOUNT)


def select(steps: Dict[str, Any], fields: Iterable[str]) -> Dict[str, Any]:
  """Returns the named fields of steps."""
  return {field: steps[field] for field in fields}


class Verdict(NamedTuple):
  """What is right and wrong about the episodes of a batch.

  Attributes:
    is_valid: bool `[E]`: which episodes keep all rules.
    row_splits: int64 `[E + 1]`: those of the batch. An episode whose fields
      differ in length counts as one without steps.
    outline: the `Outline` of the steps and of the one that follows them.
    before_first: bool `[N]`: whether a first step follows each step.
    broken: bool `[N, R]`: which rules each step breaks.
    rules: string `[R]`: the sentences of the rules.
    nan_field: int32 `[N]`: the first field of each step that holds NaN, if that
      breaks a rule: an index of `nan_paths`; 0 if there is none.
    nan_paths: string `[P + 1]`: an empty string, and the paths of the fields.
  """

  is_valid: tf.Tensor
  row_splits: tf.Tensor
  outline: Outline
  before_first: tf.Tensor
  broken: tf.Tensor
  rules: tf.Tensor
  nan_field: tf.Tensor
  nan_paths: tf.Tensor


def judge(
    batch: episode_batches.EpisodeBatch,
    validation: str = 'strict',
    *,
    nan_fields: Sequence[str] = (),
    following: Optional[Outline] = None,
) -> Verdict:
  """Says which episodes of a batch keep all rules.

  Args:
    batch: the batch, whose steps have `FIELDS` and `nan_fields`. An episode
      whose fields differ in length is invalid, and so is one with a fault.
    validation: `"strict"`, all rules of this module; or `"tf_agents"`, the
      three of TF-Agents, which may look at the step after an episode.
    nan_fields: the names of the fields that may hold no NaN.
    following: the outline `[1]` of the step that follows the batch; by default
      that of a first step.
  """
  steps = _equal_rows(batch.steps, {*FIELDS, *nan_fields})
  outline = _outline_of(steps, following)
  num_rows = tf.size(outline[rlds.IS_FIRST], tf.int64) - 1
  row_splits = tf.minimum(batch.row_splits, num_rows)
  edges = episode_batches.count_begins(row_splits, num_rows + 1) > 0
  is_first, is_last, is_terminal = (outline[n][:-1] for n in rlds.FLAGS)
  before_first = outline[rlds.IS_FIRST][1:]
  is_strict = validation == 'strict'
  if is_strict:
    before_first |= edges[1:]  # Whatever the next episode begins with.
  broken = {
      TERMINAL_NOT_LAST: is_terminal & ~is_last,
      FIRST_AFTER_MID: ~(is_first | is_last) & before_first,
      NO_FIRST_AFTER_LAST: is_last & ~before_first,
  }
  if is_strict:
    discount = outline[rlds.DISCOUNT][:-1]
    broken |= {
        NO_FIRST: ~is_first & edges[:-1],
        FIRST_AFTER_FIRST: is_first & ~is_last & before_first,
        STEPS_AFTER_LAST: is_last & before_first & ~edges[1:],
        DISCOUNT_RANGE: (discount < 0) | (discount > 1),
    }
    is_whole = row_splits[1:] > row_splits[:-1]
  else:
    is_whole = row_splits[1:] == batch.row_splits[1:]
    is_whole &= ~faults_lib.is_fault(batch.fault)
  floats = steps_lib.float_fields(select(steps, nan_fields))
  nan_field = tf.zeros_like(is_first, tf.int32)
  for index, (_, leaf) in reversed(list(enumerate(floats, 1))):
    has_nan = tf.reduce_any(tf.math.is_nan(leaf), tf.range(1, tf.rank(leaf)))
    nan_field = tf.where(has_nan, index, nan_field)
  if floats:
    broken[NAN] = nan_field > 0
  breaks = tf.stack(list(broken.values()), 1)

  def are_unbroken():
    counts = episode_batches.sum_rows(
        tf.math.count_nonzero(breaks, 1), row_splits
    )
    return is_whole & (counts == 0)

  return Verdict(
      # Nearly all episodes are valid, so that nothing more has to be found.
      tf.cond(tf.reduce_any(breaks), are_unbroken, lambda: is_whole),
      row_splits,
      outline,
      before_first,
      breaks,
      tf.constant(list(broken)),
      nan_field,
      tf.constant(['', *(path for path, _ in floats)]),
  )


def first_outline(steps: Dict[str, Any]) -> Outline:
  """Returns the outline `[1]` of the first step, for what it follows.

  It is that of a first step if there is none, or if fields differ in length.
  """
  outline = _outline_of(_equal_rows(select(steps, FIELDS), FIELDS))
  return {name: column[:1] for name, column in outline.items()}


def _equal_rows(steps, fields) -> Dict[str, Any]:
  """Returns the fields of steps; without rows if lengths of steps differ."""
  lengths = stacked_steps.lengths_of(steps)
  steps = select(steps, fields)
  if lengths is None:
    return steps
  stop = tf.where(stacked_steps.are_equal(lengths), lengths.rows[0], 0)
  return stacked_steps.rows_of(steps, tf.zeros_like(stop), stop)


def _outline_of(steps, following=None) -> Outline:
  """Returns the outline `[N + 1]` of steps, and of the one that follows."""
  outline = {}
  for name in FIELDS:
    end: Any = [name == rlds.IS_FIRST]
    dtype = tf.bool
    if name == rlds.DISCOUNT:
      end, dtype = [0.0], tf.float32
    column = steps_lib.one_a_step(name, steps[name], dtype)
    if following is not None:
      end = following[name]
    outline[name] = tf.concat([column, end], 0)
  return outline


def faults_of(verdict: Verdict) -> faults_lib.Fault:
  """Returns all faults of steps.

  Returns:
    A `Fault` of `[P]`, in the order of the steps, whose `step` is the row, and
    at each step in the order of `rules`.
  """
  places = tf.where(verdict.broken)
  row, rule = places[:, 0], tf.gather(verdict.rules, places[:, 1])
  texts = []
  for name in FIELDS:
    value = tf.cast(tf.gather(verdict.outline[name], row), tf.float32)
    short, whole = (
        tf.strings.as_string(value, precision=digits, shortest=True)
        for digits in (6, 9)
    )
    # 0.9 has 9 digits in binary, 0.899999976, and is told by one.
    is_whole = tf.strings.to_number(short) == value
    text = tf.where(is_whole, short, whole)
    texts.append(tf.strings.join([f'{name}=', text]))
  path = tf.gather(verdict.nan_paths, tf.gather(verdict.nan_field, row))
  nothing = tf.fill(tf.shape(rule), '')
  return faults_lib.Fault(
      rule,
      row,
      tf.where(rule == NAN, path, nothing),
      tf.strings.join(texts, ', ')
      + tf.where(path == '', nothing, ', NaN in ' + path),
      nothing,
      nothing,
  )


def fault_of_whole(batch: episode_batches.EpisodeBatch) -> faults_lib.Fault:
  """Returns the fault of an episode that has no steps in a verdict.

  Its fields differ in length, or it could not be read, if it is alone in its
  batch; otherwise it is empty.
  """
  fault = faults_lib.Fault(EMPTY, values='it has none').tensors()
  lengths = stacked_steps.lengths_of(batch.steps)
  if lengths is not None:
    found = tf.strings.join(
        [lengths.paths, tf.strings.as_string(lengths.rows)], ': '
    )
    unequal = faults_lib.Fault(
        UNEQUAL_LENGTHS, values=tf.strings.reduce_join(found, separator=', ')
    )
    fault = faults_lib.choose(stacked_steps.are_equal(lengths), fault, unequal)
  if batch.fault == ():
    return fault
  return faults_lib.choose(batch.fault.rule == '', fault, batch.fault)


# Faults and their sentences are rarely needed, but building them into a
# pipeline would take about as long as building the checks and the conversion.
# So each is built once.
sentences = graphs.built_once(faults_lib.sentence)


@graphs.built_once
def first_faults(
    verdict: Verdict, invalid: tf.Tensor, whole: faults_lib.Fault
) -> faults_lib.Fault:
  """Returns the first fault of each invalid episode.

  Args:
    verdict: the verdict on a batch.
    invalid: int64 `[I]`: the positions of episodes that are not valid, in
      increasing order.
    whole: the fault of those without steps.

  Returns:
    A `Fault` of `[I]`, whose steps are counted from the start of the episode.
  """
  found = faults_of(verdict)
  begins = tf.gather(verdict.row_splits, invalid)
  ends = tf.gather(verdict.row_splits, invalid + 1)
  has_steps = begins < ends
  first = tf.where(
      has_steps, tf.searchsorted(found.step, begins), tf.size(found.step)
  )
  found = tf.nest.map_structure(
      lambda column, one: tf.gather(tf.concat([column, [one]], 0), first),
      found,
      whole,
  )
  no_last = (found.rule == FIRST_AFTER_MID) & (found.step == ends - 1)
  return found._replace(
      step=tf.where(has_steps, found.step - begins, found.step),
      advice=tf.where(no_last, _NO_LAST, found.advice),
  )
