"""Jobs: conversions that can be resumed, descriptions, checks and servers.

The programs in scripts/ call these functions, and so can a trainer. Two others
are in their modules: `plan.make_plan` plans a conversion, and `convert.convert`
runs it.
"""

from etils import epy

# The flags of programs are in this package. `--help` must not wait for imports
# of the rest, so these are lazy.
with epy.lazy_api_imports(globals()):
  from rlds2reverb.jobs.describing import describe
  from rlds2reverb.jobs.mixtures import read_mixture
  from rlds2reverb.jobs.serve import serve_source
  from rlds2reverb.jobs.sources import make_source
  from rlds2reverb.jobs.sources import open_source
  from rlds2reverb.jobs.validating import validate
