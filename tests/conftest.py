"""What pytest needs to run tests that are written as absl programs.

All but the long tests run without TensorFlow's graph optimizer, which takes
longer than their few steps; the long ones run graphs as users do.

Where Reverb is not installed, the tests that come to need it are skipped. Tests
of what must work without it are in `without_reverb_test`, which never are.
"""

import gc
import importlib.util

from absl import flags
import pytest
import tensorflow as tf

flags.FLAGS.mark_as_parsed()

_HAS_REVERB = importlib.util.find_spec('reverb') is not None
_REASON = 'needs Reverb, which is not installed'


def pytest_configure(config):
  if config.option.markexpr == 'not long':
    tf.config.optimizer.set_experimental_options(
        {'disable_meta_optimizer': True}
    )
  # What TensorFlow has made so far stays; looking through it again and again
  # for garbage takes longer than most tests.
  gc.freeze()
  gc.set_threshold(100_000, 20, 100)


class _Module(pytest.Module):
  """A file of tests, which is skipped if it imports Reverb and cannot."""

  def _getobj(self):
    try:
      return super()._getobj()
    except self.CollectError as error:
      if _is_without_reverb(error.__cause__):
        pytest.skip(_REASON, allow_module_level=True)
      raise


def pytest_pycollect_makemodule(module_path, parent):
  return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  outcome = yield
  report = outcome.get_result()
  if report.failed and _is_without_reverb(call.excinfo.value):
    path, line, _ = item.reportinfo()
    report.outcome = 'skipped'
    report.longrepr = str(path), (line or 0) + 1, _REASON


def _is_without_reverb(error):
  return (
      not _HAS_REVERB
      and isinstance(error, ModuleNotFoundError)
      # RLDS imports Reverb, and is only installed beside it.
      and error.name in ('reverb', 'rlds')
  )
