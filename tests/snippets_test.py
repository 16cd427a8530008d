"""Runs the code of README.md and of the pages of the manual.

The blocks of a page that are Python (`python`) or for a shell (`sh`) run one
after the other, as a reader would run them: with one namespace for the Python
of the page, and an empty home. A block that cannot run here has a line above it
that says why:

    <!-- not run: there is no such bucket -->

A `text` block right below a block of Python is what that prints, where `...`
stands for anything.

The home of a guide has the episodes that the first example of README.md
records. The cells of the tutorials run when the manual is built.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from rlds2reverb import datasets
from tests import pages

# These record the episodes that the other pages read.
_FIRST = ('README.md', 'docs/index.md')


@pytest.mark.long
class SnippetsTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enter_context(tempfile.TemporaryDirectory())
    cls._cartpole = datasets.record_episodes(
        'CartPole-v1', os.path.join(folder, 'cartpole'), 50
    )

  def setUp(self):
    super().setUp()
    home = self.create_tempdir().full_path
    paths = [pages.ROOT, os.environ.get('PYTHONPATH', '')]
    self.enter_context(
        mock.patch.dict(
            os.environ,
            HOME=home,
            # gym sets it when it is imported, which another page may have done.
            PYGAME_HIDE_SUPPORT_PROMPT='hide',
            PATH=os.pathsep.join(
                [os.path.dirname(sys.executable), os.environ['PATH']]
            ),
            PYTHONPATH=os.pathsep.join(filter(None, paths)),
            TF_CPP_MIN_LOG_LEVEL='2',
        )
    )
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(home)

  @parameterized.named_parameters(
      (re.sub(r'\W', '_', page), page)
      for page in pages.paths()
      if any(pages.blocks(page))
  )
  def test_code_blocks_of_page_run(self, page):
    if page not in _FIRST:
      shutil.copytree(self._cartpole, os.path.expanduser('~/data/cartpole'))
    # A page shows a complete test file, whose tests do not run here.
    namespace = {'__name__': 'page'}
    for block in pages.blocks(page):
      if block.language == 'python':
        # The lines above make a traceback name the line of the page.
        code = '\n' * (block.line - 1) + block.code
        with contextlib.redirect_stdout(io.StringIO()) as printed:
          exec(compile(code, page, 'exec'), namespace)
        if block.output is not None:
          expected = re.escape(block.output).replace(re.escape('...'), '.*')
          self.assertRegex(
              printed.getvalue().strip(), re.compile(f'^{expected}$', re.DOTALL)
          )
        continue
      done = subprocess.run(
          ['bash', '-euo', 'pipefail', '-c', block.code],
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
          check=False,
      )
      self.assertEqual(
          done.returncode, 0, f'{page}, line {block.line}:\n{done.stdout}'
      )


if __name__ == '__main__':
  absltest.main()
