"""Stand-ins for the repositories that Bazel would otherwise download.

With them `bazel run` and `bazel test` need no network. A newer Bazel brings
rules for C++ and Java of its own that differ from these, so it gets the stub
for rules_python only; Bazel 7 and 8 read MODULE.bazel and none of this.
"""

_DOWNLOADED_BY_OLD_BAZEL = ["rules_cc", "rules_java", "remote_coverage_tools"]

def offline_repositories(checkout = "."):
    """Declares the stub repositories.

    Args:
      checkout: the folder of rlds2reverb, as seen from the calling WORKSPACE.
    """

    # Debian's build of Bazel 4.2.3 has an empty version.
    major_version = native.bazel_version.split(".")[0] or "4"
    names = ["rules_python"]
    if major_version in ["2", "3", "4"]:
        names += _DOWNLOADED_BY_OLD_BAZEL
    for name in names:
        native.local_repository(
            name = name,
            path = checkout + "/tools/bazel_stubs/" + name,
        )
