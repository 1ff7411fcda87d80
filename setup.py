"""The parts in C: the spawner's extension module and the fuse. Everything else is in pyproject.toml.

Both are optional: without a compiler the package is built all the same, children are made by os.fork and the fuse is
a Python program.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

STRICT = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
EXTENSION = Extension(
    "node_manager.runtime._native",
    ["native/spawn.c"],
    extra_compile_args=STRICT,
    # No lazy binding: between clone and exec the dynamic linker must not be called.
    extra_link_args=["-Wl,-z,now", "-pthread"],
    py_limited_api=True,
    optional=True,
)


class Build(build_ext):
    """Builds the extension, which may be missing afterwards."""


setup(
    ext_modules=[EXTENSION] if sys.platform == "linux" and not os.environ.get("XCE_WITHOUT_NATIVE") else [],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
