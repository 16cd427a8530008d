"""Checks that the generated parts of the manual's pages are up to date."""

import ast
import contextlib
import importlib.util
import inspect
import pathlib
import re

from absl.testing import absltest

import rlds2reverb
from rlds2reverb import fields
from rlds2reverb import random_access
from rlds2reverb import replay
from rlds2reverb import training
from rlds2reverb import transforms
from rlds2reverb.formats import readers
from rlds2reverb.replay import local

_ROOT = pathlib.Path(__file__).absolute().parent.parent


class GeneratedPagesTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    spec = importlib.util.spec_from_file_location(
        'generate', _ROOT / 'docs/generate.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cls.pages = list(module.generate())

  def test_generated_pages_are_up_to_date(self):
    stale = [str(path) for path, old, new in self.pages if old != new]
    self.assertEmpty(stale, 'Run `python docs/generate.py`.')

  def test_every_page_of_the_reference_lists_names(self):
    pages = [page for page in self.pages if page[0].parent.name == 'reference']
    self.assertGreater(len(pages), 15)
    for path, text, _ in pages:
      names = re.findall(r'^- `\w+', text, re.MULTILINE)
      self.assertEqual(bool(names), path.name != 'index.md', path)
      # Each has a summary.
      self.assertNotRegex(text, r'(?m)^- `[^`]*`: *$', path)

  def test_methods_of_classes(self):
    pages = {
        path.stem: text
        for path, text, _ in self.pages
        if path.parent.name == 'reference'
    }
    # Each entry, without its methods, and these.
    entries = {}
    for text in pages.values():
      for entry in re.findall(r'^- `.*\n(?:  - .*\n)*', text, re.MULTILINE):
        name = re.match(r'- `(\w+)', entry)[1]
        entries[name] = entry
    for name, lines in {
        'LocalReplayBuffer': (
            'update_priorities(keys, priorities)`: Updates the priorities of',
            'num_items`: The number of items that can be drawn.',
            'as_dataset(sample_batch_size=..., num_steps=...',  # Of TF-Agents.
        ),
        'AppendableReplayBuffer': ('add_batch(items)`: Appends a frame of',),
        'ConversionReport': ('removed_steps`: ', 'warn()`: Logs the warnings.'),
        'EpisodeTransform': ('invert(steps)`: ', '__call__(episode, episode'),
    }.items():
      for line in lines:
        self.assertIn(f'\n  - `{line}', entries[name])
    self.assertIn(
        '\n  - and the methods of `LocalReplayBuffer`\n',
        entries['AppendableReplayBuffer'],
    )
    # Every public method of a class that is documented has a line.
    num_methods = 0
    for module in (
        rlds2reverb,
        random_access,
        replay,
        local,
        transforms,
        training,
    ):
      for cls in vars(module).values():
        if not inspect.isclass(cls) or issubclass(cls, BaseException):
          continue
        for name, value in vars(cls).items():
          if inspect.isfunction(value) and name[0] != '_' and value.__doc__:
            with self.subTest(f'{cls.__name__}.{name}'):
              self.assertIn(f'\n  - `{name}(', entries[cls.__name__])
            num_methods += 1
    self.assertGreater(num_methods, 20)

  def test_commands_of_the_table(self):
    """Parses each command, and resolves its names; without the network."""
    (text,) = [text for path, text, _ in self.pages if path.stem == 'choosing']
    # The last block, which is right above the table.
    *_, imports = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    names = {}
    exec(imports, names)
    rows = re.findall(r'^\| `(\w+)` \|.*\| (.*?) \| `(.*)` \|$', text, re.M)
    configs = [path.stem for path in (_ROOT / 'configs').glob('*.gin')]
    self.assertCountEqual([config for config, _, _ in rows], configs)
    places = []
    for config, size, command in rows:
      with self.subTest(config):
        self.assertRegex(size, r'^unknown$|^[\d.]+ [KMGT]i?B\b.*, .*')
        calls = [
            (ast.unparse(node.func), [ast.literal_eval(x) for x in node.args])
            for node in ast.walk(ast.parse(command))
            if isinstance(node, ast.Call)
            and all(isinstance(x, ast.Constant) for x in node.args)
        ]
        (outer,) = [
            node
            for node in ast.walk(ast.parse(command))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) == 'fields.map_fields'
        ]
        self.assertEqual(ast.literal_eval(outer.args[1]), config)
        fields.load_mapping(config)
        for name, args in calls:
          self.assertTrue(callable(eval(name.split('(')[0], names)))
          places.append((config, name, args))
    builders = {}
    for config, name, args in places:
      if name == 'tfds.builder':
        dataset, _, variant = args[0].partition('/')
        known = names['tfds'].builder_cls(dataset).BUILDER_CONFIGS
        self.assertIn(variant, [getattr(one, 'name', one) for one in known])
        builders[config] = args
      elif name == 'formats.load':
        self.assertIn(args[1], readers.READERS)
    num_checked = 0
    for config, name, args in places:
      if name == 'datasets.load_episodes' and config in builders:
        self.assertEqual(args, builders[config])
      elif name == 'datasets.load_episodes' and args[0].startswith('gs://'):
        # TFDS imports these data sets from the same place.
        with contextlib.suppress(names['tfds'].core.DatasetNotFoundError):
          found = names['tfds'].builder_cls(config)
          place = found.get_relative_dataset_location(None)
          self.assertEqual(args[0], f'gs://gresearch/robotics/{place}')
          num_checked += 1
    self.assertGreater(num_checked, 40)

  def test_every_config_is_in_the_table(self):
    (text,) = [text for path, text, _ in self.pages if path.stem == 'choosing']
    for path in (_ROOT / 'configs').glob('*.gin'):
      self.assertIn(f'\n| `{path.stem}` |', text)


if __name__ == '__main__':
  absltest.main()
