#!/usr/bin/env bash
# Runs the everyday tests; arguments are passed to pytest. `-m long` runs the long
# tests. EXTRA=beam runs the tests of Apache Beam, which are skipped otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
say 'Running the tests; the first results appear after a minute.'
TF_CPP_MIN_LOG_LEVEL=2 exec python -m pytest --numprocesses=3 --dist=worksteal --quiet \
  -m 'not long' "$@" "tests${EXTRA:+/jobs/${EXTRA}_engine_test.py}"
