#!/usr/bin/env bash
# Makes the lock files from setup.py, each for all Pythons that have its
# packages. It needs uv (`pip install uv`).
#
#     bash requirements/lock.sh            all versions as new as setup.py allows
#     bash requirements/lock.sh --no-upgrade    only what setup.py has changed
#
# They are installed without dependencies, as they list every package.
set -euo pipefail
cd "$(dirname "$0")/.."
upgrade=--upgrade
[ "${1:-}" != --no-upgrade ] || upgrade=

# lock FILE USE ARGUMENTS... writes a lock file whose first line says its use.
lock() {
  local file=requirements/$1.txt use=$2
  shift 2
  uv pip compile --universal --no-emit-index-url --no-annotate --no-header \
    --quiet $upgrade --output-file "$file" "$@"
  # Without GPUs, whose libraries take several GB. Nothing else differs.
  sed -i -E 's/^tensorflow==/tensorflow-cpu==/; /^(nvidia|cuda|triton)/d' "$file"
  sed -i "1i # $use Made by requirements/lock.sh." "$file"
}

# lock_library FILE USE EXTRA...
lock_library() {
  local file=$1 use=$2
  shift 2
  # shellcheck disable=SC2046
  lock "$file" "$use" setup.py --python-version 3.10 $(printf ' --extra %s' "$@")
  # For Python 3.12 and 3.13; what it asks for is in setup.py by name.
  sed -i -E 's/^tf-agents==.*/tf-agents==0.19.0/' "requirements/$file.txt"
}

lock_library tests 'The library and its tests.' test
lock_library beam 'The same with Apache Beam, which needs other versions.' \
  test beam
lock_library docs 'The same with what builds the manual.' test docs
# TF-Agents asks for an older typing-extensions than PyTorch does, and works with
# a newer one.
printf '%s\n' absl-py dm-tree 'etils[epath]' grain jax numpy pillow torch==2.13.0 |
  lock frameworks 'PyTorch and JAX, alone or on top of tests.txt.' - \
    --python-version 3.11 --constraint <(
      grep -v '^#\|^typing-extensions\|^tensorflow-cpu' requirements/tests.txt
    )
