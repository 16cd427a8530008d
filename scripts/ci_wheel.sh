#!/usr/bin/env bash
# Builds the source distribution and the wheel in dist/, installs the wheel into a
# new environment, and runs the quickstart from it.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3.11}" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check build
rm -rf dist
"$work/build/bin/python" -m build --outdir dist .
wheel=$(echo "$PWD"/dist/rlds2reverb-*.whl)
if [ "${GITHUB_REF_TYPE-}" = tag ]; then
  [ "${wheel##*/}" = "rlds2reverb-${GITHUB_REF_NAME#v}-py3-none-any.whl" ] || {
    echo "The tag $GITHUB_REF_NAME is not the version of $wheel." >&2
    exit 1
  }
fi

"${PYTHON:-python3.11}" -m venv "$work/user"
# Installs the tested versions instead of the newest in setup.py's ranges.
"$work/user/bin/python" -m pip install --quiet --disable-pip-version-check \
  --constraint <(sed 's/^tensorflow-cpu==/tensorflow==/' requirements/tests.txt) \
  "$wheel"
(
  cd "$work"
  TF_CPP_MIN_LOG_LEVEL=2 "$work/user/bin/python" -m \
    rlds2reverb.scripts.quickstart "$@"
)
