#!/usr/bin/env bash
# Builds the manual in docs/_build/html: runs the tutorials, and takes warnings,
# such as links that lead nowhere, as errors. Arguments go to sphinx-build.
set -euo pipefail
cd "$(dirname "$0")/.."
EXTRA=docs
. scripts/environment.sh
python -m sphinx --jobs=auto --fail-on-warning --keep-going --quiet "$@" \
  docs docs/_build/html
echo "The manual is docs/_build/html/index.html."
