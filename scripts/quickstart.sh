#!/usr/bin/env bash
# Real episodes from disk through conversion and Reverb into a training batch.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
python -m scripts.quickstart "$@"
say "The environment is $venv; \". $venv/bin/activate\" makes it that of this shell."
