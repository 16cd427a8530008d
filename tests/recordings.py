"""Recorded episodes, and a check of what a server gives of them.

`tests/record_environments.py` says what they were recorded from.
"""

import os
import tempfile
from typing import Any, Callable, Dict, List, Optional

from absl.testing import parameterized
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tf_agents.replay_buffers import reverb_utils
import tree

from rlds2reverb.datasets import loading
from rlds2reverb.datasets import recording
from rlds2reverb.datasets import writing
from rlds2reverb.episodes import steps as steps_lib
from rlds2reverb.fields import mapping as mapping_lib
from rlds2reverb.fields import step_mapping
from rlds2reverb.replay.server import push
from rlds2reverb.trajectories import options as options_lib
from rlds2reverb.trajectories import rules as rules_lib
from rlds2reverb.trajectories import specs
from tests import golden
from tests import testing

FOLDER = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), 'data', 'recorded'
)
_KEPT = ('walker', 'cartpole_pixels', 'half_cheetah', 'breakout')
NAMES = (*_KEPT, 'cartpole')
FORMS = ('stacked', 'nested')
_FRAME_FIELDS = (
    'observation',
    'action',
    'reward',
    'discount',
    'is_first',
    'is_last',
    'is_terminal',
    'policy_info',
)

Step = Dict[str, Any]
Steps = List[Step]
# From the steps of an episode to others.
Change = Callable[[Steps], Steps]


def as_recorded(steps: Steps) -> Steps:
  return steps


def each(change: Callable[[Step], Step]) -> Change:
  """Returns the change that gives each step other fields."""
  return lambda steps: [{**step, **change(step)} for step in steps]


def drop(*keys: str) -> Change:
  """Returns the change that takes fields out of each step."""
  return lambda steps: [
      {key: value for key, value in step.items() if key not in keys}
      for step in steps
  ]


def load(path: str, form: str, decoders: Any = None) -> tf.data.Dataset:
  """Loads a directory as a user does.

  Args:
    path: the directory.
    form: `stacked`, by `load_episodes`; or `nested`, by TFDS itself.
    decoders: of `load_episodes`.
  """
  if form == 'stacked':
    return loading.load_episodes(path, decoders=decoders)
  return tfds.builder_from_directory(path).as_dataset(split='train')


def write(
    episodes: List[Dict[str, Any]], path: str, open_images: bool = False
) -> None:
  """Writes episodes with the TFDS features that their first steps have.

  Args:
    episodes: dicts of metadata and `steps`, a list of steps.
    path: the directory, which is made.
    open_images: whether the size of images is left open.
  """
  os.makedirs(path)
  first = episodes[0]
  metadata = {key: first[key] for key in first if key != 'steps'}
  writing.write_episodes(
      episodes,
      path,
      name='changed',
      description='Recorded episodes, changed.',
      features={
          **_feature(metadata, open_images),
          'steps': tfds.features.Dataset(
              _feature(first['steps'][0], open_images)
          ),
      },
  )


def _feature(value, open_images):
  if isinstance(value, dict):
    return {key: _feature(item, open_images) for key, item in value.items()}
  if isinstance(value, list):
    return tfds.features.Sequence(_feature(value[0], open_images))
  if isinstance(value, bytes):
    return tfds.features.Tensor(shape=(), dtype=np.object_)
  value = np.asarray(value)
  if value.ndim == 3:
    return tfds.features.Image(
        shape=(None, None, value.shape[-1]) if open_images else value.shape,
        dtype=value.dtype,
        encoding_format='png',
    )
  # TFDS keeps floats in 32 bits, unless as bytes.
  encoding = 'bytes' if value.dtype == np.float64 else 'none'
  return tfds.features.Tensor(
      shape=value.shape, dtype=value.dtype, encoding=encoding
  )


class RecordedDataTestCase(parameterized.TestCase, tf.test.TestCase):
  """Compares what is sampled from a server with what was recorded.

  Attributes:
    directories: of the recordings, by name.
  """

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # What needs nothing that a user does not have is recorded anew.
    folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(folder.cleanup)
    cartpole = os.path.join(folder.name, 'cartpole')
    recording.record_episodes('CartPole-v1', cartpole, 4, max_steps=15, seed=3)
    cls.directories = {
        **{name: os.path.join(FOLDER, name) for name in _KEPT},
        'cartpole': cartpole,
    }
    cls._recorded = {
        name: _read(path) for name, path in cls.directories.items()
    }

  def steps(self, name: str) -> List[Steps]:
    """Returns the recorded steps of each episode."""
    return self._recorded[name]

  def write_changed(
      self,
      name: str,
      change: Change,
      metadata: Optional[Callable[[Steps], Dict[str, Any]]] = None,
      open_images: bool = False,
  ) -> str:
    """Writes a recording whose steps are changed; returns the directory.

    Args:
      name: of the recording.
      change: the change.
      metadata: from the recorded steps to the other fields of their episode.
      open_images: of `write`.
    """
    path = os.path.join(self.create_tempdir().full_path, 'changed')
    write(
        [
            {
                **(metadata(steps) if metadata else {}),
                'steps': change(steps),
            }
            for steps in self.steps(name)
        ],
        path,
        open_images,
    )
    return path

  def check_mapped(
      self,
      name: str,
      change: Change,
      mapping: step_mapping.StepMapping,
      expected: Change = as_recorded,
      **written: Any,
  ) -> None:
    """Checks what is sampled of a recording that deviates from RLDS.

    Args:
      name: of the recording.
      change: what makes it deviate.
      mapping: what it is mapped with.
      expected: from the recorded steps to those that are sampled then.
      **written: of `write_changed`.
    """
    path = self.write_changed(name, change, **written)
    for form in FORMS:
      with self.subTest(form):
        data = mapping_lib.map_fields(load(path, form), mapping)
        self.check_sampled(data, [expected(s) for s in self.steps(name)])

  def check_sampled(
      self, data: tf.data.Dataset, episodes: List[Steps], **settings: Any
  ) -> None:
    """Checks that a server gives the pairs of frames of `episodes`.

    Args:
      data: the episodes, to be pushed. Frames have the `policy_info` of their
        steps, where steps have one.
      episodes: their steps.
      **settings: attributes of `ConversionOptions`.
    """
    expected = []
    frames = golden.expected_frames(
        [_stack(steps) for steps in episodes],
        settings.get('rules', rules_lib.ConversionRules()).terminal_discount,
        policy_info=_policy_info if 'policy_info' in episodes[0][0] else None,
    )
    for steps in episodes:
      for t in range(len(steps) - 1):
        expected += frames[t : t + 2]
      frames = frames[len(steps) :]
    sampled = self.push_and_sample(data, **settings)
    self.assertEqual({len(item) for item in sampled}, {2})
    golden.assert_frames_equal(self, sum(sampled, []), expected)

  def push_and_sample(
      self, data: tf.data.Dataset, **settings: Any
  ) -> List[List[Any]]:
    """Pushes episodes as pairs of frames; returns what is sampled, in order."""
    has_info = (
        step_mapping.POLICY_INFO in steps_lib.steps_spec(data.element_spec).step
    )
    info = step_mapping.step_policy_info if has_info else None
    spec = specs.create_trajectory_data_spec(data, info)
    with testing.reverb_server(spec) as client:
      observer = reverb_utils.ReverbAddTrajectoryObserver(
          client, testing.TABLE, sequence_length=2
      )
      push.push_rlds_to_reverb(
          data,
          observer,
          info,
          options=options_lib.ConversionOptions(**settings),
      )
      sampled = testing.drain(client)
      observer.close()
    return sampled


def _read(path):
  """Reads the steps of each episode one by one, by TFDS alone."""
  episodes = tfds.builder_from_directory(path).as_dataset(split='train')
  return [list(episode['steps']) for episode in tfds.as_numpy(episodes)]


def _stack(steps):

  def stack_leaves(*leaves):
    if isinstance(leaves[0], bytes):
      return np.array(leaves, object)
    return np.stack(leaves)

  return tree.map_structure(
      stack_leaves,
      *[{k: step[k] for k in _FRAME_FIELDS if k in step} for step in steps],
  )


def _policy_info(current, following):
  del following
  return current['policy_info']
