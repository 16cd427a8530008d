#!/usr/bin/env bash
# Makes the lock files anew from setup.py. It needs uv (`pip install uv`).
set -euo pipefail
cd "$(dirname "$0")/.."
for version in 3.10 3.11; do
  # With Apache Beam some packages have other versions, and the manual needs many
  # more, so they have their own files.
  for extra in '' beam docs; do
    UV_CUSTOM_COMPILE_COMMAND='bash requirements/lock.sh' uv pip compile \
      setup.py --extra test ${extra:+--extra "$extra"} \
      --python-version "$version" --no-emit-index-url --quiet --upgrade \
      --output-file "requirements/${extra:+$extra-}python$version.txt"
  done
done
