"""Targets of a folder of programs."""

load("@rules_python//python:defs.bzl", "py_binary", "py_library")

def programs(name, deps):
    """Makes a library of the folder's Python files, and a program of each.

    Args:
      name: the name of the folder, and of the library.
      deps: what the files import from other folders.
    """
    files = native.glob(["*.py"])
    py_library(
        name = name,
        srcs = files,
        visibility = ["//visibility:public"],
        deps = deps,
    )
    for file in files:
        program = file[:-len(".py")]
        if program not in ["__init__", name]:
            py_binary(
                name = program,
                srcs = [file],
                deps = [":" + name],
            )
