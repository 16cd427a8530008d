#!/usr/bin/env bash
# Records episodes, converts them, and samples a training batch from Reverb.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
python -m scripts.quickstart "$@"
say "Activate the environment by: . $venv/bin/activate"
