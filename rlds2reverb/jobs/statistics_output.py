"""Statistics of the fields as the output of a job: sketches, merged."""

import os

import tensorflow as tf

from rlds2reverb.datasets import whole
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import results

STATISTICS_FILE = 'statistics.json'
_SKETCH = 'sketch.npz'


class StatisticsOutput(outputs.FolderOutput):
  """Writes the statistics of the valid episodes, a sketch for each task.

  They are read with `statistics.load_statistics`.
  """

  kind = 'folder with statistics'
  marker = STATISTICS_FILE
  part_marker = _SKETCH

  def write(self, number, episodes):
    accumulation = _accumulation(episodes.read(), number)

    def to_part(block):
      batch = episode_batches.EpisodeBatch(block.steps, block.row_splits, ())
      return block, accumulation.rows(batch)

    state = accumulation.empty()
    parts = episodes.blocks().map(to_part)
    add = accumulation.adder()
    for block, part in parts:
      episodes.watch(tf.nest.map_structure(lambda leaf: leaf.numpy(), block))
      state = add(state, part)
    folder = self.new_part(number)
    with whole.new_folder(folder, [_SKETCH], replace=True) as path:
      accumulation_lib.save(os.path.join(path, _SKETCH), state)
    return {}, {}

  def join(self, receipts):
    task = self.plan.tasks[0]
    source = sources_lib.open_source(self.plan.sources[task.source])
    accumulation = _accumulation(source.read(task.ranges[0]), 0)
    sketches = (
        accumulation_lib.load(os.path.join(self.job.part(number), _SKETCH))
        for number in sorted(receipts)
    )
    state = next(sketches)
    # In the order of the tasks, or the last bits would change.
    for number, other in enumerate(sketches):
      state = state.merge(other, [0, len(receipts), number])
    text = results.to_json(accumulation.statistics(state))
    with whole.new_folder(self.place, [STATISTICS_FILE]) as path:
      whole.write_text(os.path.join(path, STATISTICS_FILE), text)


def _accumulation(episodes, seed: int) -> accumulation_lib.Accumulation:
  step = steps_lib.steps_spec(episodes.element_spec).step
  return accumulation_lib.Accumulation(step, seed=seed)
