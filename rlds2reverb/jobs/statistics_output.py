"""Statistics of the fields as the output of a job: sketches, merged."""

import os

import tensorflow as tf

from rlds2reverb.datasets import files
from rlds2reverb.datasets import whole
from rlds2reverb.episodes import episode_batches
from rlds2reverb.episodes import graphs
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.jobs import outputs
from rlds2reverb.jobs import sources as sources_lib
from rlds2reverb.statistics import accumulation as accumulation_lib
from rlds2reverb.statistics import cache
from rlds2reverb.statistics import moments
from rlds2reverb.statistics import sketches

STATISTICS_FILE = 'statistics.json'
_SKETCH = 'sketch.npz'


class StatisticsOutput(outputs.FolderOutput):
  """Writes the statistics of the valid episodes, a sketch for each task.

  They are read with `statistics.load_statistics`.
  """

  kind = 'folder with statistics'
  marker = STATISTICS_FILE
  part_marker = _SKETCH

  def is_finished(self, folder, receipts):
    return len(receipts) == len(self.plan.tasks) and files.exists(
        os.path.join(self.plan.output.place, STATISTICS_FILE)
    )

  def check_addition(self, spec):
    raise ValueError(
        f'{self.plan.output.place} has the statistics of other episodes, to'
        ' which those of repaired ones cannot be added. Make them anew, of all'
        ' episodes.'
    )

  def write(self, number, folder, episodes):
    accumulation = _accumulation(episodes.read(), number)

    @graphs.no_autograph
    def to_rows(block):
      batch = episode_batches.EpisodeBatch(block.steps, block.row_splits, ())
      rows = accumulation.batch_rows(batch)
      return block, (moments.of_block(rows), rows)

    state = accumulation.empty()
    add = tf.function(accumulation.add, reduce_retracing=True, autograph=False)
    for block, rows in episodes.blocks().map(to_rows):
      episodes.watch(tf.nest.map_structure(lambda leaf: leaf.numpy(), block))
      state = add(state, *rows)
    part = self.new_part(folder, number)
    with whole.new_folder(part, [_SKETCH], replace=True) as path:
      sketches.save(os.path.join(path, _SKETCH), state)
    return outputs.Written({}, {})

  def merge_parts(self, paths, path):
    with whole.new_folder(path, [_SKETCH], replace=True) as new:
      sketches.save(os.path.join(new, _SKETCH), self._merged(paths))

  def finish(self, folder, spec, receipts):
    # A different order of merging would change the last bits.
    for level in self.merges():
      for numbers in level:
        self.merge(folder, numbers)
    state = self._merged(self.parts(folder, range(len(self.plan.tasks))))
    task = self.plan.tasks[0]
    source = sources_lib.open_source(self.plan.sources[task.source])
    statistics = _accumulation(source.read(task.ranges[0]), 0).statistics(state)
    with whole.new_folder(self.plan.output.place, [STATISTICS_FILE]) as path:
      whole.write_text(
          os.path.join(path, STATISTICS_FILE), cache.to_json(statistics)
      )

  def _merged(self, paths):
    """Returns the sketch of the parts in folders, merged in their order."""
    state = sketches.load(os.path.join(paths[0], _SKETCH))
    # The seed of a merge follows from the place of its parts and their order.
    begin = int(os.path.basename(paths[0]).partition('-')[0])
    for number, path in enumerate(paths[1:]):
      state = sketches.merge(
          state,
          sketches.load(os.path.join(path, _SKETCH)),
          seed=[begin, len(paths), number],
      )
    return state


def _accumulation(episodes, seed: int) -> accumulation_lib.Accumulation:
  return accumulation_lib.Accumulation(
      steps_lib.steps_spec(episodes.element_spec).step, seed=seed
  )
