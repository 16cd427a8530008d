"""One call from data sets on disk to the batches that a trainer takes."""

import dataclasses
import json
import os
from typing import Any, Callable, Dict, Mapping, Optional, Union

import numpy as np

from rlds2reverb.arrays import normalization
from rlds2reverb.episodes import checks
from rlds2reverb.episodes import random as random_lib
from rlds2reverb.random_access import batches as batches_lib
from rlds2reverb.random_access import index as index_lib
from rlds2reverb.random_access import items as items_lib
from rlds2reverb.random_access import normalizing
from rlds2reverb.store import folders
from rlds2reverb.store import json_files


@dataclasses.dataclass(frozen=True)
class IndexedData:
  """A data set on disk, and how its steps become RLDS steps.

  Attributes:
    directory: what `load_episodes` takes; or what `formats.load` takes, of
      which the index is then a copy.
    config: what `map_fields` takes: the name of a config, or its file. Its
      transforms are applied, too. By default steps are taken as they are.
    split: the split.
    prepare: a function of a module that is applied after that, from a data set
      of episodes to another; see `build_index`.
    weight: the data set is drawn in proportion to it. By default it is the
      number of items. Either all data sets have a weight, or none has.
    item_weights: a function from its `Items` to the weight of each, such as
      `Items.episode_weights`, or `lambda items: items.column('priority')`. By
      default all are equal. With `replacement=False` it is a mask: items of
      weight 0 are left out, and all other weights must be equal.
    options: further arguments of `formats.load`, such as
      `{'is_terminal': 'next.success'}` of LeRobot's reader, or `{'format':
      'lerobot'}` where the directory is a name.
  """

  directory: index_lib.PathLike
  config: Optional[str] = None
  split: str = 'train'
  prepare: Optional[Callable[[Any], Any]] = None
  weight: Optional[float] = None
  item_weights: Optional[Callable[[items_lib.Items], Any]] = None
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def identity(self) -> Dict[str, Any]:
    """Returns everything besides the data that an index depends on."""
    # A URL and the name of a TFDS data set stay as they are.
    directory = os.path.expanduser(os.fspath(self.directory))
    if os.path.isdir(directory):
      directory = os.path.abspath(directory)
    prepare = self.prepare
    return {
        'directory': directory,
        'config': self.config,
        'split': self.split,
        'prepare': prepare and f'{prepare.__module__}.{prepare.__qualname__}',
        # They are compared as they come from a JSON file.
        'options': json.loads(json.dumps(dict(self.options))),
    }

  def map_episodes(self, episodes: Any) -> Any:
    """Returns the episodes that are indexed, data sets of TensorFlow's."""
    # pylint: disable=g-import-not-at-top
    from rlds2reverb import fields
    from rlds2reverb import transforms

    if self.config is not None:
      episodes = fields.map_fields(episodes, self.config)
      own = transforms.load_transforms(self.config)
      episodes = transforms.transform_episodes(episodes, own)
    return self.prepare(episodes) if self.prepare else episodes


def open_batches(
    sources: Mapping[str, Union[index_lib.PathLike, IndexedData]],
    folder: index_lib.PathLike,
    batch_size: int,
    windows: Any,
    *,
    images: Optional[items_lib.Images] = None,
    normalize: Optional[Mapping[str, normalization.Normalize]] = None,
    num_processes: int = 1,
    **kwargs: Any,
) -> batches_lib.Batches:
  """Opens batches of data sets, and builds what is missing for that.

      batches = open_batches(
          {'bridge': IndexedData('/data/bridge', 'bridge', weight=2.0),
           'kuka': IndexedData('/data/kuka', 'kuka', weight=1.0)},
          '/data/indexes', 256, ActionChunks(2, 4),
          images={'observation/image': (224, 224)},
          normalize={'action': Normalize('quantiles', [True] * 6 + [False])})

  The first time it needs TensorFlow, for the index, and for the statistics of
  each field of `normalize`. They are kept in `folder`, for later calls. Every
  data set is normalised by its own statistics.

  Args:
    sources: the data sets by their names: directories, or `IndexedData`.
    folder: a folder on the local disk for the indexes and statistics.
    batch_size: the number of items of a batch, of all processes together.
    windows: what an item is, `ActionChunks` or `Windows`.
    images: the images to decode; see `Items`. A data set without one of them
      has black images.
    normalize: how fields are normalised, by their paths.
    num_processes: how many processes build an index; see `build_index`.
    **kwargs: further arguments of `Batches`, such as `augment`.

  Returns:
    The batches.

  Several processes may make the same first call, such as the ranks of a job:
  one builds, and the others wait for it.

  Raises:
    FileNotFoundError: if there is no such data set, or it has moved; its new
      directory is then given in `sources`.
    OSError: if a data set has changed since it was indexed: it has other files
      or sizes. Remove its index then. Or if a file is damaged.
    FileExistsError: if another process builds the index on a file system that
      has no locks, so that nobody can wait for it.
    ModuleNotFoundError: if an index or statistics are to be made, and
      TensorFlow is not installed.
    ValueError: if `folder` has indexes of other data, or of other configs; and
      as `build_index`, `formats.load`, `Items` and `Batches` do.
  """
  folder = index_lib.expand_folder(folder)
  images = images or {}
  opened = {
      name: source if isinstance(source, IndexedData) else IndexedData(source)
      for name, source in sources.items()
  }
  items, missing = {}, set(images)
  for name, source in opened.items():
    path = os.path.join(folder, name)
    index = open_index(path, source, num_processes)
    names = {column.name for column in index.layout.columns}
    missing -= names
    items[name] = items_lib.Items(
        index,
        windows,
        images={field: images[field] for field in names & set(images)},
        transform=normalizing.open_normalizer(
            index, normalize, f'{path}.statistics.json'
        )
        if normalize
        else None,
    )
  if missing:
    raise ValueError(f'No data set has the images {sorted(missing)}.')
  weights = _weights(opened, items, kwargs.get('replacement', True))
  return batches_lib.Batches(items, batch_size, weights=weights, **kwargs)


def _weights(sources, items, replacement) -> Optional[Dict[str, Any]]:
  """Returns the weights of data sets, or masks of items, for `Batches`."""
  weights: Dict[str, Any] = {
      name: source.weight
      for name, source in sources.items()
      if source.weight is not None
  }
  own = {
      name: source.item_weights
      for name, source in sources.items()
      if source.item_weights is not None
  }
  if own and not weights:
    weights = {
        name: len(each) if replacement else 1.0 for name, each in items.items()
    }
  for name in weights:
    if name in own and not replacement:
      weights[name] = weights[name] * np.asarray(own[name](items[name]), float)
    elif name in own:
      of_items = np.asarray(own[name](items[name]), np.float64)
      checks.check_weights(of_items, name=f'item_weights of {name}', of='item')
      of_items = random_lib.scale_weights(of_items)
      weights[name] = weights[name] * (of_items / of_items.sum())
  return weights or None


def open_index(
    folder: str, source: IndexedData, num_processes: int
) -> index_lib.Index:
  """Opens the index of a source, or builds it.

  Of several processes that need it at once, one builds it and the others wait.
  """
  path = f'{folder}.source.json'
  identity = source.identity()
  directory = identity['directory']
  if not _is_built(folder):
    index_lib.need_tensorflow(f'{folder} has no index yet, and building it')
    # pylint: disable=g-import-not-at-top
    from rlds2reverb.datasets import whole
    from rlds2reverb.formats import readers
    from rlds2reverb.random_access import building

    with whole.one_at_a_time(folder):
      if not _is_built(folder):
        json_files.refuse_link(path)
        with open(path, 'w', encoding='utf-8') as f:
          json.dump(identity, f)
        data = source.directory
        return building.build(
            readers.load(data, **source.options) if source.options else data,
            folder,
            source.split,
            source.map_episodes,
            num_processes,
            directory,
        )
  known = json_files.read(path, f'Remove {folder} and build the index again.')
  differing = [key for key in identity if identity[key] != known.get(key)]
  data_dir = ''
  if differing == ['directory']:
    data_dir = index_lib.find_moved_source(
        folder, known['directory'], directory
    )
  if differing and not data_dir:
    raise ValueError(
        f'{folder} has an index that was made with another'
        f' {", ".join(differing)}: {known}, and not {identity}. Remove it, or'
        ' choose another folder.'
    )
  try:
    return index_lib.Index(folder, data_dir)
  except index_lib.SourceNotFoundError as e:
    raise FileNotFoundError(
        f'{e.sentence} If it has moved, give its new directory in sources, in'
        f' place of {os.fspath(source.directory)!r}.'
    ) from None


def _is_built(folder: str) -> bool:
  return os.path.exists(os.path.join(folder, folders.MARKER))
