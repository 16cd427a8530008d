#!/usr/bin/env bash
# Runs the tests, but for those that take long; arguments go to pytest: `-m long`
# runs just these. With EXTRA=beam it runs those of Apache Beam, which are skipped
# otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
say 'Running the tests; the first dots come after a minute.'
TF_CPP_MIN_LOG_LEVEL=2 exec python -m pytest --numprocesses=3 --dist=worksteal --quiet \
  -m 'not long' "$@" "tests${EXTRA:+/jobs/${EXTRA}_engine_test.py}"
