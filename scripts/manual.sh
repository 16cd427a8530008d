#!/usr/bin/env bash
# Builds the manual in docs/_build/html and runs the tutorials. Warnings, such as
# broken links, are errors. Arguments are passed to sphinx-build.
set -euo pipefail
cd "$(dirname "$0")/.."
EXTRA=docs
. scripts/environment.sh
python -m sphinx --jobs=auto --fail-on-warning --keep-going --quiet "$@" \
  docs docs/_build/html
echo "The manual is docs/_build/html/index.html."
