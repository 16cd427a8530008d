"""One pass over all items, in their order."""

import numpy as np

from rlds2reverb.replay.local import population as population_lib
from rlds2reverb.replay.local import samplers


def in_order(
    population: population_lib.Population, process: samplers.Process
) -> samplers.DrawFn:
  """Returns the function that draws every item once, in their order.

  These are the items that there are now. To draw one that has made room for
  newer ones since is a SamplingError.
  """
  own = process.share_of(population.num_items)
  count, first_item = population.num_items, population.first

  def draw(first, num_batches, batch_size):
    begin = first * batch_size
    whole = max((own - begin) // batch_size, 0)
    rows = min(whole, num_batches) or 1
    items = np.arange(begin, min(begin + rows * batch_size, own))
    items = first_item + items * process.world_size + process.rank
    if not population.alive(items).all():
      raise population_lib.SamplingError(
          'Frames were appended or removed during a pass over the items, some'
          ' of which have made room for newer ones. Make a new data set for'
          ' each pass.'
      )
    return samplers.with_priority(
        items.reshape([rows, -1]), population, 1 / count
    )

  return draw


def num_batches(
    num_items: int, process: samplers.Process, batch_size: int
) -> int:
  """Returns how many batches make one pass over the items of a worker."""
  return -(-process.share_of(num_items) // batch_size)
