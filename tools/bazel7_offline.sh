#!/usr/bin/env bash
# Runs Bazel 7 without a network, from Debian's packages:
#
#     bash tools/bazel7_offline.sh RULES_PYTHON test //tests:episodes/steps_test
#
# RULES_PYTHON is a checkout of rules_python at the version that MODULE.bazel
# names, which Debian does not have. All other modules are those that Debian's
# bazel-bootstrap 7.7.1 brings along, or, where nothing of them is used, empty.
# It works in any workspace; one of its own needs an empty WORKSPACE.bzlmod.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo 'Usage: bash tools/bazel7_offline.sh RULES_PYTHON COMMAND ...' >&2
  exit 2
fi
rules_python=$(realpath "$1")
command=$2
shift 2

modules=${XDG_CACHE_HOME:-$HOME/.cache}/rlds2reverb/bazel_modules
debian=/usr/share/bazel
flags=(
  "--registry=file://$modules"
  --lockfile_mode=off
  --check_direct_dependencies=off
  --override_module=rules_python="$rules_python"
  --override_module=bazel_features="$debian/tools/features"
  --override_module=bazel_skylib="$debian/tools/skylib"
  --override_module=platforms="$debian/tools/platforms"
)
for name in cc java license proto; do
  flags+=("--override_module=rules_$name=$debian/rules/$name")
done
mkdir -p "$modules/protobuf/bazel"
echo '{}' > "$modules/bazel_registry.json"
for name in apple_support buildozer protobuf stardoc zlib; do
  mkdir -p "$modules/$name"
  echo "module(name = \"$name\")" > "$modules/$name/MODULE.bazel"
  touch "$modules/$name/BUILD"
  flags+=("--override_module=$name=$modules/$name")
done
# rules_cc loads it, and no target of Python calls it.
touch "$modules/protobuf/bazel/BUILD"
echo 'cc_proto_library = None' > "$modules/protobuf/bazel/cc_proto_library.bzl"

exec bazel "$command" "${flags[@]}" "$@"
