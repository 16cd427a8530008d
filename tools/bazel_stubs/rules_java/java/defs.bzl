"""The native Java rules that Bazel's own BUILD files load."""

java_import = native.java_import
java_runtime = native.java_runtime
java_toolchain = native.java_toolchain
