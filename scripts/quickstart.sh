#!/usr/bin/env bash
# Real episodes from disk through conversion and Reverb into a training batch.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
exec python -m scripts.quickstart "$@"
