"""Configures pytest to run tests that are written as absl programs.

If Reverb or PyAV is not installed, a test that imports it is skipped. The tests
in `without_reverb_test.py` check what works without Reverb, and are never
skipped for this reason.
"""

import collections
import gc
import importlib.util

from absl import flags
import pytest

flags.FLAGS.mark_as_parsed()

# Maps each optional module to the package that must be installed for it. RLDS
# imports Reverb, so it is only installed together with Reverb.
_OPTIONAL = {'av': 'av', 'reverb': 'reverb', 'rlds': 'reverb'}


def pytest_configure():
  # The objects that TensorFlow created during import live until the end of the
  # process. Scanning them in each garbage collection would take longer than
  # most tests.
  gc.freeze()
  gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Marks all but `n` cases of a test with the mark `few(n)` as long."""
  cases = collections.defaultdict(list)
  for item in items:
    mark = item.get_closest_marker('few')
    if mark:
      cases[item.cls, item.function.__wrapped__, mark.args].append(item)
  for (_, _, (few,)), test_cases in cases.items():
    # Keeps evenly spaced cases, because neighboring cases are similar.
    for index, item in enumerate(test_cases):
      if index * few % len(test_cases) >= few:
        item.add_marker('long')


class _Module(pytest.Module):
  """A test file that is skipped if an optional import is not installed."""

  def _getobj(self):
    try:
      return super()._getobj()
    except self.CollectError as error:
      reason = _get_reason_to_skip(error.__cause__)
      if reason:
        pytest.skip(reason, allow_module_level=True)
      raise


def pytest_pycollect_makemodule(module_path, parent):
  return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  outcome = yield
  report = outcome.get_result()
  reason = _get_reason_to_skip(call.excinfo.value) if report.failed else None
  if reason:
    path, line, _ = item.reportinfo()
    report.outcome = 'skipped'
    report.longrepr = str(path), (line or 0) + 1, reason


def _get_reason_to_skip(error):
  """Returns a reason if an error is a missing optional package, else None."""
  name = getattr(error, 'name', None)
  package = _OPTIONAL.get(name) if isinstance(name, str) else None
  if (
      isinstance(error, ModuleNotFoundError)
      and package
      and importlib.util.find_spec(package) is None
  ):
    return f'needs {package}, which is not installed'
  return None
