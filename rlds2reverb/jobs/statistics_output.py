"""Statistics of the fields as the output of a job: sketches, merged."""

import os
from typing import Sequence

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import results

STATISTICS_FILE = 'statistics.json'
_SKETCH = 'sketch.npz'
# How many sketches are merged into one, and how many of these, and so on.
_SKETCHES_PER_MERGE = 16


class StatisticsOutput(outputs.FolderOutput):
  """Writes the statistics of the valid episodes, a sketch for each task.

  They are read with `statistics.load_statistics`.
  """

  kind = 'folder with statistics'
  marker = STATISTICS_FILE
  part_marker = _SKETCH

  def write(self, number, episodes):
    accumulation = _accumulation(episodes.read(), number)

    @graphs.no_autograph
    def to_part(block):
      batch = episode_batches.EpisodeBatch(block.steps, block.row_splits, ())
      return block, accumulation.part(accumulation.rows(batch))

    state = accumulation.empty()
    parts = episodes.blocks().map(to_part)
    add = accumulation.adder(parts.element_spec[1])
    for block, part in parts:
      episodes.watch(tf.nest.map_structure(lambda leaf: leaf.numpy(), block))
      state = add(state, part)
    folder = self.new_part(number)
    with whole.new_folder(folder, [_SKETCH], replace=True) as path:
      accumulation_lib.save(os.path.join(path, _SKETCH), state)
    return {}, {}

  def _join(self, parts, receipts):
    size = _SKETCHES_PER_MERGE
    while size < len(parts):
      size *= _SKETCHES_PER_MERGE
    task = self.plan.tasks[0]
    source = sources_lib.open_source(self.plan.sources[task.source])
    accumulation = _accumulation(source.read(task.ranges[0]), 0)
    text = results.to_json(accumulation.statistics(_merged(parts, 0, size)))
    with whole.new_folder(self.place, [STATISTICS_FILE]) as path:
      whole.write_text(os.path.join(path, STATISTICS_FILE), text)

  def _needed(self, done):
    return {}  # It is small.

  def _holds(self, receipts):
    return files.exists(os.path.join(self.place, STATISTICS_FILE))

  def _check_addition(self, spec):
    raise ValueError(
        f'{self.place} has the statistics of other episodes, to which those of'
        ' repaired ones cannot be added. Make them anew, of all episodes.'
    )


def _merged(parts: Sequence[str], begin: int, size: int):
  """Returns the sketch of `size` parts, the first of which is at `begin`.

  The same parts are merged in the same order for the same number of tasks, or
  the last bits would change.
  """
  if size == 1:
    return accumulation_lib.load(os.path.join(parts[begin], _SKETCH))
  step = size // _SKETCHES_PER_MERGE
  begins = range(begin, min(begin + size, len(parts)), step)
  state = _merged(parts, begin, step)
  for number, other in enumerate(begins[1:]):
    state = state.merge(
        _merged(parts, other, step), [begin, len(begins), number]
    )
  return state


def _accumulation(episodes, seed: int) -> accumulation_lib.Accumulation:
  step = steps_lib.steps_spec(episodes.element_spec).step
  return accumulation_lib.Accumulation(step, seed=seed)
