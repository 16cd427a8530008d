"""What pytest needs to run tests that are written as absl programs.

Where Reverb or PyAV is not installed, the tests that come to need it are
skipped. Tests of what must work without Reverb are in `without_reverb_test`,
which never are.
"""

import collections
import gc
import importlib.util

from absl import flags
import pytest

flags.FLAGS.mark_as_parsed()

# What may be absent, and the package that has to be there for it: RLDS imports
# Reverb, and is only installed beside it.
_OPTIONAL = {'av': 'av', 'reverb': 'reverb', 'rlds': 'reverb'}


def pytest_configure():
  # What TensorFlow has made so far stays; looking through it again and again
  # for garbage takes longer than most tests.
  gc.freeze()
  gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Marks as long all but a few of the cases of a test that says so."""
  cases = collections.defaultdict(list)
  for item in items:
    mark = item.get_closest_marker('few')
    if mark:
      cases[item.cls, item.function.__wrapped__, mark.args].append(item)
  for (_, _, (few,)), found in cases.items():
    # They are taken from all over the list, as neighbors are alike.
    for index, item in enumerate(found):
      if index * few % len(found) >= few:
        item.add_marker('long')


class _Module(pytest.Module):
  """A file of tests, skipped if what it imports may be absent, and is."""

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
  """Returns what is not installed, if that is what an error says."""
  name = getattr(error, 'name', None)
  package = _OPTIONAL.get(name) if isinstance(name, str) else None
  if (
      isinstance(error, ModuleNotFoundError)
      and package
      and importlib.util.find_spec(package) is None
  ):
    return f'needs {package}, which is not installed'
  return None
