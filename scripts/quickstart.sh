#!/usr/bin/env bash
# Real episodes from disk through conversion and Reverb into a training batch.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

# What the libraries have to say goes to a file, to be shown if it went wrong.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! TF_CPP_MIN_LOG_LEVEL=2 python -m scripts.quickstart "$@" 2>"$log"; then
  cat "$log" >&2
  exit 1
fi
